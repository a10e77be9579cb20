"""The fields by which clients of vLLM, SGLang, llama.cpp and Ollama ask for a shape. All of it is enforced, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import orjson

from grammar.errors import BadGrammar
from grammar.limits import MAX_TEXT_BYTES, check_schema
from grammar.spec import Choice, Ebnf, Lark, Regex

from ..errors import InvalidRequest, unsupported
from ..openai.fields import wrong_type
from .closed import closed
from .source import Source
from .wishes import GrammarWish, SchemaWish, TagWish, Wish

BACKENDS = ("auto", "guidance", "lm-format-enforcer", "outlines", "xgrammar")
"""What vLLM's clients may name. Here the schema decides, and what is promised is the same whichever it is."""

WHITESPACE = frozenset(
    {"[ ]?", " ?", "[ ]*", " *", r"\s*", r"\s?", r"[\n ]*", r"[ \n]*", r"[\n\t ]*", r"[ \t\n]*", r"[ \n\t]*"}
)
"""Patterns that allow no blank and one blank: what is written anyway, none but one behind each `,` and `:`."""


def json_schema(value: object, param: str, *, reported: str | None = None) -> SchemaWish:
    """A schema, or one as JSON text. `reported` is the field errors name, if it is another."""
    field = reported or param
    schema = _parsed(value, param, field) if isinstance(value, str) else value
    if not isinstance(schema, dict):
        raise InvalidRequest(
            f"Invalid type for '{param}': expected a JSON schema, an object or its JSON text.",
            param=field,
            code="invalid_type",
        )
    return SchemaWish(Source(field, f"schema in '{param}'", "invalid_json_schema"), schema, "enforced")


def regex(value: object, param: str) -> GrammarWish:
    return GrammarWish(Source(param, f"pattern in '{param}'"), Regex(_text(value, param)))


def choice(value: object, param: str) -> GrammarWish:
    if not isinstance(value, list):
        raise wrong_type(param, "an array of strings", value)
    if not value:
        raise InvalidRequest(f"Invalid '{param}': empty array.", param=param, code="empty_array")
    for position, option in enumerate(value):
        if not isinstance(option, str):
            raise wrong_type(f"{param}[{position}]", "a string", option)
    return GrammarWish(Source(param, f"choices in '{param}'"), Choice(tuple(dict.fromkeys(value))))


def ebnf(value: object, param: str) -> GrammarWish:
    return GrammarWish(Source(param, f"grammar in '{param}'"), Ebnf(_text(value, param)))


def grammar(value: object, param: str) -> GrammarWish:
    """vLLM's: EBNF if any line defines a rule the way EBNF does (`::=`), Lark otherwise."""
    text = _text(value, param)
    return GrammarWish(Source(param, f"grammar in '{param}'"), Ebnf(text) if _is_ebnf(text) else Lark(text))


def structural_tag(value: object, param: str) -> TagWish:
    """A structural tag, or one as JSON text."""
    tag = _parsed(value, param, param) if isinstance(value, str) else value
    if not isinstance(tag, dict):
        raise wrong_type(param, "an object", tag)
    return TagWish(Source(param, f"structural tag in '{param}'"), tag)


def ollama_format(value: object, param: str) -> SchemaWish:
    """`"json"` or a schema."""
    if value == "json":
        return SchemaWish(Source(param, param), {"type": "object"}, "enforced")
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"Invalid '{param}': expected \"json\" or a JSON schema, which is an object.", param=param
        )
    return json_schema(value, param)


