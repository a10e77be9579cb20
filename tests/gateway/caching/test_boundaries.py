"""An entry stands where every request that agrees up to there begins with the same tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cache.lease import Lease
from gateway.caching.ask import CacheAsk, Mark
from gateway.caching.boundaries import Boundaries, Breakpoint, implicit_breakpoint
from gateway.caching.segments import locate
from gateway.chat_template import ChatTemplate, Message, Rendered
from gateway.tokenizer import Tokenizer
from tests.gateway.conftest import KINDS
from tests.gateway.test_chat_template import CHATML, LLAMA2, NO_SYSTEM, PARTS, say

TEMPLATES = {"chatml": CHATML, "llama2": LLAMA2, "no_system": NO_SYSTEM, "parts": PARTS}

PIECES = """river| stone|the|ston|e|riv|er|mark|et| two| thr|ee|a|A|7|42|'|'s|ve|.|(|<|<tool|_call>|_|-|def f(x):|return
caf|\u0301|\u65e5|\u672c|\u043f\u0440\u0438|\u0432\u0435\u0442|\U0001f389|\u200d""".replace("\n", "|").split(
    "|"
)
WORDS = st.sampled_from([*PIECES, " ", "  ", "\n", "\n\n", "\t\t", "    ", "<|im", "|>"])
TEXTS = st.lists(WORDS, max_size=8).map("".join) | st.text(max_size=8)


def parts(role: str, *texts: str) -> Message:
    return say(role, [{"type": "text", "text": text} for text in texts])


def boundary(
    template: ChatTemplate, tokenizer: Tokenizer, messages: list[Message], place: Breakpoint
) -> tuple[Rendered, int]:
    prompt = template.encode(messages)
    return prompt, Boundaries(prompt, locate(prompt, messages), tokenizer).tokens(place)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", TEMPLATES)
def test_whoever_agrees_up_to_a_breakpoint_begins_with_its_tokens(
    kind: str, source: str, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    tokenizer = tokenizers_by_kind[kind]
    if "bos_token" in TEMPLATES[source] and "bos_token" not in tokenizer.special_names:
        pytest.skip("a template of another model")
    template = ChatTemplate(TEMPLATES[source], tokenizer)

    @given(before=TEXTS, text=TEXTS, one=TEXTS, other=TEXTS, later=st.booleans())
    @example(before="", text="<tool", one="_call>", other="s", later=False)
    @example(before="x", text=" ", one="\n", other="a", later=False)
    def agree(before: str, text: str, one: str, other: str, later: bool) -> None:
        place = Breakpoint(0, 1)
        # further on in the same message, in one prompt at least
        ours = [parts("user", before, text, one), say("assistant", "ok"), say("user", "go")]
        theirs = [
            parts("user", before, text, *([] if later else [other])),
            say("assistant", other),
            say("user", "on"),
        ]
        prompt, tokens = boundary(template, tokenizer, ours, place)
        assert template.encode(theirs).ids[:tokens] == prompt.ids[:tokens]

    agree()


def near(tokenizer: Tokenizer, text: str, after: str) -> str:
    """What is before the boundary behind `text`, and after the template's opening."""
    template = ChatTemplate(CHATML, tokenizer)
    prompt, tokens = boundary(template, tokenizer, [parts("user", text, after)], Breakpoint(0, 0))
    return tokenizer.decode(prompt.ids[:tokens]).removeprefix("user\n")


def test_it_is_near_the_end_of_the_part(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    byte_level = tokenizers_by_kind["byte_level"]
    assert near(byte_level, "the river and the stone", " and more") == "the river and the"
    assert near(byte_level, "the river. ", "More") == "the river"
    assert near(byte_level, "the river and the market 42", "7") == "the river and the market"


def test_the_end_of_a_conversation_is_no_other_place(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    """What follows in this prompt does not matter, not even a special token."""
    byte_level = tokenizers_by_kind["byte_level"]
    assert near(byte_level, "the river and the stone", "") == near(byte_level, "the river and the stone", "s")


def test_a_part_that_is_not_shown_ends_where_the_one_before_it_does() -> None:
    tokenizer = Tokenizer.hash()
    template = ChatTemplate.hash(tokenizer)
    messages = [say("system", "ab. "), parts("user", "", "d")]
    prompt, after_system = boundary(template, tokenizer, messages, Breakpoint(0, 0))
    assert bytes(prompt.ids[1:after_system]).decode() == "system\nab"
    assert boundary(template, tokenizer, messages, Breakpoint(1, 0))[1] == after_system
    assert boundary(template, tokenizer, [parts("user", "", "d")], Breakpoint(0, 0))[1] == 0


S, U, A, T, D = (say(role, "x") for role in ("system", "user", "assistant", "tool", "developer"))


@pytest.mark.parametrize(
    ("messages", "index"),
    [
        ([U], 0),
        ([S, U], 1),
        ([S, U, A], 1),
        ([S, U, A, T, T], 4),
        ([S, U, A, T, A], 3),
        ([S], 0),
        ([S, D], 1),
        ([S, D, A], 1),
        ([U, S], 0),
        ([A], None),
        ([A, S], None),
        ([U, A, U, S, A], 2),
    ],
)
def test_the_latest_message_that_others_will_share(messages: list[Message], index: int | None) -> None:
    found = implicit_breakpoint(messages)
    assert (None if found is None else found.message) == index


def test_of_a_message_in_parts_the_last_part_counts() -> None:
    assert implicit_breakpoint([parts("user", "a", "b", "c")]) == Breakpoint(0, 2)


def test_marks_carry_their_lifetimes() -> None:
    tokenizer = Tokenizer.hash()
    template = ChatTemplate.hash(tokenizer)
    messages = [parts("user", "ab. ", "cd. ", "e. ")]
    prompt = template.encode(messages)
    boundaries = Boundaries(prompt, locate(prompt, messages), tokenizer)
    opening = len("user\n") + 1
    places = [Breakpoint(0, 0, 60.0), Breakpoint(0, 1)]
    explicit: Any = CacheAsk(mode="explicit", lease=Lease())
    assert boundaries.marks(explicit, places, messages) == [Mark(opening + 2, 60.0), Mark(opening + 6)]
    assert boundaries.marks(CacheAsk(lease=Lease()), places, messages)[-1] == Mark(opening + 9)
