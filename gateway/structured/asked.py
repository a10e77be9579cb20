"""The fields of a request that ask for a shape, and the one wish they come down to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import WithJsonSchema

from ..errors import InvalidRequest
from ..openai.fields import Wire
from . import peers, response_format
from .wishes import Wish

_OBJECT = {"type": "object"}
_STRING = {"type": "string"}
_OBJECT_OR_STRING = {"anyOf": [_OBJECT, _STRING]}

Object = Annotated[object, WithJsonSchema(_OBJECT)]
Text = Annotated[object, WithJsonSchema(_STRING)]
Texts = Annotated[object, WithJsonSchema({"type": "array", "items": _STRING})]
ObjectOrText = Annotated[object, WithJsonSchema(_OBJECT_OR_STRING)]


class ShapeFields(Wire):
    """OpenAI's `response_format`, and what vLLM, SGLang, llama.cpp and Ollama have for the same. At most one asks for
    something."""

    response_format: Object = None
    structured_outputs: Object = None
    guided_json: ObjectOrText = None
    guided_regex: Text = None
    guided_choice: Texts = None
    guided_grammar: Text = None
    guided_whitespace_pattern: Text = None
    guided_decoding_backend: Text = None
    regex: Text = None
    ebnf: Text = None
    json_schema: ObjectOrText = None
    structural_tag: ObjectOrText = None
    grammar: Text = None
    format: ObjectOrText = None

    @property
    def asks(self) -> bool:
        """Whether any of the fields is there. Without one there is no wish."""
        return any(getattr(self, name) is not None for name in ShapeFields.model_fields)

    def wish(self) -> Wish | None:
        """What is asked for; None for a free answer. Takes milliseconds for large grammars and schemas.

        Raises InvalidRequest, naming both fields if two ask.
        """
        wishes = [wish for name, read in _READERS.items() if (wish := self._read(name, read)) is not None]
        if len(wishes) > 1:
            first, second = (wish.source.param for wish in wishes[:2])
            raise InvalidRequest(
                f"'{first}' and '{second}' both say what the answer has to look like; send one of them.",
                param=second,
                code="conflicting_parameters",
            )
        peers.check_guided_options(
            backend=self.guided_decoding_backend,
            whitespace=self.guided_whitespace_pattern,
            has_json=self.guided_json is not None,
        )
        return wishes[0] if wishes else None

    def _read(self, name: str, read: Callable[[object, str], Wish | None]) -> Wish | None:
        value = getattr(self, name)
        return None if value is None else read(value, name)


_READERS: dict[str, Callable[[object, str], Wish | None]] = {
    "response_format": response_format.read,
    "structured_outputs": peers.structured_outputs,
    "guided_json": peers.json_schema,
    "guided_regex": peers.regex,
    "guided_choice": peers.choice,
    "guided_grammar": peers.grammar,
    "regex": peers.regex,
    "ebnf": peers.ebnf,
    "json_schema": peers.json_schema,
    "structural_tag": peers.structural_tag,
    "grammar": peers.ebnf,
    "format": peers.ollama_format,
}
