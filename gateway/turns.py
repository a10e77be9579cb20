"""One answer in a conversation: from what a dialect read of a request to what the engine is asked.

A dialect reads its own words into a `Turn`, and writes what comes of it with a `Writer` of its own. Everything between,
rendering, tools, shapes, the cache, is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.request import SamplingParams

from .caching.ask import CacheAsk, Mark
from .caching.boundaries import Boundaries
from .caching.openings import Opening, Openings
from .caching.records import Origin
from .caching.segments import locate
from .caller import Caller
from .chat_template import Rendered
from .conversation import Conversation
from .desk import Desk, Job
from .generation import Generation
from .known_ids import KnownIds
from .model import TextModel
from .openai.answer import Ending, Judge
from .openai.reply_wire import heard
from .pieces import Answer, TextOptions
from .prompts import INLINE_CHARS, Prompts, check_fits
from .reasoning import thinks_after
from .replies import Replies, ReplyPlan
from .spoken import Spoken
from .structured.shapes import AnswerShape, Shapes
from .structured.verdicts import SchemaJudge
from .text_threads import TextThreads
from .tools.choice import ToolChoice
from .tools.offer import Offer
from .tools.structure import Reasoning
from .tools.verdicts import ReplyJudge


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request wants of its answer: calls, a shape, or neither."""

    offer: Offer
    choice: ToolChoice
    shape: AnswerShape | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """An answer that is asked for.

    `wanted` reads the tools and the shape once it is known what the request begins with; it may raise InvalidRequest.
    `variables` are the template's. `opens`: the prompt ends by opening an answer; `continues`: by the last message, for
    the model to go on. `limit` bounds the answer in tokens, None: what is left of the context. `params` are the sampling
    parameters for an answer of so many tokens. `known` are the ids of the turn before, if that is known. `text` says what of the answer is wanted, but for its parser. Errors about
    the messages name the field `param`.
    """

    response_id: str
    conversation: Conversation
    ask: CacheAsk
    wanted: Callable[[Opening], Awaitable[Wanted]]
    params: Callable[[int], SamplingParams]
    text: TextOptions
    variables: Mapping[str, object]
    opens: bool = True
    continues: bool = False
    limit: int | None = None
    known: KnownIds | None = None
    n: int = 1
    priority: int = 0
    param: str = "messages"


