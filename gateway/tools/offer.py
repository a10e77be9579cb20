"""What a request offers to be called: its `tools`, checked, with their schemas audited."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from grammar import openai_strict
from grammar.openai_strict import StrictViolation
from grammar.spec import FreeText, Lark, Regex

from ..chat_template import ToolPrompt
from ..errors import InvalidRequest
from ..kept import Kept
from ..openai.fields import missing, unknown, wrong_type
from ..structured.schemas import Audited
from ..structured.shapes import Shapes
from ..structured.source import Source
from ..structured.wishes import GrammarWish
from .definitions import CustomTool, FunctionTool, Tool
from .dialects import CHAT, ToolDialect
from .render import tool_prompt

MAX_TOOLS = 128
MAX_NAME = 64
MAX_KEPT = 64
MAX_KEPT_BYTES = 8 << 20
"""Of the JSON text of offers that are remembered."""

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """`audited` has the schemas of the functions by name, `sources` what refusals name of each tool. `prompt` shows the
    tools to the model. `digest` is equal for equal `tools`, whose JSON text has `nbytes`."""

    tools: tuple[Tool, ...]
    audited: Mapping[str, Audited]
    sources: Mapping[str, Source]
    prompt: ToolPrompt | None
    digest: bytes
    nbytes: int


NO_OFFER = Offer((), {}, {}, None, b"", 0)


class Offers:
    """Reads `tools`. Agents send the same with every request, so the last offers are kept."""

    def __init__(self, shapes: Shapes, example: str) -> None:
        """`example` is a call as the model is to write it."""
        self._shapes = shapes
        self._example = example
        self._kept: Kept[bytes, Offer] = Kept(most=MAX_KEPT, most_bytes=MAX_KEPT_BYTES)

    async def read(self, value: object, dialect: ToolDialect = CHAT) -> Offer:
        """No tools for None. Raises InvalidRequest with the path of the first thing that is wrong."""
        if value is None:
            return NO_OFFER
        items = _items(value)
        try:
            text = orjson.dumps(items)  # keeps the order of keys, which is that of the arguments
        except orjson.JSONEncodeError:
            raise InvalidRequest("Invalid 'tools': nested too deeply.", param="tools") from None
        digest = hashlib.sha256(dialect.name.encode() + text).digest()
        offer = self._kept.get(digest)
        if offer is None:
            offer = await self._read(items, dialect, digest, len(text))
            self._kept.put(digest, offer, offer.nbytes)
        return offer

    async def _read(self, items: list[object], dialect: ToolDialect, digest: bytes, nbytes: int) -> Offer:
        tools: list[Tool] = []
        audited: dict[str, Audited] = {}
        sources: dict[str, Source] = {}
        for i, item in enumerate(items):
            kind, given, at = dialect.given(item, f"tools[{i}]")
            name = _name(given.get("name"), f"{at}.name")
            if name in sources:
                raise InvalidRequest(
                    f"Invalid 'tools': more than one of them is named '{name}'.", param=f"{at}.name"
                )
            sources[name] = _source(kind, name, at, dialect)
            if kind == "custom":
                custom = _custom(name, given, at, dialect)
                await self._shapes.shape(GrammarWish(sources[name], custom.input))
                tools.append(custom)
                continue
            tool, audited[name] = await self._function(name, _renamed(given, dialect), at, sources[name])
            tools.append(tool)
        prompt = await self._shapes.threads.run(lambda: tool_prompt(tools, self._example))
        return Offer(tuple(tools), audited, sources, prompt, digest, nbytes)

    async def _function(
        self, name: str, given: dict[str, Any], at: str, source: Source
    ) -> tuple[FunctionTool, Audited]:
        _no_others(given, at, {"name", "description", "parameters", "strict"})
        description = _description(given, at)
        strict = given.get("strict")
        if not isinstance(strict, bool | None):
            raise wrong_type(f"{at}.strict", "a boolean", strict)
        parameters = given.get("parameters")
        if parameters is None:
            parameters = _NO_PARAMETERS
        if not isinstance(parameters, dict):
            raise wrong_type(source.param, "an object", parameters)
        schema = parameters if strict else _closed_if_empty({"type": "object", **parameters})
        _check_type(schema, source)
        audited = await self._shapes.audit(schema, source, strict=bool(strict))
        await self._shapes.threads.run(lambda: _check_items(schema, source))
        return FunctionTool(name, description, parameters, bool(strict), audited.contract), audited


def _closed_if_empty(schema: dict[str, Any]) -> dict[str, Any]:
    """A function that declares that it has no parameters is given none."""
    if schema.keys() <= _SAYS_NO_PARAMETERS and schema.get("properties") == {}:
        return {**schema, "additionalProperties": False}
    return schema


_SAYS_NO_PARAMETERS = {"$schema", "type", "properties", "required", "title", "description"}


def _items(value: object) -> list[object]:
    if not isinstance(value, list):
        raise wrong_type("tools", "an array of objects", value)
    if not value:
        raise InvalidRequest(
            "Invalid 'tools': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead.",
            param="tools",
            code="empty_array",
        )
    if len(value) > MAX_TOOLS:
        raise InvalidRequest(
            f"Invalid 'tools': array too long. Expected an array with maximum length {MAX_TOOLS}, "
            f"but got an array with length {len(value)} instead.",
            param="tools",
            code="array_above_max_length",
        )
    return value


def _source(kind: str, name: str, at: str, dialect: ToolDialect) -> Source:
    if kind == "custom":
        return Source(f"{at}.format", f"grammar for custom tool '{name}'")
    return Source(
        f"{at}.{dialect.schema}", f"schema for function '{name}'", code="invalid_function_parameters"
    )


def _renamed(given: dict[str, Any], dialect: ToolDialect) -> dict[str, Any]:
    return {"parameters" if key == dialect.schema else key: value for key, value in given.items()}


def _name(name: object, at: str) -> str:
    if name is None:
        raise missing(at)
    if not isinstance(name, str):
        raise wrong_type(at, "a string", name)
    if len(name) > MAX_NAME:
        raise InvalidRequest(
            f"Invalid '{at}': string too long. Expected a string with maximum length {MAX_NAME}, "
            f"but got a string with length {len(name)} instead.",
            param=at,
            code="string_above_max_length",
        )
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"Invalid '{at}': string does not match pattern. Expected a string that matches the pattern "
            f"'^{_NAME.pattern}$'.",
            param=at,
        )
    return name


def _description(given: Mapping[str, object], at: str) -> str | None:
    description = given.get("description")
    if not isinstance(description, str | None):
        raise wrong_type(f"{at}.description", "a string", description)
    return description


def _check_type(schema: Mapping[str, object], source: Source) -> None:
    kind = schema.get("type")
    if kind != "object":
        raise source.refused(
            StrictViolation(
                None, f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
            )
        )


def _check_items(schema: Mapping[str, object], source: Source) -> None:
    try:
        openai_strict.check_parameters(schema)
    except StrictViolation as violation:
        raise source.refused(violation) from None


def _custom(name: str, given: Mapping[str, object], at: str, dialect: ToolDialect) -> CustomTool:
    _no_others(given, at, {"name", "description", "format"})
    form = _input(given.get("format"), f"{at}.format", nested=dialect.nested_grammar)
    return CustomTool(name, _description(given, at), form)


def _input(value: object, at: str, *, nested: bool) -> FreeText | Lark | Regex:
    """`{"type": "text"}`, or `{"type": "grammar", "grammar": {"syntax": …, "definition": …}}`, the inner object `nested` or
    not; text if absent."""
    if value is None:
        return FreeText()
    form = _object(value, at)
    kind = form.get("type")
    if kind == "text":
        _no_others(form, at, {"type"})
        return FreeText()
    if kind != "grammar":
        raise _not_one_of(kind, ("text", "grammar"), f"{at}.type")
    if nested:
        _no_others(form, at, {"type", "grammar"})
        grammar, at = _object(form.get("grammar"), f"{at}.grammar"), f"{at}.grammar"
    else:
        grammar = {key: given for key, given in form.items() if key != "type"}
    _no_others(grammar, at, {"syntax", "definition"})
    definition = grammar.get("definition")
    if not isinstance(definition, str):
        at = f"{at}.definition"
        raise missing(at) if definition is None else wrong_type(at, "a string", definition)
    syntax = grammar.get("syntax")
    if syntax not in ("lark", "regex"):
        raise _not_one_of(syntax, ("lark", "regex"), f"{at}.syntax")
    return Lark(definition) if syntax == "lark" else Regex(definition)


def _not_one_of(value: object, supported: tuple[str, str], at: str) -> InvalidRequest:
    if value is None:
        return missing(at)
    return InvalidRequest(
        f"Invalid value: '{str(value)[:50]}'. Supported values are: '{supported[0]}' and '{supported[1]}'.",
        param=at,
    )


def _object(value: object, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise missing(at) if value is None else wrong_type(at, "an object", value)
    return value


def _no_others(given: Mapping[str, object], at: str, known: set[str]) -> None:
    for field in given:
        if field not in known and given[field] is not None:
            raise unknown(f"{at}.{field}")
