from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caching.segments import NO_MESSAGE, Span, TokenMap, locate, plain
from gateway.chat_template import ChatTemplate, Message, ToolPrompt
from gateway.template_sandbox import to_json
from gateway.tokenizer import Tokenizer
from tests.gateway import toys
from tests.gateway.test_chat_template import (
    CALLS,
    LISTS_TOOLS,
    LLAMA2,
    NINE_LETTER_IDS,
    NO_SYSTEM,
    PARTS,
    TOOLS,
    WITH_DEFAULT_SYSTEM,
    call,
    say,
)

HASH = Tokenizer.hash()
CHATML = ChatTemplate.hash(HASH)
FORGETS_THOUGHTS = """
{%- set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.reasoning_content and loop.index0 > last.user %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
    {{- m.content }}
    {%- for call in m.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def shown(template: ChatTemplate, messages: Sequence[Message], **options: Any) -> dict[tuple[Any, ...], str]:
    """The text of each span by what it is of, in order."""
    prompt = template.encode(messages, **options)
    segments = locate(prompt, messages, options.get("tools"))
    assert [span.start for span in segments.spans] == sorted(span.start for span in segments.spans)
    return {span[:3]: prompt.text[span.start : span.end] for span in segments.spans}


def contents(template: ChatTemplate, messages: Sequence[Message]) -> list[str | None]:
    found = shown(template, messages)
    return [found.get(("content", i, 0)) for i in range(len(messages))]


@pytest.fixture(scope="module")
def llama2(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    toy = toys.sentencepiece(legacy=True)
    path = toys.write(Path(tmp_path_factory.mktemp("llama")), toy, tokenizer_config=toys.LLAMA_CONFIG)
    return ChatTemplate(LLAMA2, Tokenizer.load(path))


class TestContents:
    @given(texts=st.lists(st.text("user asitn\n<|im_>é🎉", max_size=12), min_size=1, max_size=8))
    @pytest.mark.parametrize("source", [None, WITH_DEFAULT_SYSTEM, NO_SYSTEM, TOOLS, PARTS])
    def test_of_any_words_are_found_where_they_stand(self, source: str | None, texts: list[str]) -> None:
        """Also those that the template uses itself, and the same said twice."""
        template = CHATML if source is None else TEMPLATES(source)
        messages = [say("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]
        prompt = template.encode(messages)
        segments = locate(prompt, messages)
        marked = [say(m["role"], f"\ue000{m['content']}\ue001") for m in messages]
        expected = _between_marks(template.encode(marked).text)
        assert [segments.find("content", i) for i in range(len(texts))] == [
            Span("content", i, 0, start, end) if end > start else None
            for i, (start, end) in enumerate(expected)
        ]

    def test_trimmed_ones(self, llama2: ChatTemplate) -> None:
        messages = [
            say("system", "  be brief\n"),
            say("user", " user\n\n"),
            say("assistant", "\n a \n"),
            say("user", "a"),
        ]
        assert contents(llama2, messages) == ["  be brief\n", "user", "a", "a"]
        segments = locate(llama2.encode(messages), messages)
        assert [segments.find("content", i).skipped for i in range(4)] == [0, 1, 2, 0]  # type: ignore[union-attr]

    def test_a_late_system_message_is_found_where_the_template_moved_it(self, llama2: ChatTemplate) -> None:
        messages = [
            say("system", "first"),
            say("user", "a"),
            say("assistant", "first"),
            say("system", "late"),
            say("user", "b"),
        ]
        found = shown(llama2, messages)
        assert list(found) == [("content", i, 0) for i in (0, 3, 1, 2, 4)]
        assert list(found.values()) == ["first", "late", "a", "first", "b"]

    def test_parts(self) -> None:
        parts = [{"type": "text", "text": text} for text in ("  one ", "", " two", "three\n")]
        messages = [say("user", "x"), say("assistant", "y"), say("user", parts)]
        found = shown(CHATML, messages)
        assert [found.get(("content", 2, j)) for j in range(4)] == ["  one ", None, " two", "three\n"]

    def test_trimmed_parts(self, llama2: ChatTemplate) -> None:
        parts = [{"type": "text", "text": text} for text in ("  ", " one ", "two\n", " ")]
        messages = [say("user", parts)]
        prompt = llama2.encode(messages)
        segments = locate(prompt, messages)
        assert segments.find("content", 0, 0) is None
        assert [(prompt.text[s.start : s.end], s.part, s.skipped) for s in segments.spans] == [
            ("one ", 1, 1),
            ("two", 2, 0),
        ]

    def test_one_that_the_template_leaves_out_confuses_no_other(self) -> None:
        source = "{% for m in messages if m.content != 'gone' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        messages = [
            say("user", "a"),
            say("assistant", "gone"),
            say("user", "gone too"),
            say("assistant", "b"),
        ]
        assert contents(TEMPLATES(source), messages) == ["a", None, "gone too", "b"]

    def test_thoughts_that_the_template_cuts_out_of_a_content(self) -> None:
        source = (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n"
            "{{ m.content.split('</think>')[-1].lstrip('\n') }}<|im_end|>\n{% endfor %}"
        )
        messages = [say("user", "a"), say("assistant", "<think>\nso\n</think>\n\n42"), say("user", "42")]
        segments = locate(TEMPLATES(source).encode(messages), messages)
        assert contents(TEMPLATES(source), messages) == ["a", "42", "42"]
        assert segments.find("content", 1).skipped == len("<think>\nso\n</think>\n\n")  # type: ignore[union-attr]

    def test_many_that_are_not_shown_cost_little(self) -> None:
        source = "{% for m in messages %}{{ m.role }} {% endfor %}" + "{{ ' ' * 100000 }}"
        messages = [say("user", f"message {i}") for i in range(4000)]
        assert locate(TEMPLATES(source).encode(messages), messages).spans == ()


class TestThoughtsAndCalls:
    def test_calls_and_results(self) -> None:
        found = shown(TEMPLATES(TOOLS), CALLS)
        assert found == {
            ("content", 0, 0): "what is 2+2",
            ("call", 1, 0): '{"a": 2, "b": "é<"}',
            ("call", 1, 1): "{}",
            ("content", 2, 0): "4",
            ("content", 3, 0): "0",
            ("content", 4, 0): "4",
        }

    @pytest.mark.parametrize("source", [None, NINE_LETTER_IDS, LISTS_TOOLS])
    def test_arguments_in_other_spacing(self, source: str | None) -> None:
        template = CHATML if source is None else TEMPLATES(source)
        messages = [
            say("user", "q"),
            say("assistant", "", tool_calls=[call("f", '{"a":[1,2]}')]),
            say("tool", "r", tool_call_id="call_1"),
        ]
        assert shown(template, messages)["call", 1, 0] == '{"a": [1, 2]}'

    def test_thoughts_are_found_in_their_message_only(self) -> None:
        messages = [
            say("user", "hm"),
            say("assistant", "a", reasoning_content="hm"),
            say("user", "hm"),
            say("assistant", "", reasoning_content="hm", tool_calls=[call("f", "{}")]),
        ]
        found = shown(TEMPLATES(FORGETS_THOUGHTS), messages)
        assert list(found) == [
            *(("content", i, 0) for i in range(3)),
            ("reasoning", 3, 0),
            ("call", 3, 0),
        ]


class TestTools:
    TOOLS: tuple[Message, ...] = tuple(
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "ab"
    )

    @pytest.mark.parametrize("source", [None, LISTS_TOOLS])
    def test_listed_and_described(self, source: str | None) -> None:
        lines = [to_json(tool) for tool in self.TOOLS]
        prompt = ToolPrompt(self.TOOLS, "Tools:\n" + "\n".join(lines), lines)
        template = CHATML if source is None else TEMPLATES(source)
        found = shown(template, [say("system", "s"), say("user", "u")], tools=prompt)
        assert [json.loads(found["tool", NO_MESSAGE, i]) for i in (0, 1)] == list(self.TOOLS)
        assert found["content", 0, 0] == "s"

    def test_in_a_template_with_a_form_of_its_own_they_have_no_place(self) -> None:
        prompt = ToolPrompt(self.TOOLS, "", [to_json(tool) for tool in self.TOOLS])
        source = (
            "{% for tool in tools or [] %}{{ tool.function.name }}(){% endfor %}"
            + LISTS_TOOLS.split("endif %}", 1)[1]
        )
        assert list(shown(TEMPLATES(source), [say("user", "u")], tools=prompt)) == [("content", 0, 0)]


class TestTokens:
    @given(text=st.text("ab é🎉日\n<|im_end|>", max_size=40))
    def test_every_boundary_both_ways(self, text: str) -> None:
        prompt = CHATML.encode([say("user", text)])
        tokens = TokenMap(prompt.ids, prompt.text, HASH)
        ends = [
            len(HASH.decode(prompt.ids[: i + 1], skip_special=False).rstrip("�"))
            for i in range(len(prompt.ids))
        ]
        for char in range(len(prompt.text) + 1):
            count = tokens.token_at(char)
            whole = HASH.decode(prompt.ids[:count], skip_special=False)
            assert prompt.text[:char].startswith(whole.rstrip("�"))
            assert count == len(prompt.ids) or ends[count] >= char
        for token in range(len(prompt.ids) + 1):
            char = tokens.char_at(token)
            assert tokens.token_at(char) <= token < len(prompt.ids) + 1

    @pytest.mark.parametrize("legacy", [False, True])
    def test_of_sentencepiece(self, legacy: bool, tmp_path: Path) -> None:
        toy = toys.sentencepiece(legacy=legacy)
        tokenizer = Tokenizer.load(toys.write(tmp_path, toy, tokenizer_config=toys.LLAMA_CONFIG))
        messages = [say("user", "the river, größer 🎉"), say("assistant", "ok</s>"), say("user", "two")]
        prompt = ChatTemplate(LLAMA2, tokenizer).encode(messages)
        tokens = TokenMap(prompt.ids, prompt.text, tokenizer)
        span = locate(prompt, messages).find("content", 2)
        assert span is not None
        first = tokens.token_at(span.start)
        assert tokenizer.decode(prompt.ids[first:], skip_special=False).strip() == "two [/INST]"

    def test_find_their_way_behind_what_a_normalizer_changed(self, tmp_path: Path) -> None:
        from tokenizers import normalizers

        toy = toys.byte_level()
        toy.normalizer = normalizers.NFC()  # as Qwen's
        tokenizer = Tokenizer.load(toys.write(tmp_path, toy, tokenizer_config=toys.CHATML_CONFIG))
        text = "cafe\u0301 the river"
        ids = tokenizer.encode(text, add_special=False)
        tokens = TokenMap(ids, text, tokenizer)
        assert tokenizer.decode(ids[tokens.token_at(len("cafe\u0301")) :]) == " the river"
        assert tokens.token_at(len(text)) == len(ids)


def test_a_completion_is_one_part() -> None:
    assert plain("abc").spans == (Span("content", 0, 0, 0, 3),)
    assert plain("").spans == ()


def _cached() -> Callable[[str], ChatTemplate]:
    made: dict[str, ChatTemplate] = {}

    def template(source: str) -> ChatTemplate:
        if source not in made:
            made[source] = ChatTemplate(source, HASH)
        return made[source]

    return template


TEMPLATES = _cached()


def _between_marks(text: str) -> list[tuple[int, int]]:
    """Where in the text without marks what stood between them begins and ends."""
    places: list[tuple[int, int]] = []
    length = 0
    for i, piece in enumerate(text.replace("\ue001", "\ue000").split("\ue000")):
        if i % 2:
            places.append((length, length + len(piece)))
        length += len(piece)
    return places
