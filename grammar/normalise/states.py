"""States: sets of subschemas that hold, or do not hold, for the same value.

A state is a tuple of literal numbers in the order in which they were met (the order of keys follows from it). As the nodes
of a schema are finite, so are its states; that is what makes every rewriting of a recursive schema end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..json_text import canonical
from .node import All, Node, Site, ValueIs

State = tuple[int, ...]
EVERYTHING: State = ()
NOTHING: State = (0,)


@dataclass(frozen=True, slots=True)
class Literal:
    """A node that holds, or does not; `blame` is the keyword that denied it."""

    node: Node
    holds: bool
    blame: Site | None


@dataclass(frozen=True, slots=True)
class Loss:
    """What was left out of an alternative, which thereby accepts more."""

    site: Site
    reason: str


class States:
    """The literals of one schema by their numbers."""

    def __init__(self) -> None:
        self._literals: list[Literal] = [Literal(Node("", never=True), True, None)]
        self._numbers: dict[tuple[Node, bool, Site | None], int] = {}
        self._constants: dict[str, Node] = {}

    def __getitem__(self, number: int) -> Literal:
        return self._literals[number]

    def holding(self, node: Node) -> State:
        node = _meant(node)
        if node.never:
            return NOTHING
        return (self._number(node, True, None),) if node.atoms else EVERYTHING

    def denying(self, node: Node, blame: Site) -> State:
        node = _meant(node)
        if node.never:
            return EVERYTHING
        return (self._number(node, False, blame),) if node.atoms else NOTHING

    def both(self, one: State, other: State) -> State:
        if not other or one == other:
            return one
        if not one:
            return other
        joined = tuple(dict.fromkeys(one + other))
        if 0 in joined or self._contradictory(joined):
            return NOTHING
        return joined

    def constant(self, value: Any) -> State:
        """Exactly this value."""
        return self.holding(self.constant_node(value))

    def constant_node(self, value: Any) -> Node:
        key = canonical(value)
        node = self._constants.get(key)
        if node is None:
            node = self._constants[key] = Node("", [ValueIs((), (value,))])
        return node

    def _contradictory(self, state: State) -> bool:
        literals = [self._literals[number] for number in state]
        denied = {literal.node for literal in literals if not literal.holds}
        return bool(denied) and any(literal.holds and literal.node in denied for literal in literals)

    def _number(self, node: Node, holds: bool, blame: Site | None) -> int:
        key = (node, holds, blame)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._literals)
            self._literals.append(Literal(node, holds, blame))
        return number


def _meant(node: Node) -> Node:
    """The node that a mere reference leads to."""
    while len(node.atoms) == 1:
        atom = node.atoms[0]
        if not (isinstance(atom, All) and len(atom.nodes) == 1):
            break
        node = atom.nodes[0]
    return node
