"""How the models of one family write a reply: a description that both the grammar and the parser are made from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from grammar.spec import Marker

from .arguments.style import Style
from .shapes import BARE, Frame, Shape, Slot, bracketed, marker_texts

THINK: Final = Frame((Marker("<think>"),), (Marker("</think>"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A format of replies.

    `call` holds NAME and then ARGUMENTS, which `style` writes. What is before ARGUMENTS says which tool is called, what
    is after them ends the call; a call without an end is over with its arguments. `spellings` are other beginnings of
    the same that models use. `identity` is what the format calls a call by, if it does: a template for NAME and NUMBER.
    `section` is around a run of calls, `between` between two of them; `several`: a reply may hold more than one.
    `alone`: calls come at the beginning of a reply or not at all, and what does not begin with one is text.
    `preamble`: how many characters of text may come before a call that is required; 0 for models that call at once.
    `text` is around the answer, `aside` around text before calls (often the same), and `tail` ends every reply.
    `thoughts` is around reasoning; None for models that do not think. `ends` are special tokens that may end a reply.
    """

    name: str
    call: Shape
    style: Style
    spellings: tuple[Shape, ...] = ()
    identity: str | None = None
    section: Frame = BARE
    between: str = ""
    several: bool = True
    alone: bool = False
    preamble: int = 0
    text: Frame = BARE
    aside: Frame = BARE
    tail: Shape = ()
    thoughts: Frame | None = THINK
    ends: tuple[str, ...] = ()

    def thinking(self, begin: str, end: str) -> Family:
        """The same with other marks around reasoning."""
        return replace(self, thoughts=Frame((Marker(begin),), (Marker(end),)))

    @property
    def framed(self) -> bool:
        """Text is marked as such, so that marks may come wherever it ends."""
        return self.text != BARE

    @property
    def heads(self) -> tuple[Shape, ...]:
        """Everything before the arguments, in each spelling, the one we prefer first."""
        return tuple(shape[: shape.index(Slot.ARGUMENTS)] for shape in (self.call, *self.spellings))

    @property
    def foot(self) -> Shape:
        """Everything after the arguments."""
        return self.call[self.call.index(Slot.ARGUMENTS) + 1 :]

    @property
    def marks(self) -> tuple[str, ...]:
        """Every mark of the format, each once."""
        return tuple(dict.fromkeys((*marker_texts(*self._shapes()), *self.ends)))

    @property
    def forbidden(self) -> tuple[str, ...]:
        """What free text must not contain: the marks, with their brackets where those stand apart."""
        return tuple(dict.fromkeys((*bracketed(*self._shapes()), *self.ends)))

    def _shapes(self) -> list[Shape]:
        shapes = [self.call, *self.spellings, self.tail, *self.style.shapes]
        for frame in (self.section, self.text, self.aside, self.thoughts or BARE):
            shapes += [frame.open, frame.close]
        return shapes