@dataclass(frozen=True, slots=True)
class Composed:
    """The prompt of a turn, and what it was made of: that of a cache object first, where the request names one."""

    ask: CacheAsk
    conversation: Conversation
    variables: Mapping[str, object]
    wanted: Wanted
    prompt: Rendered
    known: int | None
    """How many of the prompt's ids are those of the turn before; None where nobody looked for one."""

    def origin(self, response_id: str) -> Origin:
        return Origin(
            response_id=response_id,
            text=self.prompt.text,
            messages=self.conversation.in_parts(),
            tools=self.wanted.offer.prompt,
            variables=self.variables,
            frames=self.prompt.frames,
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """`job` is for the desk, `judge` for whoever writes the answer. `ask` is what it has of the cache. `ending` remembers
    the turn, where that is to be done."""

    composed: Composed
    ask: CacheAsk
    job: Job
    judge: Judge | None
    ending: Ending | None


@dataclass(frozen=True, slots=True)
class Turns:
    model: TextModel
    prompts: Prompts
    shapes: Shapes
    replies: Replies
    spoken: Spoken
    openings: Openings
    desk: Desk
    threads: TextThreads

    async def prepare(self, caller: Caller, turn: Turn) -> Prepared:
        """Raises InvalidRequest or ApiError for what the request cannot have, TemplateError for messages that the model's
        template does not take."""
        composed = await self.compose(caller.tenant.id, turn)
        wanted, ask = composed.wanted, composed.ask
        plan = await self.replies.plan(
            wanted.offer, wanted.choice, wanted.shape, self._reasoning(turn, composed)
        )
        marks = await self._marks(composed)
        job = self.desk.asking(caller, self._job(turn, composed.prompt.ids, plan), ask, marks)
        return Prepared(
            composed,
            ask,
            replace(job, origin=composed.origin(turn.response_id), known=composed.known),
            None if ask.prewarm else self._judge(wanted, plan),
            self._remembering(caller.tenant.id, turn, composed),
        )

    def known(self, composed: Composed, generation: Generation, answer: Answer) -> KnownIds:
        """What the next turn goes on with."""
        return KnownIds.of(
            composed.prompt.ids,
            composed.prompt.by_template,
            len(composed.conversation.messages),
            () if answer.cut else generation.answer,
            self.model.tokenizer.vocabulary,
        )

    def _remembering(self, tenant: str, turn: Turn, composed: Composed) -> Ending | None:
        """For a client that will send the conversation again. Of several choices nobody knows which one it will be."""
        if not self.spoken.on or turn.continues or turn.n > 1 or composed.ask.prewarm:
            return None

        async def remember(generations: Sequence[Generation], answers: Sequence[Sequence[Answer]]) -> None:
            answer = answers[0][0]
            if not answer.cut:
                said = [*composed.conversation.messages, heard(answer.parts, answer.text)]
                self.spoken.keep(tenant, said, self.known(composed, generations[0], answer))

        return remember

    async def compose(self, tenant: str, turn: Turn, *, looking: bool = False) -> Composed:
        """The prompt. Only `looking` is no use of a cache object. Raises as `prepare` does."""
        opening, ask = await self.openings.of(tenant, turn.ask, looking=looking)
        conversation = turn.conversation.behind(opening.of_messages())
        variables = turn.variables or opening.variables
        wanted = await turn.wanted(opening)
        known = turn.known or self.spoken.find(tenant, conversation.messages)
        if known is not None and known.vocabulary != self.model.tokenizer.vocabulary:
            known = None
        prompt = await self.prompts.chat(
            conversation.messages,
            self.desk.info().max_model_len,
            add_generation_prompt=turn.opens,
            continue_final=turn.continues,
            tools=wanted.offer.prompt,
            variables=variables,
            param=turn.param,
            known=known,
        )
        opening.check(prompt.ids)
        looked = turn.known is not None or self.spoken.on
        return Composed(ask, conversation, variables, wanted, prompt, prompt.known if looked else None)

    def _reasoning(self, turn: Turn, composed: Composed) -> Reasoning:
        continued = str(composed.conversation.messages[-1]["content"]) if turn.continues else None
        return thinks_after(
            self.replies.family.thoughts, self.model.tokenizer, composed.prompt.ids, continued
        )

    async def _marks(self, composed: Composed) -> Sequence[Mark]:
        """Where entries are to stand, if the request makes any."""
        if not composed.ask.makes_entries:
            return ()
        prompt = composed.prompt
        messages = composed.conversation.in_parts()

        def find() -> list[Mark]:
            segments = locate(prompt, messages, composed.wanted.offer.prompt)
            boundaries = Boundaries(prompt, segments, self.model.tokenizer)
            return boundaries.marks(composed.ask, composed.conversation.breakpoints, messages)

        return find() if len(prompt.text) <= INLINE_CHARS else await self.threads.run(find)

    def _job(self, turn: Turn, prompt: list[int], plan: ReplyPlan) -> Job:
        context = self.desk.info().max_model_len
        max_tokens = context - len(prompt) if turn.limit is None else turn.limit
        check_fits(len(prompt), context, param=turn.param, completion=max_tokens)
        return Job(
            prompt=prompt,
            sampling=turn.params(max_tokens),
            text=replace(turn.text, parser=plan.parser),
            n=turn.n,
            priority=turn.priority,
            grammar=plan.grammar,
            source=plan.source,
        )

    def _judge(self, wanted: Wanted, plan: ReplyPlan) -> Judge | None:
        metrics = self.shapes.metrics
        shape = None if wanted.shape is None else SchemaJudge(wanted.shape, metrics)
        if not wanted.choice.allowed:
            return shape
        return ReplyJudge(wanted.offer, wanted.choice, plan, shape, metrics, self.threads)
