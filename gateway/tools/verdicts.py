"""What a finished reply with calls is worth, and what becomes of one that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..metrics import Metrics
from ..pieces import Answer
from ..replies import ReplyPlan
from ..structured.shapes import AnswerShape, Outcome
from ..structured.verdicts import CONTRACT_HEADER, SchemaJudge, count, violation
from ..text_threads import TextThreads
from .calls import Call, calls_of
from .choice import ToolChoice
from .definitions import FunctionTool
from .offer import Offer


@dataclass(frozen=True, slots=True)
class ReplyJudge:
    """Holds the replies to one request against the tools it offers, and against the shape where nothing is called."""

    offer: Offer
    choice: ToolChoice
    plan: ReplyPlan
    shape: SchemaJudge | None
    metrics: Metrics
    threads: TextThreads

    @property
    def headers(self) -> Mapping[str, str]:
        exact = (self.shape is None or self.shape.shape.exact) and not any(self.plan.unheld.values())
        return {CONTRACT_HEADER: "enforced" if exact else "checked"}

    async def report(self, answer: Answer) -> dict[str, object] | None:
        """`schema_check` of a choice that ended by itself: what was found in the arguments of all its calls, by JSON
        pointers into message and request. Raises SchemaViolation.

        A strict function's arguments are right or no answer, and so is a call that was asked for.
        """
        calls = calls_of(answer.parts)
        if not calls:
            if self.choice.mode in ("required", "named"):
                raise violation("its tool_choice by calling nothing", self.metrics)
            return None if self.shape is None else await self.shape.report(answer)
        return _report([(call, await self._look(call)) for call in calls], self.offer)

    async def _look(self, call: Call) -> Outcome:
        if not call.whole:
            raise violation("the form of a call by leaving it without an end", self.metrics)
        tool = next(tool for tool in self.offer.tools if tool.name == call.begin.name)
        if not isinstance(tool, FunctionTool):
            return Outcome((), ())
        source, audited = self.offer.sources[tool.name], self.offer.audited[tool.name]
        shape = AnswerShape(tool.contract.grammar, source, tool.strict, audited, self.threads)
        outcome = Outcome((await shape.verdict(call.arguments)).problems, self.plan.unheld[tool.name])
        if tool.strict or not outcome.broken:
            count(outcome, self.metrics)
        else:
            self.metrics.schema_violated()
        return outcome


def _report(looked: list[tuple[Call, Outcome]], offer: Offer) -> dict[str, object] | None:
    """None if there was nothing to check, and nothing is wrong."""
    position = {tool.name: i for i, tool in enumerate(offer.tools)}
    checked = [
        f"/tools/{position[call.begin.name]}/function/parameters{verdict.path}"
        for call, outcome in looked
        for verdict in outcome.checked
    ]
    problems = [
        {
            "path": f"/tool_calls/{call.begin.index}/function/arguments{problem.path}",
            "keyword": problem.keyword,
            "message": problem.message,
        }
        for call, outcome in looked
        for problem in outcome.problems or ()
    ]
    if not checked and not problems:
        return None
    unknown = not problems and any(outcome.valid is None for _, outcome in looked)
    return {
        "valid": None if unknown else not problems,
        "checked": list(dict.fromkeys(checked)),
        "problems": problems,
    }
