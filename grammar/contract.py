"""What is promised about a JSON schema, keyword by keyword."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from .spec import BackendName, JsonSchema

Outcome = Literal["enforced", "checked", "annotation"]
"""`enforced` while decoding; `checked` on the finished text only, which a strict request refuses; `annotation`: says
nothing about values (titles, defaults, formats nobody defined)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`path` is the JSON pointer of the keyword in the schema as the client sent it. `reason` says why it is not enforced."""

    path: str
    keyword: str
    outcome: Outcome
    backend: BackendName | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Contract:
    """`grammar` accepts every value the schema accepts (with keys in order), and nothing else if nothing is `checked`."""

    grammar: JsonSchema
    verdicts: tuple[Verdict, ...]

    @property
    def checked(self) -> tuple[Verdict, ...]:
        """What decoding does not enforce. Empty: the contract is exact."""
        return tuple(verdict for verdict in self.verdicts if verdict.outcome == "checked")


def audit(schema: object) -> Contract:
    """Until the audit lands: the schema as it is, and no word about its keywords."""
    return Contract(JsonSchema(json.dumps(schema)), ())
