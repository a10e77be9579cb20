"""Arguments as elements: each value between marks that say its name. Strings stand bare, other values are JSON text.

Some formats say of which type a value is; in the others the schema tells, and where it leaves both open, what reads as
JSON of an allowed type is that, and everything else a string.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grammar.spec import Either, Grammar, Literal, Regex, Repeat

from ..shapes import Frame, Shape, Slot, joined, nodes, written
from ..source import Marks, Out, Reading, Source, Words, blanks, upto, word, words
from .bare import ending, is_json, quoted, read_string, read_until, spelled, write_string
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
from .style import Gap, Inexpressible, ToolShape, Written

_ANY_KEY: Final = Regex("[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_LONGEST_KEY: Final = 512
_EVERYTHING: Final = frozenset(KINDS)


@dataclass(frozen=True, slots=True)
class Elements:
    """`field` is around a value, with its KEY and, if the format says it, its TYPE before it.

    `types` is how it calls the types of JSON values. `item` is around an array's items in formats that write objects and
    arrays as elements too (None: as JSON text). Those that do not go well into elements are JSON text there too, and then of
    the type that a number is. `escapes` is what characters of keys are written as.
    """

    field: Frame
    types: Mapping[str, str] | None = None
    item: Frame | None = None
    escapes: tuple[tuple[str, str], ...] = ()

    @property
    def shapes(self) -> tuple[Shape, ...]:
        item = self.item or Frame()
        return (self.field.open, self.field.close, item.open, item.close)

    @property
    def opening(self) -> str:
        return ""

    def write(self, tool: ToolShape) -> Written:
        root = Root.of(tool)
        writer = _Writer(self, root)
        gaps = root.gaps()
        node = writer.fields(root.fields(), root.others())
        return Written(node, (*gaps, *dict.fromkeys(writer.gaps)))

    def read(self, source: Source, tool: ToolShape, marks: Marks, out: Out) -> Reading[bool]:
        root = Root.of(tool)
        schemas = {field.name: field.schema for field in root.fields()}
        return (yield from _Reader(self, root, source, marks, out).object(schemas))

    @property
    def padded(self) -> bool:
        """A line break after the opening mark and one before the closing mark are parts of them."""
        last, first = self.field.open[-1], self.field.close[0]
        return isinstance(last, str) and last.endswith("\n") and isinstance(first, str) and first[0] == "\n"

    def key(self, name: str) -> str:
        for character, written_as in self.escapes:
            name = name.replace(character, written_as)
        return name

    def name(self, key: str) -> str:
        for character, written_as in reversed(self.escapes):
            key = key.replace(written_as, character)
        return key


# -- writing -----------------------------------------------------------------------------------------------------------


class _Writer:
    def __init__(self, style: Elements, root: Root) -> None:
        self._style = style
        self._root = root
        self._nesting = Nesting()
        self.gaps: list[Gap] = []

    def fields(self, some: Sequence[Field], others: Schema) -> Grammar:
        parts: list[Grammar] = []
        for field in some:
            try:
                element = self._element(self._style.field, field.schema, field.path, field.name)
            except Inexpressible:
                if field.required:
                    raise
                continue  # an argument that nobody can give is one that nobody has to
            parts.append(element if field.required else Repeat(element, 0, 1))
        if not some and others is not False and Slot.KEY not in self._style.field.close:
            parts.append(Repeat(self._element(self._style.field, others, "/additionalProperties", None)))
        return joined(*parts)

    def _element(self, frame: Frame, schema: Schema, path: str, name: str | None) -> Grammar:
        """A value with its marks; `name` None is any."""
        branches = self._root.branches(schema, path)
        key: Grammar = _ANY_KEY if name is None else Literal(self._checked(frame, name, path))
        elements: list[Grammar] = []
        for branch in branches:
            for type_, value in self._values(branch, frame, name):
                slots: Mapping[Slot, Grammar] = {Slot.KEY: key, Slot.TYPE: Literal(type_)}
                elements.append(joined(*nodes(frame.open, slots), value))
        if not elements:
            raise Inexpressible("this model's call format can write no value for it", path=path)
        if self._style.types is None:
            self._note_mixed(branches)
        return elements[0] if len(elements) == 1 else Either(tuple(elements))

    def _checked(self, frame: Frame, name: str, path: str) -> str:
        """The key as it is written. Raises Inexpressible if it would not be read as the same."""
        key = self._style.key(name)
        behind = frame.open[frame.open.index(Slot.KEY) + 1] if Slot.KEY in frame.open else ""
        end = behind if isinstance(behind, str) else getattr(behind, "text", "")
        if (
            (end and end.strip() in key)
            or key != key.strip()
            or key.startswith("/")
            or not key
            or len(key) > _LONGEST_KEY
        ):
            raise Inexpressible(f"this model's call format cannot write the name {name!r}", path=path)
        return key

    def _values(self, branch: Branch, frame: Frame, name: str | None) -> Iterator[tuple[str, Grammar]]:
        """Forms of a branch's values with what closes them, each with what the format calls their type."""
        types = self._style.types or {}
        shape = tuple((name or "") if piece is Slot.KEY else piece for piece in frame.close)
        if branch.kinds == {"string"}:
            bare = write_string(branch, shape)
            if bare is not None:
                self.gaps += bare.gaps
                yield types.get("string", ""), bare.node
            return
        close = written(shape)
        left = set(branch.kinds)
        if self._style.item is not None and branch.known:
            for kind in sorted(left & {"object", "array"}):
                node = self._nested(branch, kind)
                if node is not None:
                    left.discard(kind)
                    yield types.get(kind, ""), joined(node, close)
        for type_ in dict.fromkeys(self._json_type(kind) for kind in KINDS if kind in left):
            kinds = frozenset(kind for kind in left if self._json_type(kind) == type_)
            schema = branch.schema if kinds == branch.kinds else narrowed(branch.schema, kinds)
            yield type_, joined(self._root.leaf(schema), close)

    def _json_type(self, kind: str) -> str:
        """What the format calls a value of the kind that is written as JSON text."""
        if self._style.types is None:
            return ""
        return self._style.types["number"] if self._style.item is not None else self._style.types[kind]

    def _nested(self, branch: Branch, kind: str) -> Grammar | None:
        """An object or an array as elements; None where JSON text says it better: in recursive schemas, and wherever more
        is asked than of which values it consists."""
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
        return self.fields(fields(branch), others=False)

    def _array(self, branch: Branch) -> Grammar | None:
        schema = branch.schema
        if not is_simple_array(schema):
            return None
        assert self._style.item is not None
        item = self._element(self._style.item, schema["items"], f"{branch.path}/items", "item")
        return Repeat(item, schema.get("minItems", 0), schema.get("maxItems"))

    def _note_mixed(self, branches: Sequence[Branch]) -> None:
        """A bare string that reads as JSON of another allowed type is taken for that, and then has to fit there."""
        open_strings = [
            b for b in branches if b.kinds == {"string"} and not {"const", "enum"} & b.schema.keys()
        ]
        others = [b for b in branches if b.kinds != {"string"} and not b.plain and b.kinds != {"null"}]
        if open_strings and others:
            reason = "a string may read as a value of another type in this model's call format"
            self.gaps += [Gap(other.path, "type", reason) for other in others]


