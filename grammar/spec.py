"""What an answer has to look like: one tree of nodes for every way a client can say it. Pure, frozen, hashable.

A grammar is a node. Schemas, regular expressions, grammars in EBNF or Lark and lists of choices are leaves; tool calls
and reasoning are trees that put leaves, fixed text and free text together. The same tree goes to every backend, and its
encoding is the key under which a compiled grammar is kept.
"""

from __future__ import annotations

import hashlib
from typing import Literal as OneOf
from typing import Union

import msgspec

Whitespace = OneOf["compact", "flexible"]
"""`compact`: exactly ", " between items and ": " after keys, no other blanks, so that most punctuation is forced.
`flexible`: up to two blanks or line breaks wherever JSON allows them. Neither lets a model emit blanks for ever."""

BackendName = OneOf["llguidance", "xgrammar", "outlines"]


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema", omit_defaults=True):
    """JSON text of values that satisfy a schema, object keys in the order of the schema.

    `schema` is JSON text: already normalised, every keyword in it enforced by each of `backends` (best first).
    """

    schema: str
    whitespace: Whitespace = "compact"
    backends: tuple[BackendName, ...] = ("llguidance",)


class Regex(msgspec.Struct, frozen=True, tag="regex"):
    """Text that the pattern matches from its first to its last character.

    Syntax: https://docs.rs/regex, with `\\d` and `\\w` for ASCII only. No lookaround, no references back.
    """

    pattern: str


class Ebnf(msgspec.Struct, frozen=True, tag="ebnf"):
    """Text of the rule `root` of a grammar as llama.cpp (GBNF) and xgrammar write it."""

    text: str


class Lark(msgspec.Struct, frozen=True, tag="lark"):
    """Text of the rule `start` of a Lark grammar, as llguidance reads it. Names no special token."""

    text: str


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """One of these texts."""

    options: tuple[str, ...]


class Literal(msgspec.Struct, frozen=True, tag="literal"):
    """Exactly this text. Special tokens do not spell it."""

    text: str


class Marker(msgspec.Struct, frozen=True, tag="marker"):
    """A mark of a model's own format: its special token where the vocabulary has one of that text, else the text."""

    text: str


class FreeText(msgspec.Struct, frozen=True, tag="free_text", omit_defaults=True):
    """Any text, empty too, in which none of these strings occurs, neither spelled nor as a special token.

    What follows in a tree, if anything does, begins with one of them or with a special token; the text ends there. No
    special token is part of it.
    """

    without: tuple[str, ...] = ()


class Concat(msgspec.Struct, frozen=True, tag="concat"):
    """The parts, one after the other."""

    parts: tuple[Grammar, ...]


class Either(msgspec.Struct, frozen=True, tag="either"):
    """One of the options."""

    options: tuple[Grammar, ...]


class Repeat(msgspec.Struct, frozen=True, tag="repeat", omit_defaults=True):
    """The part, `least` to `most` times (None: any number), with `between` between two of them."""

    part: Grammar
    least: int = 0
    most: int | None = None
    between: str = ""


Grammar = Union[  # noqa: UP007 - msgspec resolves the recursive names by it
    JsonSchema, Regex, Ebnf, Lark, Choice, Literal, Marker, FreeText, Concat, Either, Repeat
]

ANY_OBJECT = JsonSchema('{"type":"object"}')
"""What OpenAI's `json_object` means: some JSON object."""

_encoder = msgspec.msgpack.Encoder()


def encoded(grammar: Grammar) -> bytes:
    """The grammar as one msgpack value: equal for equal grammars. Its length is what limits count."""
    return _encoder.encode(grammar)


def digest(grammar: Grammar) -> bytes:
    """32 bytes that name a grammar: what compiled grammars are kept under."""
    return hashlib.sha256(encoded(grammar)).digest()
