from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat_template import ChatTemplate
from gateway.known_ids import KnownIds
from gateway.splicing import splice
from gateway.tokenizer import Tokenizer

TOKENIZER = Tokenizer.hash()
TEMPLATE = ChatTemplate.hash(TOKENIZER)
END = TOKENIZER.stop_ids[0]
texts = st.text(max_size=20)
talks = st.lists(texts, min_size=1, max_size=5)


def _known(ids: list[int]) -> KnownIds:
    return KnownIds.of(ids, "", [], "")


def _talk(said: list[str]) -> list[dict[str, object]]:
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(said)]


@given(talks, texts, talks)
def test_a_turn_goes_on_with_the_ids_of_the_turn_before(
    before: list[str], answer: str, after: list[str]
) -> None:
    first = _talk(before if len(before) % 2 else before[:-1] or ["x"])
    known = TEMPLATE.encode(first).ids + TOKENIZER.encode(answer, add_special=False) + [END]
    messages = [*first, {"role": "assistant", "content": answer}, *_talk(after)]
    spliced = TEMPLATE.encode(messages, known=_known(known))
    assert spliced.ids[: len(known)] == known
    assert (spliced.known, spliced.parted) == (len(known), None)
    assert spliced.ids == TEMPLATE.encode(messages).ids  # bytes can be spelled in one way only


@given(talks, talks, st.booleans())
def test_whatever_was_known_the_ids_spell_the_text(one: list[str], other: list[str], ended: bool) -> None:
    known = TEMPLATE.encode(_talk(one)).ids + [END] * ended
    spliced = TEMPLATE.encode(_talk(other), known=_known(known))
    assert spliced.ids == TEMPLATE.encode(_talk(other)).ids
    assert spliced.ids[: spliced.known] == known[: spliced.known]


@pytest.mark.parametrize(
    ("known", "text", "taken", "parted"),
    [
        ("ab", "ab", 2, None),
        ("ab", "abc", 2, None),
        ("abc", "ab", 2, None),
        ("axc", "abc", 0, 1),
        ("", "abc", 0, None),
    ],
)
def test_where_they_part(known: str, text: str, taken: int, parted: int | None) -> None:
    spliced = splice([text], TOKENIZER.encode(known, add_special=False), TOKENIZER)
    assert (spliced.known, spliced.parted) == (taken, parted)
    assert TOKENIZER.decode(spliced.ids) == text


def test_a_message_that_was_edited_is_tokenised_anew_from_its_beginning() -> None:
    known = [*TEMPLATE.encode(_talk(["hello there"])).ids, *b"fine"]
    spliced = TEMPLATE.encode(_talk(["hello where", "fine", "?"]), known=_known(known))
    assert spliced.known == 1  # <|im_start|>
    assert spliced.parted == len("<|im_start|>user\nhello ")