# -- reading -----------------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, style: Elements, root: Root, source: Source, marks: Marks, out: Out) -> None:
        self._style = style
        self._root = root
        self._source = source
        self._marks = marks
        self._out = out

    def object(self, schemas: Mapping[str, Schema]) -> Reading[bool]:
        """Elements as an object, up to what is none."""
        self._out("{")
        comma = ""
        while (begun := (yield from self._begin(self._style.field))) is not None:
            key, type_ = begun
            name = self._style.name(key)
            self._out(f"{comma}{quoted(name)}: ")
            comma = ", "
            if not (yield from self._value(self._style.field, schemas.get(name, True), key, type_)):
                return False
        self._out("}")
        return True

    def _array(self, items: Schema) -> Reading[bool]:
        assert self._style.item is not None
        self._out("[")
        comma = ""
        while (begun := (yield from self._begin(self._style.item))) is not None:
            self._out(comma)
            comma = ", "
            if not (yield from self._value(self._style.item, items, "", begun[1])):
                return False
        self._out("]")
        return True

    def _begin(self, frame: Frame) -> Reading[tuple[str, str] | None]:
        """What is before a value: its key and its type, each empty if the format says none; None if there is no element."""
        said = {Slot.KEY: "", Slot.TYPE: ""}
        texts = self._marks.words(frame.open)
        offset = 0
        for i, text in enumerate(texts):
            if isinstance(text, str):
                offset = yield from words(self._source, (text,), offset)
                if offset < 0:
                    return None
                continue
            following = texts[i + 1]
            assert isinstance(following, str)
            start = offset
            offset = yield from upto(self._source, following, start, _LONGEST_KEY)
            if offset < 0:
                return None
            said[text] = self._source.text[self._source.at + start : self._source.at + offset]
        if Slot.KEY in frame.open and (not said[Slot.KEY] or said[Slot.KEY].startswith("/")):
            return None
        self._source.take(offset)
        return said[Slot.KEY], said[Slot.TYPE]

    def _value(self, frame: Frame, schema: Schema, key: str, type_: str) -> Reading[bool]:
        shape = tuple(key if piece is Slot.KEY else piece for piece in frame.close)
        close, end = self._marks.words(shape), spelled(ending(shape), self._marks)
        if not (yield from self._inside(schema, type_, close, end)):
            return False
        offset = yield from words(self._source, close)
        if offset < 0:
            return False
        self._source.take(offset)
        return True

    def _inside(self, schema: Schema, type_: str, close: Words, end: str) -> Reading[bool]:
        branches = self._root.branches(schema, "")
        kinds = frozenset(kind for branch in branches for kind in branch.kinds) or _EVERYTHING
        types = self._style.types
        if types is not None:
            if type_ == types["string"]:
                return (yield from self._string(branches, end))
            kinds = kinds - {"string"} or _EVERYTHING
        if self._style.item is not None and kinds & {"object", "array"}:
            nested = yield from self._nested(branches, kinds, type_, close)
            if nested is not None:
                return nested
        if kinds == {"string"}:
            return (yield from self._string(branches, end))
        if (types is not None or "string" not in kinds) and (yield from self._begins_nested()):
            return (yield from read_nested(self._source, self._out))
        return (yield from self._scalar(kinds - {"string"} if types is None else _EVERYTHING, end))

    def _string(self, branches: Sequence[Branch], end: str) -> Reading[bool]:
        if self._style.padded and (yield from word(self._source, "\n")) > 0:
            self._source.take(1)
        values = [value for branch in branches for value in _listed(branch.schema)]
        if not values:
            return (yield from read_string(self._source, end, self._out, padded=self._style.padded))
        text, found = yield from read_until(self._source, end)
        if self._style.padded:
            text = text.removesuffix("\n")
        self._out(quoted(text if text in values or text.strip() not in values else text.strip()))
        return found

    def _begins_nested(self) -> Reading[bool]:
        offset = yield from blanks(self._source)
        at = self._source.at + offset
        if self._source.text[at : at + 1] not in ("{", "["):
            return False
        self._source.take(offset)
        return True

    def _scalar(self, kinds: frozenset[str], end: str) -> Reading[bool]:
        """JSON text of one of the kinds; what is not, as a string."""
        text, found = yield from read_until(self._source, end)
        bare = text.strip()
        if self._style.padded:
            text = text.removeprefix("\n").removesuffix("\n")
        self._out(bare if is_json(bare, kinds) else quoted(text))
        return found

    def _nested(
        self, branches: Sequence[Branch], kinds: frozenset[str], type_: str, close: Words
    ) -> Reading[bool | None]:
        """An object or an array written as elements; None if it is not."""
        kind = (
            (yield from self._kind_seen(kinds, close))
            if self._style.types is None
            else self._kind_said(type_)
        )
        if kind is None:
            return None
        schema = next((branch.schema for branch in branches if kind in branch.kinds), {})
        if kind == "object":
            return (yield from self.object(schema.get("properties", {})))
        return (yield from self._array(schema.get("items", True)))

    def _kind_said(self, type_: str) -> str | None:
        types = self._style.types or {}
        return next((kind for kind in ("object", "array") if types[kind] == type_), None)

    def _kind_seen(self, kinds: frozenset[str], close: Words) -> Reading[str | None]:
        """An element begins, or the value ends at once and can only be an object or an array without any."""
        empty = (yield from words(self._source, close)) >= 0
        first = self._marks.words(self._style.field.open)[:1]
        if ("string" in kinds) if empty else ((yield from words(self._source, first)) < 0):
            return None
        return "object" if "object" in kinds else "array"


def _listed(schema: Mapping[str, Any]) -> Sequence[Any]:
    """The only values there are, if they are listed."""
    found: Sequence[Any] = [schema["const"]] if "const" in schema else schema.get("enum", ())
    return found
