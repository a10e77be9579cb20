from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat_template import ChatTemplate, Rendered
from gateway.known_ids import KnownIds, unpack_ids
from gateway.splicing import splice
from gateway.tokenizer import Tokenizer
from tests.gateway.test_chat_template import FAMILIES, TOOLS, call, say

TOKENIZER = Tokenizer.hash()
TEMPLATE = ChatTemplate.hash(TOKENIZER)
END = TOKENIZER.stop_ids[0]
texts = st.text(max_size=20)
talks = st.lists(texts, min_size=1, max_size=5)


def _known(ids: list[int]) -> KnownIds:
    return KnownIds.of(ids, "", 99, [], "")


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


# ---- behind an answer ------------------------------------------------------------------------------------------------


def _spelled(text: str, tokenizer: Tokenizer) -> list[int]:
    """As no tokenizer would, but a model under a grammar may."""
    return [token for char in text for token in tokenizer.encode(char, add_special=False)]


def _answered(
    template: ChatTemplate, tokenizer: Tokenizer, prompt: Rendered, text: str, count: int
) -> KnownIds:
    answer = [*_spelled(text, tokenizer), tokenizer.stop_ids[0]]
    return KnownIds.of(prompt.ids, prompt.by_template, count, answer, "")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_keeps_its_ids_turn_after_turn(
    family: str, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    source, kind = FAMILIES[family]
    tokenizer = tokenizers_by_kind[kind]
    template = ChatTemplate(source, tokenizer)
    messages = [say("user", "hello <|im_end|> river </s>")]
    prompt = template.encode(messages)
    for turn in range(3):
        known = _answered(template, tokenizer, prompt, f"the  river {turn}", len(messages))
        messages += [say("assistant", f"the  river {turn}"), say("user", "and then?")]
        prompt = template.encode(messages, known=known)
        whole = unpack_ids(known.ids).tolist()
        assert prompt.ids[: len(whole)] == whole
        assert (prompt.known, prompt.parted) == (len(whole), None)
        assert template.encode(messages).text == prompt.by_template
    assert len(prompt.ids) > len(template.encode(messages).ids)  # they were not the tokenizer's own


def test_a_call_that_the_template_writes_otherwise() -> None:
    template = ChatTemplate(TOOLS, TOKENIZER)
    messages = [say("user", "2+2 <|im_start|>")]
    prompt = template.encode(messages)
    wrote = '\n<tool_call>\n{"name": "add",  "arguments": {"a":2,"b":"\\u00e9"}}\n</tool_call>'
    known = _answered(template, TOKENIZER, prompt, wrote, 1)
    messages += [say("assistant", None, tool_calls=[call("add", '{"a":2,"b":"\\u00e9"}')]), say("tool", "4")]
    following = template.encode(messages, known=known)
    whole = unpack_ids(known.ids).tolist()
    assert following.ids[: len(whole)] == whole
    assert following.text == template.encode(messages).text.replace(
        '\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": "é"}}\n</tool_call>', wrote
    )
    assert TOKENIZER.decode(following.ids, skip_special=False) == following.text


def test_thoughts_that_the_template_leaves_out_later_are_left_out() -> None:
    forgets = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if message.reasoning_content and loop.last %}<think>{{ message.reasoning_content }}</think>{% endif %}"
        "{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    template = ChatTemplate(forgets, TOKENIZER)
    messages = [say("user", "why?")]
    prompt = template.encode(messages)
    known = _answered(template, TOKENIZER, prompt, "<think>hm</think>so", 1)
    messages += [say("assistant", "so", reasoning_content="hm"), say("user", "really?")]
    following = template.encode(messages, known=known)
    assert following.ids == template.encode(messages).ids
    assert following.parted == following.text.index("so<|im_end|>")
    assert following.known == len(prompt.ids) - len(b"assistant\n")


@pytest.mark.parametrize(
    "ending",
    [
        [TOKENIZER.stop_ids[0]],
        [258],  # the model ended in a way that the template does not write
        [],  # a limit did
    ],
)
def test_however_the_answer_ended(ending: list[int]) -> None:
    messages = [say("user", "?")]
    prompt = TEMPLATE.encode(messages)
    known = KnownIds.of(prompt.ids, prompt.by_template, 1, [*b"yes", *ending], "")
    messages += [say("assistant", "yes"), say("user", "!")]
    following = TEMPLATE.encode(messages, known=known)
    assert following.ids == TEMPLATE.encode(messages).ids
    assert following.known >= len(prompt.ids) + 3
