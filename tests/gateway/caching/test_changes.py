from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.caching.common import common_characters, common_tokens
from gateway.caching.diagnosis import Diagnosis
from gateway.caching.records import Record
from gateway.chat_template import ChatTemplate, Message
from gateway.tokenizer import Tokenizer
from tests.gateway import toys
from tests.gateway.caching.making import CHATML, HASH, chat, offer, say, told, tool
from tests.gateway.caching.test_segments import FORGETS_THOUGHTS
from tests.gateway.test_chat_template import LISTS_TOOLS, LLAMA2, TOOLS, call

SHOWS_THOUGHTS = """
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
    {{- m.content }}
    {%- for call in m.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' + ('<think>\\n' if opens else '') }}{% endif %}
"""
SOURCES = {
    "chatml": CHATML,
    "tools": ChatTemplate(TOOLS, HASH),
    "lists_tools": ChatTemplate(LISTS_TOOLS, HASH),
    "thoughts": ChatTemplate(SHOWS_THOUGHTS, HASH),
    "forgets": ChatTemplate(FORGETS_THOUGHTS, HASH),
    "words": ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }} [end]\n{% endfor %}", HASH),
}
TEXT = st.text("ab user\n<|im_>é🎉.", min_size=1, max_size=24)
LONG = "The river goes by the stone, and the cloud by the market"


def after(
    messages: Sequence[Message], before: Sequence[Message], answer: str = "ok", **how: Any
) -> Diagnosis:
    """The one conversation held against the other; what can be found is found."""
    first, second = pair(messages, before, answer, **how)
    return told(second, first)


def pair(
    messages: Sequence[Message],
    before: Sequence[Message],
    answer: str = "ok",
    *,
    template: ChatTemplate = CHATML,
    was: dict[str, Any] | None = None,
    now: dict[str, Any] | None = None,
) -> tuple[Record, Record]:
    first = chat(before, template=template, answer=answer, **(was or {}))
    return first, chat(messages, template=template, at=9.0, after=first, **(now or {}))


