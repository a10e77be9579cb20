"""What a chat request makes of its reply: the grammar that decoding follows, and the parser that takes it apart again.

Both come from the family, so they cannot disagree. A request that asks for nothing of the kind gets neither, and its
reply is plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from grammar.contract import Verdict
from grammar.errors import BadGrammar
from grammar.limits import check_grammar
from grammar.spec import Grammar, encoded

from .kept import Kept
from .structured.shapes import AnswerShape
from .structured.source import Source
from .text_threads import TextThreads
from .tools.arguments.style import ToolShape
from .tools.choice import ToolChoice
from .tools.definitions import CustomTool, FunctionTool, Tool
from .tools.family import Family
from .tools.offer import Offer
from .tools.parser import ReplyParser
from .tools.structure import Reasoning, gaps, structure

MAX_KEPT = 128
"""Plans that are remembered: an agent asks in the same way again and again."""
MAX_KEPT_BYTES = 8 << 20
"""Of the tools and grammars in them."""


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """`parser` makes one for each choice. `source` is what a refusal of the grammar names. `unheld` is what decoding does
    not hold the arguments of functions to, by name."""

    grammar: Grammar | None
    parser: Callable[[], ReplyParser] | None
    source: Source | None
    unheld: Mapping[str, tuple[Verdict, ...]]


class Replies:
    """For one model, whose special tokens have the texts `specials`."""

    def __init__(self, family: Family, specials: Collection[str], threads: TextThreads) -> None:
        self.family = family
        self._specials = frozenset(specials)
        self._threads = threads
        self._kept: Kept[object, ReplyPlan] = Kept(most=MAX_KEPT, most_bytes=MAX_KEPT_BYTES)

    async def plan(
        self, offer: Offer, choice: ToolChoice, shape: AnswerShape | None, reasoning: Reasoning
    ) -> ReplyPlan:
        """Raises InvalidRequest for a function that the model's format cannot call, or not as strictly as asked."""
        asked = (
            None if shape is None else (shape.grammar, shape.source)
        )  # the plan names the field that asked
        key = (offer.digest, choice, asked, reasoning)
        plan = self._kept.get(key)
        if plan is not None:
            return plan
        if offer.tools:
            plan = await self._threads.run(lambda: self._plan(offer, choice, shape, reasoning))
        else:
            plan = self._plan(offer, choice, shape, reasoning)
        written = 0 if plan.grammar is None else len(encoded(plan.grammar))
        self._kept.put(key, plan, offer.nbytes + written)
        return plan

    def _plan(
        self, offer: Offer, choice: ToolChoice, shape: AnswerShape | None, reasoning: Reasoning
    ) -> ReplyPlan:
        callable_ = [tool for tool in offer.tools if tool.name in choice.allowed]
        parsed = bool(callable_) or reasoning != "off" or self.family.framed
        source = _source(callable_, offer, shape)
        grammar = self._grammar(offer, choice, shape, reasoning) if parsed or offer.tools else _alone(shape)
        if offer.tools and grammar is not None and source is not None:
            _check_size(grammar, source)
        return ReplyPlan(
            grammar=grammar,
            parser=self._parser(callable_, choice, reasoning) if parsed else None,
            source=source,
            unheld={tool.name: self._unheld(tool, offer.sources[tool.name]) for tool in callable_},
        )

    def _grammar(
        self, offer: Offer, choice: ToolChoice, shape: AnswerShape | None, reasoning: Reasoning
    ) -> Grammar | None:
        if not offer.tools and shape is None:
            return None
        return structure(
            self.family,
            [tool_shape(tool) for tool in offer.tools],
            mode=choice.mode,
            allowed=choice.allowed,
            parallel=choice.parallel,
            reasoning=reasoning,
            answer=_alone(shape),
        )

    def _parser(
        self, tools: list[Tool], choice: ToolChoice, reasoning: Reasoning
    ) -> Callable[[], ReplyParser]:
        return partial(
            ReplyParser,
            self.family,
            [tool_shape(tool) for tool in tools],
            specials=self._specials,
            reasoning=reasoning,
            must=choice.mode in ("required", "named"),
        )

    def _unheld(self, tool: Tool, source: Source) -> tuple[Verdict, ...]:
        if not isinstance(tool, FunctionTool):
            return ()
        try:
            found = gaps(self.family, tool_shape(tool))
        except BadGrammar as error:
            raise source.refused(error) from None
        verdicts = [Verdict(gap.path, gap.keyword, "checked", reason=gap.reason) for gap in found]
        if tool.strict and verdicts:
            raise source.unenforced(verdicts[0])
        return (*tool.contract.checked, *verdicts)


def _check_size(grammar: Grammar, source: Source) -> None:
    """Of all that a client sent together. One by one it was looked at before."""
    try:
        check_grammar(grammar)
    except BadGrammar as error:
        raise source.refused(error) from None


def tool_shape(tool: Tool) -> ToolShape:
    if isinstance(tool, CustomTool):
        return ToolShape(tool.name, custom=tool.input)
    return ToolShape(tool.name, tool.contract.grammar, tool.parameters)


def _alone(shape: AnswerShape | None) -> Grammar | None:
    return None if shape is None else shape.grammar


def _source(callable_: list[Tool], offer: Offer, shape: AnswerShape | None) -> Source | None:
    """Of a tree of many parts the engine does not say which one it cannot take. Schemas were looked at before, so it is
    rather the grammar that a client wrote."""
    written = [tool.name for tool in callable_ if isinstance(tool, CustomTool)]
    if len(written) == 1:
        return offer.sources[written[0]]
    if shape is not None and not written:
        return shape.source
    return Source("tools", "tools") if offer.tools else None
