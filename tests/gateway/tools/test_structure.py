"""The grammar of whole replies: its form, custom tools and answers. What it accepts of functions is in test_formats."""

from __future__ import annotations

import pytest

from gateway.tools.arguments.style import ToolShape
from gateway.tools.families import FAMILIES, HERMES
from gateway.tools.family import Family
from gateway.tools.shapes import Slot
from gateway.tools.structure import structure
from grammar.spec import Choice, Concat, FreeText, JsonSchema, Lark, Literal, Marker, Regex, Repeat

from .rendering import calls, fill
from .replies import SET_TEMP, Call, read_all_ways, tool
from .test_formats import before, refused

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


NOTE = ToolShape("note", custom=FreeText())
CODE = ToolShape("code", custom=Regex("[A-Z]{3}-[0-9]+"))
SUM = ToolShape("sum", custom=Lark('start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/'))
TOOLS = [NOTE, CODE, SUM]
NAMES = ["note", "code", "sum"]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_custom_tools(family: Family) -> None:
    grammar = structure(family, TOOLS, mode="required", allowed=NAMES)
    for shape, text, wrong in [
        (NOTE, 'any "text" {\n', None),
        (CODE, "ABC-12", "ABC"),
        (SUM, "1+22+3", "1+"),
    ]:
        written = custom_call(family, shape, text)
        assert refused(grammar, written) is None
        (call,) = read_all_ways(family, TOOLS, written).calls
        assert call == Call(shape.name, text, whole=True, id=call.id, kind="custom")
        assert wrong is None or refused(grammar, custom_call(family, shape, wrong))


def custom_call(family: Family, shape: ToolShape, text: str) -> str:
    if shape is not SUM:
        as_is = tool(shape.name, {"input": {"type": "string"}})
        return before(family) + calls(family, [(as_is, {"input": text})]) + fill(family.tail)
    head = fill(family.heads[0], {Slot.NAME: shape.name, Slot.NUMBER: "0"})
    return before(family) + fill(family.section.open) + head + text


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_an_answer_takes_the_place_of_text(family: Family) -> None:
    answer = JsonSchema('{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}')
    around = fill(family.text.open), fill(family.text.close) + fill(family.tail)
    auto = structure(family, [SET_TEMP], mode="auto", allowed=["set_temp"], answer=answer)
    none = structure(family, [SET_TEMP], mode="none", answer=answer)
    call = before(family) + calls(family, [(SET_TEMP, {"unit": "C", "on": True})]) + fill(family.tail)
    for grammar in (auto, none):
        assert refused(grammar, '{"ok": true}'.join(around)) is None
        assert refused(grammar, "Sure.".join(around))
    assert refused(auto, call) is None
    assert refused(none, call)
    assert read_all_ways(family, [SET_TEMP], '{"ok": true}'.join(around)).content == '{"ok": true}'
    if family.thoughts is not None:
        thinking = structure(family, [], mode="none", reasoning="open", answer=answer)
        thought = "Hm." + fill(family.thoughts.close)
        assert refused(thinking, thought + '{"ok": true}'.join(around)) is None
        assert refused(thinking, '{"ok": true}'.join(around))