def where(found: Diagnosis) -> tuple[object, ...]:
    assert found.place is not None, found
    return found.place.segment, found.place.message, found.place.part, found.place.char


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    texts = draw(st.lists(TEXT, min_size=1, max_size=6))
    messages = [say("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]
    return [say("system", draw(TEXT)), *messages] if draw(st.booleans()) else messages


@st.composite
def edits(draw: st.DrawFn, text: str) -> str:
    """Another text, by one character."""
    char = draw(st.integers(0, len(text)))
    new = draw(st.sampled_from("ab<#é"))
    kind = draw(st.sampled_from(["insert", "replace", "delete"]))
    edited = text[:char] + (new if kind != "delete" else "") + text[char + (kind != "insert") :]
    assume(edited != text and edited)
    return edited


class TestAnyEdit:
    @given(data=st.data(), messages=conversations())
    @pytest.mark.parametrize("name", SOURCES)
    def test_is_found_where_it_is(self, name: str, data: st.DataObject, messages: list[Message]) -> None:
        index = data.draw(st.integers(0, len(messages) - 1))
        old = messages[index]["content"]
        new = data.draw(edits(old))
        assume(all(message["content"] != new for message in messages))
        changed = [*messages[:index], say(messages[index]["role"], new), *messages[index + 1 :]]
        first, second = pair(changed, messages, template=SOURCES[name])
        found = told(second, first)
        char = common_characters(new, old)
        system = messages[index]["role"] == "system"
        assert found.reason == ("system_changed" if system else "message_edited")
        assert where(found) == ("system" if system else "message", index, 0, char)
        assert found.common == common_tokens(second.ids, first.whole) == second.hit
        assert found.place is not None
        assert (found.place.now, found.place.was) == (new, old)

    @given(data=st.data(), texts=st.lists(TEXT, min_size=2, max_size=5))
    def test_is_found_in_its_part(self, data: st.DataObject, texts: list[str]) -> None:
        part = data.draw(st.integers(0, len(texts) - 1))
        new = data.draw(edits(texts[part]))
        changed = [*texts[:part], new, *texts[part + 1 :]]
        assume("".join(changed) != "".join(texts))

        def talk(parts: list[str]) -> list[Message]:
            content = [{"type": "text", "text": text} for text in parts]
            return [say("user", "hello"), say("assistant", "hm"), say("user", content)]

        found = after(talk(changed), talk(texts))
        char = common_characters("".join(changed), "".join(texts))
        assert found.reason == "message_edited"
        assert found.place is not None
        assert found.place.message == 2
        # where parts begin alike it is the first that differs as they are read
        assert sum(map(len, changed[: found.place.part])) + found.place.char == char

    @given(data=st.data(), messages=conversations())
    @settings(max_examples=50)
    def test_in_a_template_that_trims(
        self, data: st.DataObject, messages: list[Message], llama: tuple[ChatTemplate, Tokenizer]
    ) -> None:
        template, tokenizer = llama
        index = data.draw(st.integers(0, len(messages) - 1))
        new = data.draw(edits(messages[index]["content"]))
        changed = [*messages[:index], say(messages[index]["role"], new), *messages[index + 1 :]]
        first = chat(messages, template=template, tokenizer=tokenizer)
        second = chat(changed, template=template, tokenizer=tokenizer, at=9.0, after=first)
        assume(second.ids != first.ids)
        found = told(second, first, tokenizer=tokenizer)
        assert found.reason in ("system_changed", "message_edited")
        assert found.place is not None
        assert found.place.message == index

    @given(texts=st.lists(TEXT, min_size=3, max_size=6), cut=st.integers(1, 3))
    def test_history_that_is_missing(self, texts: list[str], cut: int) -> None:
        texts = [f"{i}: {text}" for i, text in enumerate(texts)]
        messages = [say("user", "begin"), *(say("user", text) for text in texts)]
        cut = min(cut, len(texts) - 1)
        found = after([messages[0], *messages[1 + cut :], say("user", "more")], messages)
        assert (found.reason, dict(found.detail)) == ("history_truncated", {"message": 1, "removed": cut})


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[ChatTemplate, Tokenizer]:
    toy = toys.sentencepiece(legacy=True)
    path = toys.write(Path(tmp_path_factory.mktemp("llama")), toy, tokenizer_config=toys.LLAMA_CONFIG)
    tokenizer = Tokenizer.load(path)
    return ChatTemplate(LLAMA2, tokenizer), tokenizer


CALLED = [
    say("user", LONG),
    say("assistant", "wait", reasoning_content="hm, so", tool_calls=[call("f", '{"city": "Rome"}')]),
    say("tool", "sunny", tool_call_id="call_1"),
    say("assistant", "It is sunny.", reasoning_content="easy"),
    say("user", "Thanks"),
]


class TestHistory:
    TEMPLATE = SOURCES["thoughts"]

    def changed(self, index: int, **fields: Any) -> Diagnosis:
        messages = [dict(message) for message in CALLED]
        messages[index] = {k: v for k, v in {**messages[index], **fields}.items() if v is not None}
        return after(messages, CALLED, template=self.TEMPLATE)

    @pytest.mark.parametrize("index", [1, 3])
    def test_thoughts_that_are_not_sent_back(self, index: int) -> None:
        found = self.changed(index, reasoning_content=None)
        assert (found.reason, dict(found.detail)) == ("reasoning_dropped", {"message": index})
        assert where(found) == ("reasoning", index, None, 0)

    def test_other_thoughts(self) -> None:
        found = self.changed(1, reasoning_content="hm, no")
        assert found.reason == "message_edited"
        assert where(found) == ("reasoning", 1, None, 4)

    def test_other_arguments(self) -> None:
        found = self.changed(1, tool_calls=[call("f", '{"city": "Rama"}')])
        assert found.reason == "message_edited"
        assert where(found) == ("tool_call", 1, 0, 11)

    def test_another_function(self) -> None:
        found = self.changed(1, tool_calls=[call("g", '{"city": "Rome"}')])
        assert found.reason == "message_edited"
        assert found.detail["message"] == 1

    def test_another_result(self) -> None:
        found = self.changed(2, content="rainy")
        assert found.reason == "message_edited"
        assert where(found) == ("message", 2, 0, 0)

    def test_a_call_that_is_not_sent_back(self) -> None:
        found = self.changed(1, tool_calls=None)
        assert (found.reason, found.detail["message"]) == ("message_edited", 1)

    def test_a_summary_in_place_of_what_was(self) -> None:
        found = after(
            [CALLED[0], say("user", "It was sunny in Rome."), *CALLED[3:], say("user", "?")],
            CALLED,
            template=self.TEMPLATE,
        )
        assert found.reason == "history_truncated"
        assert dict(found.detail) == {"message": 1, "removed": 2, "replaced_by": 1}

    def test_a_turn_taken_back(self) -> None:
        """The prompt of a regenerated answer is all there."""
        assert after(CALLED[:3], CALLED, template=self.TEMPLATE).reason in ("hit", "history_truncated")

    def test_thoughts_that_the_template_forgets(self) -> None:
        """Nobody changed anything: a question came, and what was thought before it is shown no more."""
        before = CALLED[:3]
        template = SOURCES["forgets"]
        found = after([*before, say("assistant", "ok"), say("user", "Thanks")], before, template=template)
        assert (found.reason, dict(found.detail)) == ("template_rewrote_history", {"message": 1})

    def test_a_system_message_that_the_template_moves(self, llama: tuple[ChatTemplate, Tokenizer]) -> None:
        template, tokenizer = llama
        before = [say("system", "be brief"), say("user", "one two three four")]
        first = chat(before, template=template, tokenizer=tokenizer, answer="ok")
        late = [*before, say("assistant", "ok"), say("system", "or not"), say("user", "b")]
        second = chat(late, template=template, tokenizer=tokenizer, at=9.0, after=first)
        found = told(second, first, tokenizer=tokenizer)
        assert found.reason in ("template_rewrote_history", "system_changed", "message_edited")
        assert found.place is not None
        assert found.place.message in (0, 3)


class TestAnswers:
    """The older request's answer, as it comes back."""

    BEFORE = (say("user", LONG),)

    def sent_back(
        self, answer: str, message: Message, template: ChatTemplate = SOURCES["thoughts"], **now: Any
    ) -> Diagnosis:
        return after(
            [*self.BEFORE, message, say("user", "and?")], self.BEFORE, answer, template=template, now=now
        )

    def test_as_it_was(self) -> None:
        assert self.sent_back("It is 4.", say("assistant", "It is 4.")).reason == "partial_hit"
        thought = say("assistant", "It is 4.", reasoning_content="2+2")
        found = self.sent_back("<think>\n2+2\n</think>\n\nIt is 4.", thought)
        assert found.reason == "partial_hit"

    @pytest.mark.parametrize("opens", [False, True])
    def test_without_its_thoughts(self, opens: bool) -> None:
        variables = {"variables": {"opens": True}} if opens else {}
        answer = ("" if opens else "<think>\n") + "2+2\n</think>\n\nIt is 4."
        found = after(
            [*self.BEFORE, say("assistant", "It is 4."), say("user", "and?")],
            self.BEFORE,
            answer,
            template=SOURCES["thoughts"],
            was=variables,
            now=variables,
        )
        assert (found.reason, dict(found.detail)) == ("reasoning_dropped", {"message": 1})

    def test_with_thoughts_that_the_template_does_not_show(self) -> None:
        thought = say("assistant", "It is 4.", reasoning_content="2+2")
        found = self.sent_back("<think>\n2+2\n</think>\n\nIt is 4.", thought, SOURCES["forgets"])
        assert (found.reason, dict(found.detail)) == ("template_rewrote_history", {"message": 1})

    def test_with_thoughts_in_other_blanks(self) -> None:
        thought = say("assistant", "It is 4.", reasoning_content="2+2")
        found = self.sent_back("<think>2+2</think>It is 4.", thought)
        assert (found.reason, dict(found.detail)) == ("template_rewrote_history", {"message": 1})

    def test_edited(self) -> None:
        found = self.sent_back("It is 4.", say("assistant", "It is 5."))
        assert found.reason == "message_edited"
        assert where(found) == ("message", 1, 0, 6)

    def test_cut(self) -> None:
        found = self.sent_back("It is 4, they say.", say("assistant", "It is 4"))
        assert found.reason == "message_edited"
        assert where(found) == ("message", 1, 0, 7)

    def test_left_out(self) -> None:
        found = after([*self.BEFORE, say("user", "and?")], self.BEFORE, "It is 4.")
        assert (found.reason, found.detail["message"]) == ("history_truncated", 1)

    def test_a_call_in_other_json(self) -> None:
        answer = 'ok\n<tool_call>\n{"name": "f", "arguments": {"a":[1,2]}}\n</tool_call>'
        called = say("assistant", "ok", tool_calls=[call("f", '{"a":[1,2]}')])
        found = self.sent_back(answer, called)
        assert (found.reason, found.detail["message"]) == ("template_rewrote_history", 1)
        changed = say("assistant", "ok", tool_calls=[call("f", '{"a":[1,3]}')])
        found = self.sent_back(
            'ok\n<tool_call>\n{"name": "f", "arguments": {"a": [1, 2]}}\n</tool_call>', changed
        )
        assert found.reason == "message_edited"
        assert where(found)[:3] == ("tool_call", 1, 0)


class TestTools:
    TALK = (say("system", LONG), say("user", "hello"))

    def changed(self, now: Any, was: Any, template: ChatTemplate) -> Diagnosis:
        return after(self.TALK, self.TALK, template=template, was={"tools": was}, now={"tools": now})

    @pytest.mark.parametrize("name", ["chatml", "lists_tools"])
    @pytest.mark.parametrize(
        ("now", "was", "change", "which"),
        [
            ("abc", "acb", "reordered", "b"),
            ("abc", "ab", "added", "c"),
            ("cab", "ab", "added", "c"),
            ("ab", "abc", "removed", "c"),
            ("bc", "abc", "removed", "a"),
            ("a", "", "added", "a"),
            ("", "a", "removed", "a"),
            ("ac", "ab", "added", "c"),
        ],
    )
    def test_are_told_apart(self, name: str, now: str, was: str, change: str, which: str) -> None:
        given_now, given_was = (offer(*map(tool, names)) if names else None for names in (now, was))
        found = self.changed(given_now, given_was, SOURCES[name])
        assert (found.reason, dict(found.detail)) == ("tools_changed", {"change": change, "tool": which})
        assert where(found)[:2] == ("tools", None)

    def test_a_definition(self) -> None:
        found = self.changed(offer(tool("a"), tool("b", "it does")), offer(tool("a"), tool("b")), CHATML)
        assert (found.reason, dict(found.detail)) == ("tools_changed", {"change": "schema", "tool": "b"})
        line = '{"type": "function", "function": {"name": "b", "description": "'
        assert where(found) == ("tools", None, 1, len(line))

    def test_together_with_a_new_message(self) -> None:
        found = after(
            [*self.TALK, say("assistant", "ok"), say("user", "?")],
            self.TALK,
            was={"tools": offer(tool("a"), tool("b"))},
            now={"tools": offer(tool("b"), tool("a"))},
        )
        assert found.reason == "tools_changed"


def test_variables() -> None:
    talk = [say("user", LONG)]
    found = after(talk, talk, template=SOURCES["thoughts"], was={"variables": {"opens": True}}, now={})
    assert (found.reason, dict(found.detail)) in (
        ("template_kwargs_changed", {"variables": ["opens"]}),
        ("hit", {}),
    )
    source = "{{ mood }}" + SHOWS_THOUGHTS
    found = after(
        talk,
        talk,
        template=ChatTemplate(source, HASH),
        was={"variables": {"mood": "gay", "same": 1}},
        now={"variables": {"mood": "sad", "same": 1}},
    )
    assert (found.reason, dict(found.detail)) == ("template_kwargs_changed", {"variables": ["mood"]})


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("datetime", "It is 2026-11-30 21:50.", "It is 2026-11-30 21:51."),
        (
            "uuid",
            "session 123e4567-e89b-12d3-a456-426614174000",
            "session 123e4567-e89b-12d3-a456-426614174fff",
        ),
        (
            "billing_header",
            "x-anthropic-billing-header: cch=c2c3e;",
            "x-anthropic-billing-header: cch=50fa1;",
        ),
    ],
)
def test_what_changes_each_time(kind: str, one: str, other: str) -> None:
    found = after(
        [say("system", f"{one}\n{LONG}"), say("user", "q")],
        [say("system", f"{other}\n{LONG}"), say("user", "q")],
    )
    assert (found.reason, found.detail["kind"], found.detail["in"]) == (
        "volatile_pattern",
        kind,
        "system_changed",
    )
    assert where(found)[:3] == ("system", 0, 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ChatTemplate, Tokenizer]:
    path = toys.write(tmp_path_factory.mktemp("bl"), toys.byte_level(), tokenizer_config=toys.CHATML_CONFIG)
    tokenizer = Tokenizer.load(path)
    return ChatTemplate.hash(tokenizer), tokenizer


