"""A reply taken apart as it arrives: reasoning, text, calls.

Made from the same description as the grammar, so that what the grammar allows is what is read. Blanks between the pieces
of a call are read generously, for replies that no grammar has shaped.

Nothing is held back but what may still turn out to be part of a mark, and blanks that may turn out to stand beside a call.
What does not become a call is text. A call that was begun and cannot be read on has no end; what follows it is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Final
from typing import Literal as OneOf

from grammar.spec import Lark, Marker

from .arguments.custom import Unwrap, as_function
from .arguments.style import ToolShape
from .family import Family
from .shapes import Slot
from .source import Marks, Out, Reading, Source, Words, blanks, run, word, words


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """`id` is what the format itself calls the call by, None if it does not. `index` counts from 0."""

    index: int
    name: str
    id: str | None
    kind: OneOf["function", "custom"]


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the call's JSON arguments, or of the input of a custom tool."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnds:
    """The call is whole. A call without it was cut short."""

    index: int


Part = Content | Reasoning | CallBegins | Arguments | CallEnds


@dataclass(frozen=True, slots=True)
class Special:
    """A special token of the vocabulary, by its text."""

    text: str


_MOST_BLANKS: Final = 256
"""That are held back before what may be a call."""

_TELLING: Final = 4
"""Characters of a mark at the end of a reply that was cut off, from which on they are taken for one."""

_DIGITS = re.compile("[0-9]{,9}")


@dataclass(frozen=True, slots=True)
class _Found:
    tool: ToolShape
    number: str
    offset: int


class ReplyParser:
    """One reply. `feed` takes pieces of its text and the special tokens in it; `finish` says that it has ended.

    `specials` are the texts of the vocabulary's special tokens: a mark among them is recognised as a `Special` only, the
    others as text. Special tokens that are no marks of the family are no text and are passed over. `tools` are the ones
    that may be called; without any, calls are text. `reasoning` as in `structure`. `must`: the reply has to call one, so
    that whatever looks like the beginning of a mark is one.
    """

    def __init__(
        self,
        family: Family,
        tools: Sequence[ToolShape],
        *,
        specials: Collection[str] = (),
        reasoning: OneOf["off", "open", "optional"] = "off",
        must: bool = False,
    ) -> None:
        self._family = family
        self._telling = 1 if must else _TELLING
        self._tools = {tool.name: tool for tool in tools}
        self._marks = Marks(family.marks, specials)
        self._source = Source()
        self._parts: list[Part] = []
        self._calls = 0
        self._stopped = True
        self._cut = False
        self._after_format = False
        self._thoughts = None if reasoning == "off" else family.thoughts
        self._heads = [self._marks.words(head) for head in family.heads] if tools else []
        self._names = _names(self._tools)
        self._skips = self._skipped()
        self._triggers = self._first_words()
        self._first = re.compile("|".join(map(re.escape, self._triggers))) if self._triggers else None
        self._run: Generator[None, None, None] | None = self._reply(inside=reasoning == "open")
        next(self._run)

    @property
    def marks(self) -> frozenset[str]:
        """The special tokens that mean something here."""
        return self._marks.special

    @property
    def held(self) -> int:
        """Characters that nothing has been made of yet; a mark that is a special token counts as one."""
        return len(self._source.text) - self._source.at

    def feed(self, piece: str | Special) -> list[Part]:
        """What has become certain."""
        text = self._marks.character(piece.text) if isinstance(piece, Special) else piece
        if text and self._run is not None:
            self._source.push(text)
            next(self._run)
        return self._taken()

    def finish(self, *, stopped: bool = True) -> list[Part]:
        """What was held back. `stopped`: the model ended the reply, rather than being cut off."""
        if self._run is not None:
            self._source.push("")
            self._source.ended = True
            self._stopped = stopped
            next(self._run, None)
            self._run = None
        return self._taken()

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _put(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        if not text:
            return
        text = self._marks.text(text)
        if self._parts and isinstance(last := self._parts[-1], kind):
            self._parts[-1] = kind(last.text + text)
        else:
            self._parts.append(kind(text))

    def _argument_out(self, index: int) -> Out:
        def out(text: str) -> None:
            if not text:
                return
            text = self._marks.text(text)
            if self._parts and isinstance(last := self._parts[-1], Arguments):
                self._parts[-1] = Arguments(index, last.text + text)
            else:
                self._parts.append(Arguments(index, text))

        return out

    # -- the reply -----------------------------------------------------------------------------------------------------

    def _reply(self, *, inside: bool) -> Generator[None, None, None]:
        yield  # the first feed
        if inside:
            yield from self._think()
        elif self._thoughts is not None and not self._family.framed:
            offset = yield from words(self._source, self._marks.words(self._thoughts.open))
            if offset >= 0:
                self._source.take(offset)
                yield from self._think()
        if self._family.alone:
            yield from self._alone()
        source = self._source
        while not (self._cut or (source.ended and source.at == len(source.text))):
            yield from self._text()

    def _think(self) -> Reading[None]:
        assert self._thoughts is not None
        texts = self._marks.words(self._thoughts.close)
        first = str(texts[0])
        source = self._source
        while True:
            found = source.text.find(first, source.at)
            if found < 0:
                held = 0 if source.ended else _beginning(source.text, source.at, (first,))
                self._put(Reasoning, source.take(len(source.text) - source.at - held))
                if source.ended:
                    return
                yield
                continue
            self._put(Reasoning, source.take(found - source.at))
            offset = yield from words(source, texts)
            if offset >= 0:
                source.take(offset)
                self._after_format = True
                return
            self._put(Reasoning, source.take(1))

    def _alone(self) -> Reading[None]:
        """Calls where the reply begins, or none at all."""
        source = self._source
        yield from self._opens((yield from blanks(source)))
        self._first = None

    # -- text and what ends it -----------------------------------------------------------------------------------------

    def _text(self) -> Reading[None]:
        """Text up to the next opening, and what opens there. Blanks beside it go with it."""
        source = self._source
        while (match := None if self._first is None else self._first.search(source.text, source.at)) is None:
            self._text_out(self._certain())
            if source.ended:
                self._cut = True
                return
            yield
        before = match.start() - source.at
        bare = len(source.text[source.at : match.start()].rstrip(" \t\r\n"))
        self._text_out(bare)
        offset = before - bare
        if not (yield from self._opens(offset)):
            self._after_format = False
            self._put(Content, source.take(offset + 1))

    def _certain(self) -> int:
        """How many characters are text whatever comes."""
        source = self._source
        there = len(source.text) - source.at
        if source.ended:
            held = 0 if self._stopped else _beginning(source.text, source.at, self._triggers)
            return there - held if held >= self._telling else there
        if self._first is None and not self._after_format:
            return there
        held = 0 if self._first is None else _beginning(source.text, source.at, self._triggers)
        end = len(source.text) - held
        bare = len(source.text[max(source.at, end - _MOST_BLANKS) : end].rstrip(" \t\r\n"))
        return max(source.at, end - _MOST_BLANKS) + bare - source.at

    def _text_out(self, count: int) -> None:
        """Blanks behind what is no text go with it; at the end of a reply with calls too."""
        source = self._source
        text = source.take(count)
        if self._after_format:
            text = text.lstrip(" \t\r\n")
            if not text:
                return
            self._after_format = False
        self._put(Content, text)

    def _opens(self, offset: int) -> Reading[bool]:
        """The same as `_opening`; also true for what was cut off in the middle of its opening, which nobody is shown."""
        source = self._source
        source.short = False
        if (yield from self._opening(offset)):
            return True
        self._cut = source.ended and not self._stopped and source.short
        return self._cut

    def _opening(self, offset: int) -> Reading[bool]:
        """Read on from what opens at the offset: thoughts, calls, a mark around text. False, and nothing taken, if none does."""
        source = self._source
        if self._thoughts is not None and self._family.framed:
            end = yield from words(source, self._marks.words(self._thoughts.open), offset)
            if end >= 0:
                source.take(end)
                yield from self._think()
                return True
        for skip in self._skips:
            end = yield from words(source, skip, offset)
            if end >= 0:
                self._text_out(offset)
                source.take(end - offset)
                return True
        return (yield from self._section(offset))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _section(self, offset: int) -> Reading[bool]:
        """A run of calls, if one begins at the offset."""
        if not self._heads:
            return False
        section = self._family.section
        offset = yield from words(self._source, self._marks.words(section.open), offset)
        found = None if offset < 0 else (yield from self._head(offset))
        if found is None:
            return False
        between = self._marks.words((self._family.between,))
        while found is not None:
            if not (yield from self._call(found)):
                return True
            offset = yield from words(self._source, between)
            found = None if offset < 0 else (yield from self._head(offset))
        yield from self._over(self._marks.words(section.close))
        return True

    def _head(self, offset: int) -> Reading[_Found | None]:
        for head in self._heads:
            found = yield from self._head_in(head, offset)
            if found is not None:
                return found
        return None

    def _head_in(self, head: Words, offset: int) -> Reading[_Found | None]:
        source = self._source
        tool: ToolShape | None = None
        number = ""
        offset = yield from blanks(source, offset)
        for piece in head:
            if piece is Slot.NAME:
                end = yield from run(source, self._names, offset)
                tool = self._tools.get(source.text[source.at + offset : source.at + end])
                if tool is None:
                    return None
            elif piece is Slot.NUMBER:
                end = yield from run(source, _DIGITS, offset)
                number = source.text[source.at + offset : source.at + end]
            else:
                assert isinstance(piece, str)
                end = yield from words(source, (piece,), offset)
            if end < 0:
                return None
            offset = end
        assert tool is not None
        if isinstance(tool.custom, Lark):
            offset = max(offset, (yield from word(source, _last_blanks(self._family), offset)))
        elif self._family.style.opening:
            end = yield from words(source, (self._family.style.opening,), offset)
            if end < 0:
                return None
        return _Found(tool, number, offset)

    def _call(self, found: _Found) -> Reading[bool]:
        """The call behind its head. False if it is not whole."""
        source, tool, index = self._source, found.tool, self._calls
        self._calls += 1
        source.take(found.offset)
        identity = self._family.identity
        id_ = None if identity is None else identity.format(name=tool.name, number=found.number)
        self._parts.append(CallBegins(index, tool.name, id_, "function" if tool.custom is None else "custom"))
        self._after_format = True
        out = self._argument_out(index)
        if isinstance(tool.custom, Lark):
            if not (yield from self._raw(out)):
                return False
        elif not (yield from self._arguments(tool, out)):
            self._after_format = False
            return False
        self._parts.append(CallEnds(index))
        return True

    def _arguments(self, tool: ToolShape, out: Out) -> Reading[bool]:
        source = self._source
        put: Callable[[str], None] = out if tool.custom is None else Unwrap(out)
        if not (yield from self._family.style.read(source, as_function(tool), self._marks, put)):
            return False
        return (yield from self._over(self._marks.words(self._family.foot)))

    def _over(self, texts: Words) -> Reading[bool]:
        """Take what ends something. A reply that ends in the middle of that has ended it, if it was not cut off."""
        source = self._source
        offset = yield from words(source, texts)
        if offset >= 0:
            source.take(offset)
            return True
        rest = source.text[source.at :]
        if source.ended and "".join(map(str, texts)).replace(" ", "").startswith("".join(rest.split())):
            source.rest()
            return self._stopped
        return False

    def _raw(self, out: Out) -> Reading[bool]:
        """Everything to the end of the reply is the input."""
        source = self._source
        while not source.ended:
            out(source.rest())
            yield
        out(source.rest())
        return self._stopped

    # -- made once -----------------------------------------------------------------------------------------------------

    def _skipped(self) -> list[Words]:
        """Marks that say what follows and are nothing themselves."""
        family = self._family
        shapes = [family.text.open, family.text.close, family.aside.open, family.aside.close, family.tail]
        shapes += [(Marker(end),) for end in family.ends]
        unique = dict.fromkeys(self._marks.words(shape) for shape in shapes)
        return [skip for skip in unique if skip]

    def _first_words(self) -> tuple[str, ...]:
        """What anything that may open begins with."""
        firsts = [skip[0] for skip in self._skips]
        if self._thoughts is not None and self._family.framed:
            firsts += self._marks.words(self._thoughts.open)[:1]
        section = self._marks.words(self._family.section.open)
        firsts += [(*section, *head)[0] for head in self._heads]
        return tuple(dict.fromkeys(first for first in firsts if isinstance(first, str)))


def _last_blanks(family: Family) -> str:
    """The blanks right before arguments. Those behind them belong to an input that is written as it is."""
    last = family.heads[0][-1]
    return last[len(last.rstrip()) :] if isinstance(last, str) else ""


def _names(tools: Collection[str]) -> re.Pattern[str]:
    """Characters that names are made of, one more than the longest name has."""
    letters = re.escape("".join(sorted(set().union(*tools))))
    return re.compile(f"[{letters}]{{,{1 + max(map(len, tools))}}}" if letters else "")


def _beginning(text: str, start: int, whole: Sequence[str]) -> int:
    """The length of the longest end of the text that is a proper beginning of one of these."""
    most = min(len(text) - start, max((len(one) for one in whole), default=0))
    for length in range(most, 0, -1):
        end = text[-length:]
        if any(len(one) > length and one.startswith(end) for one in whole):
            return length
    return 0
