"""Random replies: what a grammar lets through, the parser reads into calls that fit; and no text makes it fail."""

from __future__ import annotations

import random
from collections.abc import Sequence

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.tools.families import FAMILIES
from gateway.tools.family import Family
from gateway.tools.parser import ReplyParser
from gateway.tools.structure import Mode, structure
from grammar.backends.base import Cursor

from .rendering import calls, fill
from .replies import SET_TEMP, Special, characters, put_together, read, tokens, tool
from .test_formats import backend, before, each_family, marks_are_tokens, specials_of

LIMITED = tool(
    "limited",
    {
        "kind": {"enum": ["x", "y z"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 20},
        "label": {"type": ["string", "null"], "maxLength": 4},
        "more": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    ["kind"],
)
TOOLS = [SET_TEMP, LIMITED, tool("ping", {})]
NAMES = [shape.name for shape in TOOLS]
MOST = 600


class Walker:
    """Picks tokens at random, with a liking for the beginning of a call and against rambling."""

    def __init__(self, family: Family, specials: Sequence[str], seed: int) -> None:
        self._specials = list(specials)
        self._random = random.Random(seed)
        call = calls(family, [(SET_TEMP, {"unit": "C", "on": True})])
        self._call = self._tokens(
            before(family) + fill(family.aside.open) + "Hm." + fill(family.aside.close) + call
        )
        self._bare = self._tokens(before(family) + call)
        self._ends = self._tokens(fill(family.tail) + fill(family.text.open) + fill(family.text.close))

    def _tokens(self, text: str) -> list[int]:
        found: list[int] = []
        for piece in tokens(text, self._specials):
            found += (
                [256 + self._specials.index(piece.text)] if isinstance(piece, Special) else piece.encode()
            )
        return found

    def walk(self, cursor: Cursor) -> tuple[list[int], bool]:
        """The tokens, and whether the reply is complete."""
        walked: list[int] = []
        row = np.zeros((256 + len(self._specials) + 31) // 32, dtype=np.int32)
        script = list(self._random.choice([self._call, self._bare, []]))[: self._random.randrange(1, 60)]
        while len(walked) < MOST:
            if cursor.accepting() and not script and self._random.random() < 0.3:
                return walked, True
            cursor.fill(row)
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            if not len(allowed):
                return walked, cursor.accepting()
            token = self._choose(allowed, script)
            assert cursor.accept(token)
            walked.append(token)
        return walked, cursor.accepting()

    def _choose(self, allowed: np.ndarray, script: list[int]) -> int:
        if script:
            token = script.pop(0)
            if token in allowed:
                return token
            script.clear()
        liked = [t for t in allowed if t >= 256 or t in b'"}])<>\n/,']
        if len(allowed) > 40 and liked and self._random.random() < 0.6:
            return int(self._random.choice(liked))
        plain = [t for t in allowed if t < 128]
        return int(self._random.choice(plain or list(allowed)))

    def pieces(self, walked: Sequence[int]) -> list[str | Special]:
        found: list[str | Special] = []
        text = bytearray()
        for token in walked:
            if token < 256:
                text.append(token)
                continue
            found += [text.decode(errors="ignore"), Special(self._specials[token - 256])]
            text.clear()
        return [piece for piece in (*found, text.decode(errors="ignore")) if piece]


@each_family
@marks_are_tokens
@pytest.mark.parametrize("mode", ["none", "auto", "required", "named"])
def test_what_the_grammar_lets_through_fits(family: Family, special: bool, mode: Mode) -> None:
    specials = specials_of(family, special)
    allowed = {"none": [], "named": ["limited"]}.get(mode, NAMES)
    compiled = backend(specials).compile(structure(family, TOOLS, mode=mode, allowed=allowed))
    finished = 0
    for seed in range(4):
        walker = Walker(family, specials, seed)
        walked, complete = walker.walk(compiled.start())
        pieces = walker.pieces(walked)
        reply = read(family, TOOLS, characters(pieces), specials=specials, stopped=complete)
        assert reply == read(family, TOOLS, pieces, specials=specials, stopped=complete)
        if mode == "none":
            assert reply.calls == []
        if not complete:
            continue
        finished += 1
        if mode in ("required", "named"):
            assert reply.calls
        if mode == "named":
            assert [call.name for call in reply.calls] == ["limited"]
            assert reply.content == ""
        for call in reply.calls:
            shape = next(shape for shape in TOOLS if shape.name == call.name)
            assert call.whole, pieces
            assert jsonschema_rs.is_valid(dict(shape.schema), call.value), pieces
    assert finished or mode != "named"


FRAGMENTS = st.sampled_from(
    [
        "a",
        " ",
        "\n",
        "{",
        "}",
        '"',
        "[",
        "]",
        "(",
        ")",
        "=",
        ",",
        ":",
        "<",
        ">",
        "/",
        "\\",
        "1",
        "true",
        "ping",
        "limited",
    ]
)


@each_family
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_text_is_read_without_loss_however_it_is_cut(family: Family, data: st.DataObject) -> None:
    specials = specials_of(family, data.draw(st.booleans()))
    call = calls(family, [(LIMITED, {"kind": "x", "label": "<b>"}), (TOOLS[2], {})])
    whole = tokens(before(family) + call + fill(family.tail), specials)
    letters = characters(whole)
    marks = st.sampled_from(list(family.marks) or ["?"]).map(lambda m: Special(m) if m in specials else m)
    noise = st.lists(FRAGMENTS | marks | st.sampled_from(letters), max_size=6)
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(letters)), st.integers(0, len(letters)))))
    text = [*data.draw(noise), *letters[start:end], *data.draw(noise), *letters[end:], *data.draw(noise)]
    reasoning = data.draw(st.sampled_from(["off", "open", "optional"]))
    stopped = data.draw(st.booleans())
    reply = read(family, TOOLS, text, specials=specials, reasoning=reasoning, stopped=stopped)
    joined = read(
        family, TOOLS, merged_at_random(data, text), specials=specials, reasoning=reasoning, stopped=stopped
    )
    assert joined == reply
    parser = ReplyParser(family, [], specials=specials)
    if not family.framed:
        plain = "".join(piece if isinstance(piece, str) else piece.text for piece in text)
        parts = [part for piece in text for part in parser.feed(piece)]
        assert put_together([*parts, *parser.finish()]).content == plain


def merged_at_random(data: st.DataObject, pieces: Sequence[str | Special]) -> list[str | Special]:
    merged: list[str | Special] = []
    for piece in pieces:
        if merged and isinstance(piece, str) and isinstance(merged[-1], str) and data.draw(st.booleans()):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def test_families_have_different_names() -> None:
    assert all(name == family.name for name, family in FAMILIES.items())