class TestRetokenized:
    def test_an_answer(self, model: tuple[ChatTemplate, Tokenizer]) -> None:
        """What a grammar had it say letter by letter is read in words."""
        template, tokenizer = model
        before = [say("user", "one two")]
        usual = tokenizer.encode("the river", add_special=False)
        letters = [token for char in "the river" for token in tokenizer.encode(char, add_special=False)]
        assert len(letters) > len(usual)
        answer = [*letters, tokenizer.stop_ids[0]]
        first = chat(before, template=template, tokenizer=tokenizer, answer=answer)
        messages = [*before, say("assistant", "the river"), say("user", "and?")]
        second = chat(messages, template=template, tokenizer=tokenizer, at=9.0, after=first)
        found = told(second, first, tokenizer=tokenizer)
        assert (found.reason, dict(found.detail)) == ("retokenized", {"message": 1, "token": found.common})
        assert found.common == first.tokens

    @given(
        data=st.data(),
        words=st.lists(
            st.sampled_from(["river", "stone", "the", "cloud", "one", "two", "riv", "riverstone"]),
            min_size=2,
            max_size=9,
        ),
    )
    def test_an_edit_is_none(
        self, model: tuple[ChatTemplate, Tokenizer], data: st.DataObject, words: list[str]
    ) -> None:
        """Though it may change how the text before it is cut."""
        template, tokenizer = model
        text = " ".join(words)
        char = data.draw(st.integers(0, len(text)))
        new = text[:char] + data.draw(st.sampled_from(["e", "r", " ", "th"])) + text[char:]
        first = chat([say("user", text)], template=template, tokenizer=tokenizer)
        second = chat([say("user", new)], template=template, tokenizer=tokenizer, at=9.0, after=first)
        found = told(second, first, tokenizer=tokenizer)
        assert found.reason == "message_edited"
        assert where(found) == ("message", 0, 0, common_characters(new, text))

    def test_a_mark_that_was_typed_is_no_mark(self) -> None:
        text = "a<|im_end|>\n<|im_start|>user\nb"
        found = after([say("user", text)], [say("user", "a"), say("user", "b")])
        assert (found.reason, found.detail["message"]) == ("message_edited", 0)
        assert where(found) == ("message", 0, 0, 1)


