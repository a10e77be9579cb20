"""What a finished text is worth, and what becomes of one that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ApiError
from ..log import faults
from ..metrics import Metrics
from ..pieces import Answer
from .shapes import AnswerShape, Outcome

CONTRACT_HEADER = "x-schema-contract"
"""`enforced`: whatever comes is as asked. `checked`: some of it is only looked at in the end, see `schema_check`."""


class SchemaViolation(ApiError):
    """Every keyword was enforced, and the text is wrong all the same: a bug of ours. Never an answer that looks like success."""

    def __init__(self) -> None:
        super().__init__(
            500,
            "The model's answer broke a schema that the server had promised to enforce. This is a bug of the server; "
            "the answer is withheld.",
            type_="server_error",
            code="schema_violation",
        )


@dataclass(frozen=True, slots=True)
class SchemaJudge:
    """Holds the finished texts of one request against its shape."""

    shape: AnswerShape
    metrics: Metrics

    @property
    def headers(self) -> Mapping[str, str]:
        return {CONTRACT_HEADER: "enforced" if self.shape.exact else "checked"}

    async def report(self, answer: Answer) -> dict[str, object] | None:
        """`schema_check` for a text that ended by itself, None if nothing was left to be checked.

        Raises SchemaViolation.
        """
        outcome = await self.shape.verdict(answer.text)
        count(outcome, self.metrics)
        return outcome.report()


def count(outcome: Outcome, metrics: Metrics) -> None:
    """Raises SchemaViolation if what was enforced is broken."""
    if outcome.broken:
        # no more of it: paths and messages quote the answer, which is the client's and not for a log
        raise violation(f"its schema by '{outcome.broken.keyword}'", metrics)
    if outcome.checked:
        metrics.schema_checked(valid=outcome.valid)


def violation(how: str, metrics: Metrics) -> SchemaViolation:
    """Counted and logged."""
    metrics.schema_violated()
    faults.error("an answer broke %s", how)
    return SchemaViolation()
