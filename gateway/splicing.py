"""A conversation goes on with the token ids it had: what was generated is not tokenised again.

A model may spell a text otherwise than the tokenizer would, under a grammar most of all, and a template may write a call
otherwise than the model did. If the next turn spelled it anew, the prompt would part from what is cached, and the model
would read something it never wrote. So the ids of the turn before, its prompt and what was generated behind it, are the
beginning of the next prompt, and only what the template writes behind them is tokenised. Nothing here depends on what is
cached.

* Where the template writes the prompt of the turn before and then shows the whole answer, the ids stand for both (`Answered`).
* Where it does not (it leaves out the thoughts of earlier turns, say, or a message was edited), its text is followed along
  the ids, and these are taken over up to the last special token before the two part (`splice`): a message is the old one
  whole, or it is tokenised anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .known_ids import KnownIds, unpack_ids
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Spliced:
    """`ids` spell the text; the first `known` of them were known. `parted`: the known ids say something else than the text
    from character `parted` on; None if all of them were followed, or the text merely ends their last message earlier."""

    ids: list[int]
    known: int
    parted: int | None


@dataclass(frozen=True, slots=True)
class Answered:
    """A turn that goes on behind a known answer: `body` is what the template writes of it and behind it, up to the next
    message, `rest` what comes then, both cut at their special tokens, which are given by id."""

    message: Mapping[str, Any]
    body: Sequence[str | int]
    rest: Sequence[str | int]

    def go_on(self, known: KnownIds, tokenizer: Tokenizer) -> Spliced | None:
        """None if the template leaves out some of the answer, or nothing tells where it ends."""
        ids = unpack_ids(known.ids)
        if len(ids) == known.prompt:
            return None
        end = self._end(ids[-1], tokenizer)
        if end is None or not _shows(self.body[:end], self.message):
            return None
        tail = list(self.body[end:])
        taken = ids.tolist()
        if tokenizer.is_special(taken[-1]):
            if tail[0] == taken[-1]:
                tail.pop(0)
            else:
                taken.pop()  # the model ended in one way, the template says it in another
        return Spliced(_with_rest(taken, [*tail, *self.rest], tokenizer), len(taken), None)

    def _end(self, last: int, tokenizer: Tokenizer) -> int | None:
        """Where in the body the answer ends: at the last of the tokens that end one."""
        ends = {last, *tokenizer.stop_ids} if tokenizer.is_special(last) else {*tokenizer.stop_ids}
        places = [i for i, piece in enumerate(self.body) if isinstance(piece, int) and piece in ends]
        return places[-1] if places else None


def _shows(body: Sequence[str | int], message: Mapping[str, Any]) -> bool:
    """Whether thoughts, content and calls are all there. Special tokens may stand in what the model wrote of itself."""
    text = "".join([piece for piece in body if isinstance(piece, str)])
    said = [message.get("reasoning_content"), message.get("content")]
    said += [call["function"]["name"] for call in message.get("tool_calls") or ()]
    return all(part.strip() in text for part in said if isinstance(part, str))


def splice(segments: Sequence[str | int], known: Sequence[int], tokenizer: Tokenizer) -> Spliced:
    """`segments` are a text cut at its special tokens, which are given by id. Raises TokenizerError."""
    trail = _Trail(segments, known, tokenizer)
    trail.follow()
    if not trail.taken:
        return Spliced(tokenizer.encode_segments(segments), 0, trail.parted)
    rest = [trail.left, *segments[trail.segment :]]
    return Spliced(_with_rest(list(known[: trail.taken]), rest, tokenizer), trail.taken, trail.parted)


def _with_rest(ids: list[int], rest: Sequence[str | int], tokenizer: Tokenizer) -> list[int]:
    """The ids, and those of the rest behind them."""
    pieces = [piece for piece in rest if piece != ""]
    if not pieces:
        return ids
    if tokenizer.is_special(ids[-1]):
        # it comes along, so that the text behind it is not taken for the beginning of one
        return [*ids[:-1], *tokenizer.encode_segments([ids[-1], *pieces])]
    return ids + tokenizer.encode_segments(pieces)


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
