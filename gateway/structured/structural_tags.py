"""Structural tags: fixed text, free text and schemas, put together by the client, as vLLM and SGLang take them.

Two forms, whose words are those of xgrammar: the older `{structures: [{begin, schema, end}], triggers}`, and
`{type: "structural_tag", format}` with a tree of formats. What has no exact counterpart among our nodes is refused by name:
contents in XML, keys in any order, budgets of tokens or characters, and what goes by token ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from grammar.limits import MAX_TREE_NODES
from grammar.spec import Concat, Ebnf, Either, FreeText, Grammar, Lark, Literal, Marker, Regex, Repeat

from .part import Part
from .source import Source

MAX_DEPTH = 32
AT_ONE_GO = 16
"""Parts that are read before others have their turn in the event loop: half a millisecond."""

ReadSchema = Callable[[dict[str, object]], Awaitable[Grammar]]
"""From a JSON schema to the grammar that enforces it. Raises InvalidRequest."""

Ends = tuple[str, ...]
"""What ends the free text of a content, because the tag around it ends so."""


class TagReader:
    """Reads the structural tag of one field. Everything it raises is an InvalidRequest that says where in the tag."""

    def __init__(self, source: Source, schema: ReadSchema) -> None:
        self._source = source
        self._schema = schema
        self._parts = 0
        self._readers: dict[str, Callable[[Part, Ends], Awaitable[Grammar]]] = {
            "any_text": self._any_text,
            "const_string": self._const_string,
            "dispatch": self._dispatch,
            "grammar": self._grammar,
            "json_schema": self._json_schema,
            "optional": self._optional,
            "or": self._or,
            "plus": self._plus,
            "regex": self._regex,
            "repeat": self._repeat,
            "sequence": self._sequence,
            "star": self._star,
            "tag": self._tag,
            "tags_with_separator": self._tags_with_separator,
            "token": self._token,
            "triggered_tags": self._triggered_tags,
        }

    async def read(self, tag: Mapping[str, object]) -> Grammar:
        part = Part(self._source, "", {key: value for key, value in tag.items() if key != "type"})
        if "format" in part.given:
            found = await self._format(part.take("format"), part.at("format"), ())
        else:
            found = await self._legacy(part)
        part.end()
        return found

    async def _legacy(self, part: Part) -> Grammar:
        triggers = part.texts("triggers")
        tags = [await self._structure(one) for one in part.parts("structures")]
        return self._triggered(part, triggers, tags, (), ())

    async def _structure(self, part: Part) -> _Tag:
        await self._count()
        begin, end = part.text("begin"), part.text("end")
        schema = part.schema("schema")
        part.end()
        return _Tag(begin, Concat((Literal(begin), await self._schema(schema), Literal(end))))

    async def _count(self) -> None:
        self._parts += 1
        if self._parts > MAX_TREE_NODES:
            raise self._source.too_complex(f"it has more than {MAX_TREE_NODES:,} parts")
        if not self._parts % AT_ONE_GO:
            await asyncio.sleep(0)

    async def _format(self, value: object, path: str, ends: Ends) -> Grammar:
        await self._count()
        part = Part.of(self._source, path, value)
        type_ = part.text("type")
        if part.depth > MAX_DEPTH:
            part.fail(f"nested deeper than {MAX_DEPTH} levels")
        reader = self._readers.get(type_)
        if reader is None:
            part.fail(f"format '{type_[:100]}' is not served; expected one of {', '.join(self._readers)}")
        found = await reader(part, ends)
        part.end()
        return found

    async def _inner(self, part: Part, ends: Ends) -> Grammar:
        return await self._format(part.take("content"), part.at("content"), ends)

    # -- leaves --------------------------------------------------------------------------------------------------------

    async def _const_string(self, part: Part, ends: Ends) -> Grammar:
        return Literal(part.text("value"))

    async def _token(self, part: Part, ends: Ends) -> Grammar:
        return Marker(part.text("token"))

    async def _regex(self, part: Part, ends: Ends) -> Grammar:
        return Regex(part.text("pattern"))

    async def _grammar(self, part: Part, ends: Ends) -> Grammar:
        text = part.text("grammar")
        return Lark(text) if part.word("syntax", ("ebnf", "lark")) == "lark" else Ebnf(text)

    async def _any_text(self, part: Part, ends: Ends) -> Grammar:
        part.refuse("max_tokens", "max_chars")
        return FreeText(_distinct((*part.texts("excludes", optional=True), *ends)))

    async def _json_schema(self, part: Part, ends: Ends) -> Grammar:
        part.word("style", ("json",))
        part.refuse("excludes", "any_order")
        blanks = part.number("max_whitespace_cnt", default=1)
        if blanks < 1:
            part.fail("'max_whitespace_cnt' below 1 is not served: one blank follows ',' and ':'")
        return await self._schema(part.schema("json_schema"))

    # -- put together --------------------------------------------------------------------------------------------------

    async def _sequence(self, part: Part, ends: Ends) -> Grammar:
        values = part.items("elements")
        found = []
        for position, value in enumerate(values):
            last = position == len(values) - 1
            found.append(await self._format(value, part.at("elements", position), ends if last else ()))
        return Concat(tuple(found))

    async def _or(self, part: Part, ends: Ends) -> Grammar:
        values = part.items("elements")
        return Either(
            tuple([await self._format(value, part.at("elements", i), ends) for i, value in enumerate(values)])
        )

    async def _optional(self, part: Part, ends: Ends) -> Grammar:
        return Repeat(await self._inner(part, ends), 0, 1)

    async def _star(self, part: Part, ends: Ends) -> Grammar:
        return Repeat(await self._inner(part, ends))

    async def _plus(self, part: Part, ends: Ends) -> Grammar:
        return Repeat(await self._inner(part, ends), 1)

    async def _repeat(self, part: Part, ends: Ends) -> Grammar:
        least, most = part.number("min"), part.number("max")
        if least < 0 or most < -1 or -1 < most < least:
            part.fail("'min' and 'max' are no range")
        return Repeat(await self._inner(part, ends), least, None if most == -1 else most)

    async def _tag(self, part: Part, ends: Ends) -> Grammar:
        return (await self._read_tag(part)).grammar

    async def _tags_with_separator(self, part: Part, ends: Ends) -> Grammar:
        tags = [await self._tag_in(one) for one in part.parts("tags")]
        least = 1 if part.flag("at_least_one") else 0
        most = 1 if part.flag("stop_after_first") else None
        return Repeat(_either(tags), least, most, part.text("separator"))

    async def _triggered_tags(self, part: Part, ends: Ends) -> Grammar:
        triggers = part.texts("triggers")
        tags = [await self._tag_in(one) for one in part.parts("tags")]
        return self._triggered(part, triggers, tags, part.texts("excludes", optional=True), ends)

    async def _dispatch(self, part: Part, ends: Ends) -> Grammar:
        tags = []
        for position, rule in enumerate(part.items("rules")):
            path = part.at("rules", position)
            if not (isinstance(rule, list) and len(rule) == 2 and isinstance(rule[0], str)):
                part.fail(f"'{path}' is no pair of a pattern and a format")
            pattern, content = rule
            tags.append(
                _Tag(pattern, Concat((Literal(pattern), await self._format(content, f"{path}[1]", ()))))
            )
        excludes = part.texts("excludes", optional=True)
        triggers = [tag.begin for tag in tags]
        return _among_text(
            triggers, tags, (*excludes, *ends), 0, None if part.flag("loop", default=True) else 1
        )

    def _triggered(
        self, part: Part, triggers: Sequence[str], tags: Sequence[_Tag], excludes: Iterable[str], ends: Ends
    ) -> Grammar:
        known = set(triggers)
        lengths = set(map(len, triggers))
        for tag in tags:
            if not any(tag.begin[:length] in known for length in lengths):
                part.fail(f"'{tag.begin[:100]}' begins with none of the triggers")
        least = 1 if part.flag("at_least_one") else 0
        most = 1 if part.flag("stop_after_first") else None
        return _among_text(triggers, tags, (*excludes, *ends), least, most)

    async def _tag_in(self, part: Part) -> _Tag:
        """A tag where only a tag may stand."""
        part.word("type", ("tag",))
        tag = await self._read_tag(part)
        part.end()
        return tag

    async def _read_tag(self, part: Part) -> _Tag:
        begin = self._mark(part, part.take("begin"), "begin")
        end = part.take("end")
        ends = (
            [self._mark(part, one, "end") for one in end]
            if isinstance(end, list)
            else [self._mark(part, end, "end")]
        )
        texts = tuple(one.text for one in ends if one.text)
        content = await self._inner(part, texts)
        spelled = begin.text if isinstance(begin, Literal) else ""
        return _Tag(spelled, Concat((begin, content, ends[0] if len(ends) == 1 else Either(tuple(ends)))))

    def _mark(self, part: Part, value: object, name: str) -> Literal | Marker:
        if isinstance(value, str):
            return Literal(value)
        token = Part.of(self._source, part.at(name), value)
        token.word("type", ("token",))
        marker = Marker(token.text("token"))
        token.end()
        return marker


class _Tag:
    """A tag and the text it begins with; empty if that is a token."""

    __slots__ = ("begin", "grammar")

    def __init__(self, begin: str, grammar: Grammar) -> None:
        self.begin = begin
        self.grammar = grammar


def _among_text(
    triggers: Sequence[str], tags: Sequence[_Tag], excludes: Iterable[str], least: int, most: int | None
) -> Grammar:
    """Free text in which a trigger can only be the beginning of a tag. After the `most`th tag nothing follows."""
    text = FreeText(_distinct((*triggers, *excludes)))
    tagged = Repeat(Concat((text, _either(tags))), least, most)
    if most == 1:
        return tagged if least else Either((tagged, text))
    return Concat((tagged, text))


def _either(tags: Sequence[_Tag]) -> Grammar:
    return tags[0].grammar if len(tags) == 1 else Either(tuple(tag.grammar for tag in tags))


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))
