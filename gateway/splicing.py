"""A conversation goes on with the token ids it had: what was generated is not tokenised again.

A model may spell a text otherwise than the tokenizer would, under a grammar most of all. If the next turn spelled it anew,
the prompt would part from what is cached, and the model would read something it never wrote. So the rendered text of a
turn is followed along the ids that are known of the turn before, which is the prompt and what was generated behind it. As
far as they spell it they are taken over; the rest is tokenised from there. Nothing here depends on what is cached.

Where the known ids and the text part, ids are taken over up to the last special token before: a message is the old one
whole, or it is tokenised anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Spliced:
    """`ids` spell the text; the first `known` of them were known. `parted`: the known ids say something else than the text
    from character `parted` on; None if all of them were followed, or the text merely ends their last message earlier."""

    ids: list[int]
    known: int
    parted: int | None


def splice(segments: Sequence[str | int], known: Sequence[int], tokenizer: Tokenizer) -> Spliced:
    """`segments` are a text cut at its special tokens, which are given by id. Raises TokenizerError."""
    trail = _Trail(segments, known, tokenizer)
    trail.follow()
    if not trail.taken:
        return Spliced(tokenizer.encode_segments(segments), 0, trail.parted)
    ids = list(known[: trail.taken])
    rest = [piece for piece in (trail.left, *segments[trail.segment :]) if piece != ""]
    if not rest:
        return Spliced(ids, trail.taken, trail.parted)
    if tokenizer.is_special(ids[-1]):
        # it comes along, so that the text behind it is not taken for the beginning of one
        return Spliced([*ids[:-1], *tokenizer.encode_segments([ids[-1], *rest])], trail.taken, trail.parted)
    return Spliced(ids + tokenizer.encode_segments(rest), trail.taken, trail.parted)


class _Trail:
    """How far known ids spell a text: `taken` of them, up to where the text `left` and the segments from `segment` on are
    still to be spelled."""

    def __init__(self, segments: Sequence[str | int], known: Sequence[int], tokenizer: Tokenizer) -> None:
        self._segments = segments
        self._known = known
        self._tokenizer = tokenizer
        self._bytes = tokenizer.byte_table(skip_special=False)
        self.taken = 0
        self.segment = 0
        self.left = ""
        self.parted: int | None = None

    def follow(self) -> None:
        at = chars = 0
        for number, segment in enumerate(self._segments):
            if at == len(self._known):
                return
            if isinstance(segment, int):
                if self._known[at] != segment:
                    self.parted = chars
                    return
                at += 1
                chars += len(self._tokenizer.token_text(segment))
                self._safe(at, number + 1)
                continue
            end = self._next_special(at)
            if not self._spells(at, end, segment):
                self._within(at, end, number, segment, chars)
                return
            at = end
            chars += len(segment)
            self._safe(at, number + 1)
        if at < len(self._known):
            self.parted = chars

    def _safe(self, taken: int, segment: int, left: str = "") -> None:
        """Here the rest may be tokenised by itself."""
        self.taken, self.segment, self.left = taken, segment, left

    def _next_special(self, at: int) -> int:
        is_special = self._tokenizer.is_special
        return next((i for i in range(at, len(self._known)) if is_special(self._known[i])), len(self._known))

    def _spells(self, at: int, end: int, text: str) -> bool:
        return self._raw(at, end, text) == text.encode("utf-8", "surrogatepass")

    def _raw(self, at: int, end: int, text: str) -> bytes:
        table = self._bytes
        raw = b"".join([table[token] for token in self._known[at:end]])
        if self._tokenizer.strips_leading_space and not text.startswith(" "):
            return raw.removeprefix(b" ")
        return raw

    def _within(self, at: int, end: int, number: int, text: str, chars: int) -> None:
        """The known run of text and the text part: one goes on where the other ends, or they differ."""
        raw, said = self._raw(at, end, text), text.encode("utf-8", "surrogatepass")
        same = _common(raw, said)
        if same < min(len(raw), len(said)):
            self.parted = chars + len(said[:same].decode("utf-8", "ignore"))
        elif len(said) > len(raw):
            if end < len(self._known):  # a message that has grown
                self.parted = chars + len(text)
            elif not self._tokenizer.strips_leading_space:
                self._safe(end, number + 1, said[len(raw) :].decode("utf-8", "surrogatepass"))
        elif end == len(self._known):
            self._shortened(at, end, number, said)
        else:
            self.parted = chars + len(text)

    def _shortened(self, at: int, end: int, number: int, said: bytes) -> None:
        """The last message was cut: by a stop string, say. Its tokens count as far as they are whole."""
        raw = self._raw(at, end, said.decode("utf-8", "surrogatepass"))
        full = len(b"".join([self._bytes[token] for token in self._known[at:end]]))
        spelled = len(raw) - full  # -1 where a leading space is not shown
        for position in range(at, end):
            after = spelled + len(self._bytes[self._known[position]])
            if after > len(said):
                break
            spelled = after
            at = position + 1
        rest = said[max(spelled, 0) :]
        if not rest or not self._tokenizer.strips_leading_space:
            try:
                self._safe(at, number + 1, rest.decode("utf-8"))
            except UnicodeDecodeError:
                return  # cut within a character: the message is tokenised anew


def _common(one: bytes, other: bytes) -> int:
    """How many bytes they begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
