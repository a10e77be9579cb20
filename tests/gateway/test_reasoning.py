"""What a reply may think, told from the end of its prompt."""

from __future__ import annotations

import pytest

from gateway.reasoning import REASONING_FORMATS, detect_reasoning, thinks_after
from gateway.tokenizer import Tokenizer
from gateway.tools.families import HERMES
from gateway.tools.structure import Reasoning

TOKENIZER = Tokenizer.hash()
THOUGHTS = HERMES.thinking("<think>", "</think>").thoughts


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<|im_start|>assistant\n", "optional"),
        ("<|im_start|>assistant\n<think>\n", "open"),
        ("<|im_start|>assistant\n<think>", "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "off"),
        ("</think> is a tag. <think> too<|im_end|>\n<|im_start|>assistant\n", "optional"),
    ],
)
def test_a_prompt_opens_thoughts_or_closes_them_or_neither(prompt: str, expected: Reasoning) -> None:
    ids = TOKENIZER.encode(prompt, add_special=False)
    assert thinks_after(THOUGHTS, TOKENIZER, ids) == expected


@pytest.mark.parametrize(
    ("continued", "expected"),
    [("The answer", "off"), ("<think>Let me", "open"), ("<think>So</think>The", "off"), ("", "off")],
)
def test_an_answer_that_goes_on(continued: str, expected: Reasoning) -> None:
    assert thinks_after(THOUGHTS, TOKENIZER, [1, 2], continued) == expected


def test_a_model_that_does_not_think() -> None:
    assert thinks_after(None, TOKENIZER, TOKENIZER.encode("<think>", add_special=False)) == "off"


@pytest.mark.parametrize("name", REASONING_FORMATS)
def test_a_template_tells_by_the_mark_that_ends_thoughts(name: str) -> None:
    form = REASONING_FORMATS[name]
    assert detect_reasoning(f"{{{{ message.content.split('{form.close}')[-1] }}}}") == form
    assert detect_reasoning("{{ message.content }}") is None
