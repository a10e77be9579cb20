"""The fields of a request that ask for a shape, and the one wish they come down to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field, WithJsonSchema

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

    response_format: Object = Field(None, description="text, json_object, json_schema or structural_tag")
    structured_outputs: Object = Field(
        None, description="vLLM's: one of json, regex, choice, grammar, json_object, structural_tag"
    )
    guided_json: ObjectOrText = Field(None, description="vLLM's, before 0.12: a JSON schema")
    guided_regex: Text = Field(None, description="vLLM's, before 0.12: a pattern for the whole answer")
    guided_choice: Texts = Field(None, description="vLLM's, before 0.12: the answer is one of these")
    guided_grammar: Text = Field(None, description="vLLM's, before 0.12: EBNF or Lark")
    guided_whitespace_pattern: Text = Field(None, description="with guided_json: none, or one blank")
    guided_decoding_backend: Text = Field(None, description="decides nothing here")
    regex: Text = Field(None, description="SGLang's: a pattern for the whole answer")
    ebnf: Text = Field(None, description="SGLang's: a grammar with the rule root")
    json_schema: ObjectOrText = Field(None, description="SGLang's and llama.cpp's")
    structural_tag: ObjectOrText = Field(None, description="SGLang's")
    grammar: Text = Field(None, description="llama.cpp's: GBNF with the rule root")
    format: ObjectOrText = Field(None, description="Ollama's: 'json' or a JSON schema")

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
