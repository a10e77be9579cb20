"""Arguments as Gemma 4 writes them: `{city:<|"|>Oslo<|"|>,days:3}`.

Like JSON, but keys stand bare and strings between marks of their own. What a schema asks beyond that is written as JSON
text, which is read as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from grammar.spec import Either, Grammar, Literal, Marker, Regex, Repeat

from ..shapes import Shape, joined
from ..source import SPECIAL, Marks, Out, Reading, Source, blanks, run, upto, word, words
from .bare import is_json, quoted, read_string, write_string
from .json_object import read_nested
from .schemas import (
    KINDS,
    Branch,
    Field,
    Nesting,
    Root,
    Schema,
    fields,
    is_simple_array,
    is_simple_object,
    narrowed,
)
from .separated import separated
from .style import Gap, Inexpressible, ToolShape, Written

QUOTE: Final = Marker('<|"|>')
_KEY: Final = re.compile(r"[^\s:,{}\[\]\"'<>]{1,256}\Z")
_SCALAR: Final = re.compile(rf"[^\s,:\[\]{{}}\"{SPECIAL}]{{,512}}")
_LONGEST: Final = 256
_DEEPEST: Final = 100


@dataclass(frozen=True, slots=True)
class Gemma:
    @property
    def shapes(self) -> tuple[Shape, ...]:
        return ((QUOTE,),)

    @property
    def opening(self) -> str:
        return "{"

    def write(self, tool: ToolShape) -> Written:
        root = Root.of(tool)
        writer = _Writer(root)
        node = writer.object(root.fields(), root.others())
        return Written(node, (*root.gaps(), *dict.fromkeys(writer.gaps)))

    def read(self, source: Source, tool: ToolShape, marks: Marks, out: Out) -> Reading[bool]:
        source.take((yield from blanks(source)))
        return (yield from _Reader(source, marks.spelled(QUOTE.text), out).object(0))


class _Writer:
    def __init__(self, root: Root) -> None:
        self._root = root
        self._nesting = Nesting()
        self.gaps: list[Gap] = []

    def object(self, some: Sequence[Field], others: Schema) -> Grammar:
        parts: list[tuple[Grammar, bool]] = []
        for field in some:
            try:
                if not _KEY.match(field.name):
                    raise Inexpressible(
                        f"this model's call format cannot write the name {field.name!r}", path=field.path
                    )
                value = self._value(field.schema, field.path)
                parts.append((joined(Literal(f"{field.name}:"), value), field.required))
            except Inexpressible:
                if field.required:
                    raise
        inside = separated(parts, ",")
        if not some and others is not False:
            key = Regex("[A-Za-z_][A-Za-z0-9_]{0,63}")
            inside = Repeat(
                joined(key, Literal(":"), self._value(others, "/additionalProperties")), between=","
            )
        return joined(Literal("{"), inside, Literal("}"))

    def _value(self, schema: Schema, path: str) -> Grammar:
        options = [form for branch in self._root.branches(schema, path) for form in self._forms(branch)]
        if not options:
            raise Inexpressible("there is no value for it", path=path)
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _forms(self, branch: Branch) -> Iterator[Grammar]:
        if branch.kinds == {"string"}:
            bare = write_string(branch, (QUOTE,))
            if bare is not None:
                self.gaps += bare.gaps
                yield joined(QUOTE, bare.node)
            return
        left = set(branch.kinds)
        for kind in ("object", "array"):
            node = self._nested(branch, kind) if kind in left and branch.known else None
            if node is not None:
                left.discard(kind)
                yield node
        if left:
            yield self._root.leaf(
                branch.schema if left == branch.kinds else narrowed(branch.schema, frozenset(left))
            )

    def _nested(self, branch: Branch, kind: str) -> Grammar | None:
        """None where JSON text says it better: in recursive schemas, and where more is asked than of which values it consists."""
        if not self._nesting.enter(branch):
            return None
        try:
            return self._object(branch) if kind == "object" else self._array(branch)
        except Inexpressible:
            return None
        finally:
            self._nesting.leave()

    def _object(self, branch: Branch) -> Grammar | None:
        if not is_simple_object(branch.schema) or not branch.schema.get("properties"):
            return None
        return self.object(fields(branch), others=False)

    def _array(self, branch: Branch) -> Grammar | None:
        schema = branch.schema
        if not is_simple_array(schema):
            return None
        item = self._value(schema["items"], f"{branch.path}/items")
        items = Repeat(item, schema.get("minItems", 0), schema.get("maxItems"), ",")
        return joined(Literal("["), items, Literal("]"))


class _Reader:
    """Puts everything out as JSON."""

    def __init__(self, source: Source, quote: str, out: Out) -> None:
        self._source = source
        self._quote = quote
        self._out = out

    def object(self, depth: int) -> Reading[bool]:
        source = self._source
        source.take(1)
        self._out("{")
        comma = ""
        while True:
            more = yield from self._goes_on("}", comma)
            if more is not None:
                return more
            comma = ", "
            if not (yield from self._key()) or not (yield from self._value(depth)):
                return False

    def _array(self, depth: int) -> Reading[bool]:
        self._source.take(1)
        self._out("[")
        comma = ""
        while True:
            more = yield from self._goes_on("]", comma)
            if more is not None:
                return more
            comma = ", "
            if not (yield from self._value(depth)):
                return False

    def _goes_on(self, closing: str, comma: str) -> Reading[bool | None]:
        """None: another item follows. Otherwise this is the end, and whether it is a right one."""
        source = self._source
        offset = yield from blanks(source)
        if source.text.startswith(closing, source.at + offset):
            source.take(offset + 1)
            self._out(closing)
            return True
        if comma:
            if not source.text.startswith(",", source.at + offset):
                return False
            source.take(offset + 1)
            self._out(comma)
        return None

    def _key(self) -> Reading[bool]:
        source = self._source
        source.take((yield from blanks(source)))
        if source.text.startswith('"', source.at):
            if not (yield from read_nested(source, self._out)):
                return False
            end = yield from words(source, (":",))
        else:
            end = 1 + (yield from upto(source, ":", 0, _LONGEST))
            key = source.text[source.at : source.at + max(0, end - 1)].strip()
            key = key.removeprefix(self._quote).removesuffix(self._quote)
            if not _KEY.match(key):
                return False
            self._out(quoted(key))
        if end < 0:
            return False
        source.take(end)
        self._out(": ")
        return True

    def _value(self, depth: int) -> Reading[bool]:
        source = self._source
        source.take((yield from blanks(source)))
        begin = yield from word(source, self._quote)
        if begin > 0:
            source.take(begin)
            if not (yield from read_string(source, self._quote, self._out, padded=False)):
                return False
            source.take(len(self._quote))
            return True
        match source.text[source.at : source.at + 1]:
            case '"':
                return (yield from read_nested(source, self._out))
            case "{":
                return depth < _DEEPEST and (yield from self.object(depth + 1))
            case "[":
                return depth < _DEEPEST and (yield from self._array(depth + 1))
        text = source.take((yield from run(source, _SCALAR, 0)))
        self._out(text if is_json(text, frozenset(KINDS)) else quoted(text))
        return bool(text)
