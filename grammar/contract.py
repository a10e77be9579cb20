"""What is promised about a JSON schema, keyword by keyword."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from . import json_text
from .errors import BadSchema, TooComplex
from .normalise.declared import asks_for_more, closed
from .normalise.engines import engines
from .normalise.inhabited import inhabited, needed, pruned
from .normalise.locations import TYPES
from .normalise.node import Node, Site
from .normalise.reader import Reading, read
from .normalise.render import render
from .normalise.solve import Alternatives, solve
from .normalise.states import NOTHING, State, States
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


def audit(schema: object, *, undeclared_keys: bool = True) -> Contract:
    """What a JSON schema (draft 2020-12 or the older shapes that clients still send) lets us promise.

    `schema` is the parsed value, keys in the client's order; `json_text.parse` makes one from text. The grammar accepts
    what the schema accepts, exactly if nothing is `checked`, and says so with keywords that its backends enforce.
    JSON Schema lets objects have keys that nobody declared, unless told otherwise, and so do we; what writes answers had
    better not make any up: without `undeclared_keys` an object that has declared keys has no others, unless the schema
    says somewhere that they are welcome (`additionalProperties: true`).

    Reads nothing but its arguments; milliseconds for schemas of usual size.

    Raises BadSchema for what is no schema and for one that no value can satisfy, TooComplex for one that becomes too
    large when its combinations are written out.
    """
    try:
        return _audit(schema, undeclared_keys or asks_for_more(schema))
    except RecursionError:
        raise TooComplex("The schema is nested too deeply.") from None


def _audit(schema: object, undeclared_keys: bool) -> Contract:
    reading = read(schema)
    states = States()
    root = states.holding(reading.root)
    if root == NOTHING:
        raise BadSchema("No value satisfies the schema: it is false.")
    solved = solve(root, states)
    alive = inhabited(solved)
    if root not in alive:
        raise _unsatisfiable(root, solved, states, alive)
    kept = pruned(solved, alive)
    rendered = render(root, kept if undeclared_keys else closed(kept))
    backends = engines(rendered)
    verdicts = _verdicts(reading, _losses(root, kept), backends[0])
    return Contract(JsonSchema(json_text.dump(rendered), backends=backends), verdicts)


def _losses(root: State, kept: Alternatives) -> dict[Site, str]:
    """Why a keyword is not enforced, for each that is not."""
    found: dict[Site, str] = {}
    for by_kind in kept.values():
        for kind in TYPES:
            for each in by_kind[kind]:
                for loss in each.losses:
                    found.setdefault(loss.site, loss.reason)
    return found


def _verdicts(reading: Reading, lost: dict[Site, str], backend: BackendName) -> tuple[Verdict, ...]:
    reasons = {site.path: reason for site, reason in lost.items()}
    verdicts = {
        site.path: Verdict(site.path, site.keyword, "annotation", None, reason)
        for site, reason in reading.annotations
    }
    for node in reading.nodes:
        for atom in node.atoms:
            for site in atom.sites:
                if site.path in reasons:
                    verdicts[site.path] = Verdict(
                        site.path, site.keyword, "checked", None, reasons[site.path]
                    )
                else:
                    verdicts[site.path] = Verdict(site.path, site.keyword, "enforced", backend)
    return tuple(sorted(verdicts.values(), key=lambda verdict: verdict.path))


def _unsatisfiable(root: State, solved: Alternatives, states: States, alive: set[State]) -> BadSchema:
    """Names the innermost schema that every value would need one of and that has none."""
    seen: set[State] = set()
    state = root
    while state not in seen:
        seen.add(state)
        missing = [
            child
            for kind in TYPES
            for each in solved.get(state, {}).get(kind, ())
            for child in needed(each)
            if child not in alive
        ]
        if not missing:
            return BadSchema("No value satisfies the schema.", path=_path(state, states, root))
        state = missing[0]
    return BadSchema(
        "No value satisfies the schema: it needs another value of its own kind inside, without an end.",
        path=_path(state, states, root),
    )


def _path(state: State, states: States, root: State) -> str:
    nodes: list[Node] = [states[number].node for number in (*state, *root)]
    return nodes[0].path
