"""How often a validator may look at one place of a value, at most: known before it looks.

Combinations multiply. Where a recursive schema has two branches that both look at what is inside, a value nested twenty
deep is looked at a million times, and no validator can be stopped while it does. So the number is bounded first, by the
schema and the depth of the value, without either being evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote

UNKNOWN = 10**12
"""As good as infinite: it is more, or a reference leads somewhere that cannot be told."""

_HERE = ("not", "if", "then", "else")
_HERE_LISTED = ("allOf", "anyOf", "oneOf")
_HERE_NAMED = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_INSIDE = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)


def most_looks(schema: object, levels: int) -> tuple[int, ...]:
    """For values with 0, 1, … `levels` levels of nesting, the most often that any place in one is looked at.

    Never decreases. Takes time in proportion to the schema and the levels.
    """
    looks = _Looks(schema)
    most: list[int] = []
    for level in range(levels + 1):
        if most and most[-1] == UNKNOWN:
            most.append(UNKNOWN)
            continue
        most.append(max([looks.below(level), *most[-1:]]))
    return tuple(most)


class _Looks:
    def __init__(self, schema: object) -> None:
        self._root = schema
        self._named: dict[str, object] | None = None
        self._known: list[dict[int, int]] = []

    def below(self, level: int) -> int:
        """To be asked for one level after the other."""
        self._known.append({})
        try:
            return self._cost(self._root, level)
        except RecursionError:
            return UNKNOWN

    def _cost(self, schema: object, level: int) -> int:
        """How often a place `level` levels below the one where `schema` applies is looked at for it."""
        if not isinstance(schema, Mapping):
            return 1 if level == 0 else 0
        known = self._known[level]
        cost = known.get(id(schema))
        if cost is None:
            known[id(schema)] = 0  # a reference that comes back to the same place is not followed again
            cost = 1 if level == 0 else self._inside(schema, level - 1)
            cost += sum(self._cost(other, level) for other in self._same_place(schema))
            cost = known[id(schema)] = min(cost, UNKNOWN)
        return cost

    def _inside(self, schema: Mapping[str, object], level: int) -> int:
        """A member of a value has one name or one index, so of alternatives by name or index the dearest counts."""
        cost = max((self._cost(part, level) for part in _named(schema, "properties")), default=0)
        cost += sum(self._cost(part, level) for part in _named(schema, "patternProperties"))
        cost += sum(self._cost(schema[keyword], level) for keyword in _INSIDE if keyword in schema)
        items = schema.get("items")
        listed = [*_listed(schema, "prefixItems"), *(items if isinstance(items, list) else [items])]
        return cost + max((self._cost(part, level) for part in listed if part is not None), default=0)

    def _same_place(self, schema: Mapping[str, object]) -> Iterator[object]:
        for keyword in _HERE:
            if keyword in schema:
                yield schema[keyword]
        for keyword in _HERE_LISTED:
            yield from _listed(schema, keyword)
        for keyword in _HERE_NAMED:
            yield from _named(schema, keyword)
        for keyword in _REFERENCES:
            if isinstance(reference := schema.get(keyword), str):
                yield self._target(reference)

    def _target(self, reference: str) -> object:
        """What a reference means. Raises RecursionError, as for what has no end, if that cannot be told."""
        if reference == "#":
            return self._root
        if reference.startswith("#/"):
            found = _follow(self._root, reference)
        else:
            if self._named is None:
                self._named = dict(_names(self._root))
            found = self._named.get(reference)
        if found is None:
            raise RecursionError
        return found


def _follow(root: object, pointer: str) -> object | None:
    found: object = root
    for step in pointer.split("/")[1:]:
        name = _unquoted(step)
        if isinstance(found, Mapping):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def _unquoted(step: str) -> str:
    """A step of a JSON pointer in a URI fragment (RFC 6901, 6)."""
    return unquote(step).replace("~1", "/").replace("~0", "~")


def _names(root: object) -> Iterator[tuple[str, object]]:
    """Every name by which a part of a schema can be referred to, and the part."""
    waiting: list[object] = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            for keyword, mark in (("$anchor", "#"), ("$dynamicAnchor", "#"), ("$id", "")):
                if isinstance(name := part.get(keyword), str):
                    yield mark + name, part
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _named(schema: Mapping[str, object], keyword: str) -> Iterable[object]:
    value = schema.get(keyword)
    return value.values() if isinstance(value, Mapping) else ()


def _listed(schema: Mapping[str, object], keyword: str) -> Iterable[object]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else ()
