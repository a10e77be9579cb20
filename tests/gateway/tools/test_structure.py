"""The grammar of whole replies: its form. What it accepts is in test_formats."""

from __future__ import annotations

from gateway.tools.families import HERMES
from gateway.tools.structure import structure
from grammar.spec import Choice, Concat, FreeText, JsonSchema, Literal, Marker, Repeat

from .replies import SET_TEMP

CALL = Concat(
    (
        Marker("<tool_call>"),
        Literal('\n{"name": "set_temp", "arguments": '),
        SET_TEMP.arguments,
        Literal("}\n"),
        Marker("</tool_call>"),
    )
)
FREE = FreeText(("<tool_call>", "</tool_call>", "<think>", "</think>"))


def test_named_is_one_call_and_nothing_else() -> None:
    grammar = structure(HERMES, [SET_TEMP], mode="named", allowed=["set_temp"])
    assert grammar == Repeat(CALL, 1, 1, "\n")


def test_auto_is_text_and_calls() -> None:
    calls = Concat((Repeat(CALL, 1, None, "\n"), Choice(("", "\n"))))
    grammar = structure(HERMES, [SET_TEMP], mode="auto", allowed=["set_temp"])
    assert grammar == Concat((FREE, Repeat(calls, 0, 1)))


def test_none_is_text_without_marks() -> None:
    assert structure(HERMES, [SET_TEMP], mode="none") == FREE


def test_reasoning_is_free_and_the_answer_follows_it() -> None:
    answer = JsonSchema('{"type":"integer"}')
    grammar = structure(HERMES, [], mode="none", reasoning="open", answer=answer)
    pause = Choice(("", "\n", "\n\n"))
    assert grammar == Concat((FreeText(("</think>",)), Marker("</think>"), pause, answer))
