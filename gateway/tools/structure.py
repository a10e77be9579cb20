"""What a whole reply has to look like, as one grammar: reasoning, text, calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from typing import Literal as OneOf

from grammar.spec import Choice, Either, FreeText, Grammar, Lark, Literal, Regex, Repeat

from .arguments.custom import as_function
from .arguments.json_object import JsonObject
from .arguments.schemas import Root
from .arguments.style import Gap, ToolShape, Written
from .family import Family
from .shapes import BARE, Frame, Slot, filled, joined, marker_texts, written

Mode = OneOf["none", "auto", "required", "named"]
Reasoning = OneOf["off", "open", "optional"]
"""`off`: the reply has none. `open`: the prompt ended inside of it. `optional`: the reply may begin with it."""

_PAUSE: Final = Choice(("", "\n", "\n\n"))
"""Between reasoning and what is not free text: models put line breaks there."""

_NUMBER: Final = Regex("0|[1-9][0-9]{0,3}")
_ANYTHING: Final = "(?s:.*)"
_BLANK_CLASS: Final = r" \t\r\n"


def structure(
    family: Family,
    tools: Sequence[ToolShape],
    *,
    mode: Mode,
    allowed: Sequence[str] = (),
    parallel: bool = True,
    reasoning: Reasoning = "off",
    answer: Grammar | None = None,
) -> Grammar:
    """The grammar of a reply to a prompt that offers `tools`, of which those in `allowed` may be called.

    `none`: text, in which no call can be spelled. `auto`: text and then calls, either may be missing; with an `answer`
    either that or calls. `required`: calls, one at least. `named`: one call of the only tool allowed, and nothing else.
    `answer` is what text has to look like; it says nothing about reasoning, which is free. Raises Inexpressible for an
    allowed tool whose arguments the family has no form for.
    """
    callable_ = [tool for tool in tools if tool.name in allowed]
    reply = _Reply(family, tuple(tools), callable_, parallel and mode != "named")
    return joined(*reply.parts(mode, reasoning, answer))


def gaps(family: Family, tool: ToolShape) -> tuple[Gap, ...]:
    """What of the tool's schema a call in this format is not held to, beyond what its contract says."""
    return _arguments(family, tool).gaps


def _arguments(family: Family, tool: ToolShape) -> Written:
    return family.style.write(as_function(tool))