def structured_outputs(value: object, param: str) -> Wish:
    """vLLM's: one kind of constraint, and options for it."""
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    asked = {key: given for key, given in value.items() if given is not None}
    for key in asked.keys() - _KINDS.keys() - _OPTIONS:
        raise InvalidRequest(
            f"Unknown parameter: '{param}.{key[:100]}'.",
            param=f"{param}.{key[:100]}",
            code="unknown_parameter",
        )
    kinds = [key for key in _KINDS if key in asked and asked[key] is not False]
    if len(kinds) != 1:
        raise _not_one(kinds, param)
    field = f"{param}.{kinds[0]}"
    wish = _KINDS[kinds[0]](asked[kinds[0]], field)
    options = {key: asked[key] for key in _OPTIONS & asked.keys()}
    _check_whitespace(options.pop("whitespace_pattern", None), f"{param}.whitespace_pattern")
    for key, given in options.items():
        if not isinstance(given, bool):
            raise wrong_type(f"{param}.{key}", "a boolean", given)
    return _with_options(wish, options)


def check_guided_options(*, backend: object, whitespace: object, has_json: bool) -> None:
    """vLLM's old fields beside `guided_…`. Raises InvalidRequest."""
    if backend is not None and (not isinstance(backend, str) or backend.partition(":")[0] not in BACKENDS):
        raise InvalidRequest(
            f"Invalid 'guided_decoding_backend': expected one of {', '.join(BACKENDS)}.",
            param="guided_decoding_backend",
        )
    if whitespace is not None and not has_json:
        raise InvalidRequest(
            "The 'guided_whitespace_pattern' parameter is only allowed with 'guided_json'.",
            param="guided_whitespace_pattern",
        )
    _check_whitespace(whitespace, "guided_whitespace_pattern")


def _json_object(value: object, param: str) -> SchemaWish:
    if value is not True:
        raise wrong_type(param, "a boolean", value)
    return SchemaWish(Source(param, param), {"type": "object"}, "enforced")


_KINDS: dict[str, Callable[[object, str], Wish]] = {
    "json": json_schema,
    "regex": regex,
    "choice": choice,
    "grammar": grammar,
    "json_object": _json_object,
    "structural_tag": structural_tag,
}
_OPTIONS = frozenset(
    {"disable_additional_properties", "disable_any_whitespace", "disable_fallback", "whitespace_pattern"}
)


def _with_options(wish: Wish, options: Mapping[str, object]) -> Wish:
    """Options say something about JSON only. Nothing ever falls back to less than was asked for."""
    if not isinstance(wish, SchemaWish):
        return wish
    schema = wish.schema
    if options.get("disable_additional_properties"):
        try:
            check_schema(schema)
            schema = closed(schema)
        except BadGrammar as error:
            raise wish.source.refused(error) from None
    flexible = options.get("disable_any_whitespace") is False
    return SchemaWish(wish.source, schema, wish.demand, "flexible" if flexible else "compact")


def _check_whitespace(pattern: object, param: str) -> None:
    if pattern is not None and pattern not in WHITESPACE:
        raise unsupported(param, "JSON is written with one blank behind ',' and ':' and no other")


def _not_one(kinds: list[str], param: str) -> InvalidRequest:
    if not kinds:
        return InvalidRequest(
            f"'{param}' asks for nothing: expected one of {', '.join(_KINDS)}.", param=param
        )
    return InvalidRequest(
        f"'{param}.{kinds[0]}' and '{param}.{kinds[1]}' both say what the answer has to look like; "
        "send one of them.",
        param=f"{param}.{kinds[1]}",
        code="conflicting_parameters",
    )


def _parsed(text: str, param: str, field: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"Invalid '{param}': not JSON: {error.msg} (character {error.pos}).", param=field
        ) from None


def _text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    if not value:
        raise InvalidRequest(f"Invalid '{param}': it is empty.", param=param)
    return value


_RULE_OUTSIDE_STRINGS = re.compile(r'"(?:[^"\\\n]|\\.)*"|(?:#|//)[^\n]*|(::=)')


def _is_ebnf(text: str) -> bool:
    if "::=" not in text or len(text) > MAX_TEXT_BYTES:  # which is refused as either
        return False
    return any(found[1] for found in _RULE_OUTSIDE_STRINGS.finditer(text))
