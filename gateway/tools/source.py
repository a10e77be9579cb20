"""The text of a reply as it arrives, for readers that wait in the middle of it.

A reader is a generator: it looks at what is there, takes what is certain, and yields to wait for more. A special token is
one character, a lone surrogate, which no text holds; so a mark that is a special token and the same mark spelled in
letters never look alike. Readers look ahead by *offsets* from the place they are at, which stay right while they wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Sequence
from typing import TypeVar

from grammar.spec import Marker

from .shapes import Shape, Slot

T = TypeVar("T")
Reading = Generator[None, None, T]
Out = Callable[[str], None]
"""Takes pieces of JSON text."""

_BLANKS = re.compile(r"[ \t\r\n]*")
_FIRST_SPECIAL = 0xD800
SPECIAL = "\ud800-\udfff"
"""The characters of special tokens, for character classes."""


class Source:
    """`text` from `at` on has not been taken yet. `ended`: no more will come. `short`: a reader looked for more than came."""

    __slots__ = ("at", "ended", "short", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.short = False

    def push(self, piece: str) -> None:
        self.text = self.text[self.at :] + piece
        self.at = 0

    def take(self, count: int) -> str:
        """The next `count` characters."""
        taken = self.text[self.at : self.at + count]
        self.at += count
        return taken

    def rest(self) -> str:
        """All that is there."""
        return self.take(len(self.text) - self.at)


class Marks:
    """Which of a format's marks are special tokens, and the characters that stand for them."""

    __slots__ = ("_characters", "_texts")

    def __init__(self, texts: Collection[str], specials: Collection[str]) -> None:
        special = [text for text in texts if text in specials]
        self._characters = {text: chr(_FIRST_SPECIAL + i) for i, text in enumerate(special)}
        self._texts = {character: text for text, character in self._characters.items()}

    @property
    def special(self) -> frozenset[str]:
        return frozenset(self._characters)

    def character(self, special: str) -> str:
        """The character for a special token, none for one that is no mark."""
        return self._characters.get(special, "")

    def spelled(self, mark: str) -> str:
        """How the mark looks in a source."""
        return self._characters.get(mark, mark)

    def text(self, source_text: str) -> str:
        """Text of a source for people, with special tokens in letters."""
        if source_text.isascii():
            return source_text
        return "".join([self._texts.get(character, character) for character in source_text])

    def words(self, shape: Shape) -> Words:
        """The shape as it is looked for: texts that may have blanks before them, and slots."""
        words: list[str | Slot] = []
        for piece in shape:
            if isinstance(piece, Slot):
                words.append(piece)
            elif isinstance(piece, Marker):
                words.append(self.spelled(piece.text))
            else:
                words.extend(piece.split())
        return tuple(words)


Words = tuple[str | Slot, ...]


def blanks(source: Source, offset: int = 0) -> Reading[int]:
    """The offset behind any blanks. Waits until something else comes, or the end."""
    while True:
        match = _BLANKS.match(source.text, source.at + offset)
        assert match is not None
        offset = match.end() - source.at
        if match.end() < len(source.text) or source.ended:
            return offset
        yield


def word(source: Source, text: str, offset: int = 0) -> Reading[int]:
    """The offset behind this text; -1 if something else is there."""
    while True:
        start = source.at + offset
        if source.text.startswith(text, start):
            return offset + len(text)
        begins = text.startswith(source.text[start:])
        if source.ended or not begins:
            source.short |= begins
            return -1
        yield


def upto(source: Source, text: str, offset: int, most: int) -> Reading[int]:
    """The offset of a text that comes after at most so many characters; -1 if it does not."""
    while True:
        start = source.at + offset
        at = source.text.find(text, start, start + most + len(text))
        if at >= 0:
            return at - source.at
        if source.ended or len(source.text) - start >= most + len(text):
            return -1
        yield


def words(source: Source, texts: Sequence[str | Slot], offset: int = 0) -> Reading[int]:
    """The offset behind these texts, each with any blanks before it; -1 if something else is there."""
    for text in texts:
        assert isinstance(text, str), text
        offset = yield from blanks(source, offset)
        offset = yield from word(source, text, offset)
        if offset < 0:
            return -1
    return offset


def run(source: Source, characters: re.Pattern[str], offset: int) -> Reading[int]:
    """The offset behind as many of the characters as the pattern takes."""
    while True:
        match = characters.match(source.text, source.at + offset)
        assert match is not None
        if match.end() < len(source.text):
            return match.end() - source.at
        if source.ended:
            source.short = True
            return match.end() - source.at
        yield