@dataclass(slots=True)
class _Reply:
    family: Family
    tools: tuple[ToolShape, ...]
    callable_: list[ToolShape]
    parallel: bool
    beside_answer: bool = False
    free: FreeText = field(init=False)

    def __post_init__(self) -> None:
        self.free = FreeText(self.family.forbidden)

    def parts(self, mode: Mode, reasoning: Reasoning, answer: Grammar | None) -> list[Grammar]:
        body = self._body(mode, answer)
        free_first = mode in ("none", "auto") and answer is None and not self.family.alone
        return [*self._thoughts(reasoning, _PAUSE if not free_first else Literal("")), body]

    # -- reasoning -----------------------------------------------------------------------------------------------------

    def _thoughts(self, reasoning: Reasoning, pause: Grammar) -> list[Grammar]:
        frame = self.family.thoughts
        if reasoning == "off" or frame is None:
            return []
        end = marker_texts(frame.close)[0]
        inside = joined(FreeText((end,)), written(frame.close), pause)
        if reasoning == "open":
            return [inside]
        return [Repeat(joined(written(frame.open), inside), 0, 1)]

    # -- what follows it -----------------------------------------------------------------------------------------------

    def _body(self, mode: Mode, answer: Grammar | None) -> Grammar:
        if mode == "none" or not self.callable_:
            return self._answer(answer)
        if mode != "auto":
            return joined(self._before(self.family.preamble if mode == "required" else 0), self._calls())
        if answer is not None or self.family.alone:
            self.beside_answer = answer is not None
            return Either((joined(self._before(0), self._calls()), self._answer(answer)))
        if self.family.text != self.family.aside:
            before = Repeat(_framed(self.family.aside, self.free), 0, 1)
            return Either((joined(before, self._calls()), self._answer(None)))
        text = _framed(self.family.text, self.free)
        if not self.family.tail:
            return joined(text, Repeat(self._calls(), 0, 1))
        return joined(text, Either((self._calls(), written(self.family.tail))))

    def _answer(self, answer: Grammar | None) -> Grammar:
        if answer is None:
            answer = Regex(_not_beginning(self._openings())) if self.family.alone else self.free
        return joined(_framed(self.family.text, answer), written(self.family.tail))

    def _before(self, characters: int) -> Grammar:
        """Text before calls, so many characters at most."""
        frame = self.family.aside
        first = self._opening_text()[0]
        text = Regex(f"[^{re.escape(first)}]{{0,{characters}}}") if characters else Literal("")
        if not frame.open:
            return _framed(frame, text)  # the prompt has opened it
        return Repeat(_framed(frame, text), 0, 1) if characters else Literal("")

    def _opening_text(self) -> str:
        shape = (*self.family.section.open, *self.family.heads[0])
        return "".join(
            piece if isinstance(piece, str) else piece.text
            for piece in shape[:1]
            if not isinstance(piece, Slot)
        )

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _calls(self) -> Grammar:
        """A run of calls to the end of the reply."""
        family = self.family
        calls = [self._call(tool) for tool in self.callable_ if not isinstance(tool.custom, Lark)]
        raw = [self._raw(tool) for tool in self.callable_ if isinstance(tool.custom, Lark)]
        several = self.parallel and family.several
        runs: list[Grammar] = []
        if calls:
            blank = several and family.between.isspace() and family.section == BARE
            end = Choice(("", family.between)) if blank else Literal("")
            run = self._run(calls, several=several)
            runs.append(joined(run, written(family.section.close), end, written(family.tail)))
        if raw:
            before: Grammar = Literal("")
            if several and calls:
                before = Repeat(joined(_either(calls), Literal(family.between)), 0, None)
            runs.append(joined(written(family.section.open), before, _either(raw)))
        return _either(runs)

    def _run(self, calls: list[Grammar], *, several: bool) -> Grammar:
        opened, between = written(self.family.section.open), self.family.between
        if not self.family.alone:
            return joined(opened, Repeat(_either(calls), 1, None if several else 1, between))
        # in one piece up to the name, which is where engines can tell it from text
        first = _either([joined(opened, call) for call in calls])
        return joined(first, Repeat(joined(Literal(between), _either(calls)))) if several else first

    def _call(self, tool: ToolShape) -> Grammar:
        if self.beside_answer and self.family.alone and isinstance(self.family.style, JsonObject):
            return self._call_as_json(tool)
        return joined(self._head(tool), _arguments(self.family, tool).node, written(self.family.foot))

    def _call_as_json(self, tool: ToolShape) -> Grammar:
        """A call that is a JSON object, written as one: engines tell two schemas apart where they cannot tell fixed text
        from JSON that begins alike."""
        function = as_function(tool)
        skeleton = json.loads(filled(self.family.call, {Slot.NAME: tool.name, Slot.ARGUMENTS: "null"}))
        arguments = json.loads(function.arguments.schema)
        properties = {
            key: arguments if value is None else {"const": value} for key, value in skeleton.items()
        }
        whole = {
            "type": "object",
            "properties": properties,
            "required": list(skeleton),
            "additionalProperties": False,
        }
        return Root(arguments, function.arguments).leaf(whole)

    def _raw(self, tool: ToolShape) -> Grammar:
        """The input of a tool with a grammar of its own is the end of the reply, so that nothing in it can end it."""
        assert tool.custom is not None
        return joined(self._head(tool), tool.custom)

    def _head(self, tool: ToolShape) -> Grammar:
        values: Mapping[Slot, Grammar] = {Slot.NAME: Literal(tool.name), Slot.NUMBER: _NUMBER}
        return _either([written(head, values) for head in self.family.heads])

    def _openings(self) -> list[list[str]]:
        """The texts that calls of any tool begin with, up to the first character after the name, cut at blanks."""
        family = self.family
        openings: list[list[str]] = []
        for head in family.heads:
            shape = (*family.section.open, *head)
            at = shape.index(Slot.NAME)
            before = [word for piece in shape[:at] if isinstance(piece, str) for word in piece.split()]
            behind = shape[at + 1]
            assert isinstance(behind, str), "a family whose calls stand alone has text around names"
            openings += [[*before, tool.name + behind[0]] for tool in self.tools]
        return openings


def _framed(frame: Frame, inside: Grammar) -> Grammar:
    return joined(written(frame.open), inside, written(frame.close))


def _either(options: Sequence[Grammar]) -> Grammar:
    return options[0] if len(options) == 1 else Either(tuple(options))


# -- text that does not begin with a call ------------------------------------------------------------------------------


def _not_beginning(openings: Sequence[Sequence[str]]) -> str:
    """A pattern for any text that does not begin with one of these sequences of words, whatever blanks are before each.

    Walks their prefix tree: at each place the text may end, go on with a character that leads out of the tree, or with
    one that stays in it.
    """
    first = sorted({words[0] for words in openings if words})
    ways = {word: [words[1:] for words in openings if words and words[0] == word] for word in first}
    return f"[{_BLANK_CLASS}]*{_outside([(word, tuple(ways[word])) for word in first], blank=True)}"


def _outside(ways: Sequence[tuple[str, tuple[Sequence[str], ...]]], *, blank: bool) -> str:
    """`ways`: what is left of a word, and the words that may follow it."""
    heads = sorted({word[0] for word, _ in ways})
    others = "".join(map(re.escape, heads)) + (_BLANK_CLASS if blank else "")
    options = [f"[^{others}]{_ANYTHING}"]
    for head in heads:
        inner = [(word[1:], following) for word, following in ways if word[0] == head]
        if any(not word and not any(following) for word, following in inner):
            continue  # a whole opening
        done = [following for word, following in inner if not word]
        if done:
            next_ = [words for following in done for words in following]
            options.append(re.escape(head) + _not_beginning(next_))
        else:
            options.append(re.escape(head) + _outside(inner, blank=False))
    return f"({'|'.join(options)})?"