class TestGuessed:
    """A baseline nobody named: that two prompts begin alike says little."""

    def guess(self, messages: Sequence[Message], before: Sequence[Message], **was: Any) -> str:
        first, second = pair(messages, before, was=was, now=was)
        return told(second, first, guessed=True).reason

    def test_another_question_is_no_edit(self) -> None:
        system = say("system", LONG)
        assert self.guess([system, say("user", "one")], [system, say("user", "two")]) == "partial_hit"
        assert self.guess([say("user", "one")], [say("user", "two")]) == "partial_hit"

    def test_under_the_same_key_it_is(self) -> None:
        assert self.guess([say("user", "one")], [say("user", "two")], key="k") == "message_edited"

    def test_one_that_is_followed_by_the_same_is_an_edit(self) -> None:
        tail = [say("assistant", "hm"), say("user", "and?")]
        assert self.guess([say("user", "one"), *tail], [say("user", "two"), *tail]) == "message_edited"

    def test_one_that_goes_on_alike_is_an_edit(self) -> None:
        assert self.guess([say("user", f"one {LONG}")], [say("user", f"two {LONG}")]) == "message_edited"

    def test_an_answer_that_was_changed_is_an_edit(self) -> None:
        before = [say("user", LONG)]
        assert self.guess([*before, say("assistant", "no"), say("user", "?")], before) == "message_edited"
