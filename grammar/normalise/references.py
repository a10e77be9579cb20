"""Where `$ref` leads inside one document: identifiers, anchors, JSON pointers. Nothing is ever fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urljoin

from . import locations
from .locations import pointer

_OLD_DRAFT = re.compile(r"^https?://json-schema\.org/draft-0([3467])/schema#?$")
_NEW_DRAFT = re.compile(r"^https?://json-schema\.org/draft/(2019-09|2020-12)/schema#?$")


def draft_of(schema: object, inherited: int) -> int:
    """4, 6, 7, 2019 or 2020; an identifier that is not known changes nothing."""
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    if not isinstance(uri, str):
        return inherited
    old = _OLD_DRAFT.match(uri)
    if old is not None:
        return max(4, int(old[1]))
    new = _NEW_DRAFT.match(uri)
    return inherited if new is None else int(new[1][:4])


@dataclass(frozen=True, slots=True)
class Place:
    """A value in the document, with the base URI and the draft that hold there."""

    path: str
    value: Any
    base: str
    draft: int


class Document:
    """Finds places by reference. `root` is any JSON value; cost is linear in it."""

    def __init__(self, root: object) -> None:
        self._resources: dict[str, Place] = {}
        self._anchors: dict[tuple[str, str], Place] = {}
        self._dynamic: dict[str, list[Place]] = {}
        self._places: dict[str, Place] = {}
        self._index(root)

    @property
    def root(self) -> Place:
        return self._resources[""]

    def subschema(self, parent: Place, *steps: str | int) -> Place:
        """A place some steps below another."""
        path = pointer(parent.path, *steps)
        known = self._places.get(path)
        if known is not None:
            return known
        value = parent.value
        for step in steps:
            value = value[step]
        return Place(path, value, parent.base, parent.draft)

    def find(self, reference: str, at: Place) -> Place | None:
        """What a reference at that place leads to; None if it is not in this document."""
        uri, _, fragment = self._absolute(reference, at.base).partition("#")
        found = self._in_resource(uri, unquote(fragment))
        if found is None and reference.startswith("#"):
            found = self._in_resource("", unquote(reference[1:]))  # who writes `id` as a mere name means this
        return found

    def dynamic(self, anchor: str) -> list[Place]:
        """Every place with this $dynamicAnchor."""
        return self._dynamic.get(anchor, [])

    @staticmethod
    def _absolute(reference: str, base: str) -> str:
        if reference.startswith("#"):
            return base.partition("#")[0] + reference
        return urljoin(base, reference)

    def _in_resource(self, uri: str, fragment: str) -> Place | None:
        resource = self._resources.get(uri)
        if resource is None:
            return None
        if not fragment:
            return resource
        if not fragment.startswith("/"):
            return self._anchors.get((uri, fragment))
        place = resource
        value = resource.value
        path = resource.path
        for token in fragment[1:].split("/"):
            step = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and step in value:
                value = value[step]
            elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
                value = value[int(step)]
            else:
                return None
            path = pointer(path, step)
            place = self._places.get(path, place)
        return Place(path, value, place.base, place.draft)

    def _index(self, root: object) -> None:
        first = Place("", root, "", draft_of(root, 2020))
        waiting = [first]
        while waiting:
            place = waiting.pop()
            place = self._register(place)
            if isinstance(place.value, dict):
                waiting.extend(_below(place))
        self._resources.setdefault("", self._places[""])

    def _register(self, place: Place) -> Place:
        value = place.value
        base, draft = place.base, draft_of(value, place.draft)
        identifier = _identifier(value, draft)
        if identifier is not None:
            absolute = self._absolute(identifier, base)
            uri, _, fragment = absolute.partition("#")
            if not (fragment and identifier.startswith("#")):
                base = uri
        placed = Place(place.path, value, base, draft)
        self._places[place.path] = placed
        if not place.path:
            self._resources[""] = placed
        if identifier is not None:
            if fragment and identifier.startswith("#"):
                self._anchors.setdefault((base, fragment), placed)
            else:
                self._resources.setdefault(base, placed)
        if isinstance(value, dict):
            for keyword in ("$anchor", "$dynamicAnchor"):
                anchor = value.get(keyword)
                if isinstance(anchor, str):
                    self._anchors.setdefault((base, anchor), placed)
                    if keyword == "$dynamicAnchor":
                        self._dynamic.setdefault(anchor, []).append(placed)
        return placed


def _identifier(value: object, draft: int) -> str | None:
    if not isinstance(value, dict):
        return None
    if draft <= 7 and "$ref" in value:
        return None
    identifier = value.get("id" if draft == 4 else "$id")
    return identifier if isinstance(identifier, str) else None


def _below(place: Place) -> Iterator[Place]:
    for keyword, value in place.value.items():
        path = pointer(place.path, keyword)
        if keyword in locations.SCHEMAS_BY_NAME and isinstance(value, dict):
            steps: list[tuple[str | int, Any]] = list(value.items())
        elif isinstance(value, list) and (keyword in locations.SCHEMA_LISTS or keyword == "items"):
            steps = list(enumerate(value))
        elif keyword in locations.SCHEMAS:
            yield Place(path, value, place.base, place.draft)
            continue
        else:
            continue
        for step, sub in steps:
            yield Place(pointer(path, step), sub, place.base, place.draft)
