# ruff: noqa: RUF001 - the marks of DeepSeek models have full-width bars
"""The call formats of the model families that are known, and which of them a chat template speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from grammar.spec import Marker

from .arguments.elements import Elements
from .arguments.gemma import Gemma
from .arguments.json_object import JsonObject
from .arguments.pythonic import Pythonic
from .family import Family
from .shapes import Frame, Slot

_NAME, _NUMBER, _ARGUMENTS, _KEY, _TYPE = Slot.NAME, Slot.NUMBER, Slot.ARGUMENTS, Slot.KEY, Slot.TYPE
_CALL, _CALL_END = Marker("<tool_call>"), Marker("</tool_call>")
_JSON = JsonObject()

# -- JSON objects with a name and arguments ----------------------------------------------------------------------------

HERMES: Final = Family(
    name="hermes",
    call=(_CALL, '\n{"name": "', _NAME, '", "arguments": ', _ARGUMENTS, "}\n", _CALL_END),
    between="\n",
    style=_JSON,
)
QWEN_3: Final = replace(HERMES, name="qwen_3")
GRANITE_4: Final = replace(HERMES, name="granite_4")
EXAONE: Final = replace(
    HERMES, name="exaone", call=(_CALL, '{"name": "', _NAME, '", "arguments": ', _ARGUMENTS, "}", _CALL_END)
)
_LISTED = ('{"name": "', _NAME, '", "arguments": ', _ARGUMENTS, "}")
SMOLLM_2: Final = Family(
    name="smollm_2", section=Frame((_CALL, "["), ("]", _CALL_END)), call=_LISTED, between=", ", style=_JSON
)
GRANITE_3: Final = Family(
    name="granite_3",
    section=Frame((Marker("<|tool_call|>"), "["), ("]",)),
    call=_LISTED,
    between=", ",
    style=_JSON,
)
MISTRAL_LIST: Final = Family(
    name="mistral_list",
    section=Frame((Marker("[TOOL_CALLS]"), " ["), ("]",)),
    call=_LISTED,
    between=", ",
    style=_JSON,
    thoughts=Frame((Marker("[THINK]"),), (Marker("[/THINK]"),)),
)
LLAMA: Final = Family(
    name="llama",
    call=('{"name": "', _NAME, '", "parameters": ', _ARGUMENTS, "}"),
    between="; ",
    alone=True,
    style=_JSON,
)

# -- marks around the name, JSON arguments -----------------------------------------------------------------------------

MISTRAL: Final = replace(
    MISTRAL_LIST,
    name="mistral",
    section=Frame(),
    call=(Marker("[TOOL_CALLS]"), _NAME, Marker("[ARGS]"), _ARGUMENTS),
    between="",
)
DEEPSEEK_V3_1: Final = Family(
    name="deepseek_v3_1",
    section=Frame((Marker("<｜tool▁calls▁begin｜>"),), (Marker("<｜tool▁calls▁end｜>"),)),
    call=(
        Marker("<｜tool▁call▁begin｜>"),
        _NAME,
        Marker("<｜tool▁sep｜>"),
        _ARGUMENTS,
        Marker("<｜tool▁call▁end｜>"),
    ),
    preamble=400,
    style=_JSON,
)
DEEPSEEK_R1: Final = replace(
    DEEPSEEK_V3_1,
    name="deepseek_r1",
    call=(
        Marker("<｜tool▁call▁begin｜>"),
        "function",
        Marker("<｜tool▁sep｜>"),
        _NAME,
        "\n```json\n",
        _ARGUMENTS,
        "\n```",
        Marker("<｜tool▁call▁end｜>"),
    ),
    between="\n",
)
KIMI: Final = Family(
    name="kimi",
    section=Frame((Marker("<|tool_calls_section_begin|>"),), (Marker("<|tool_calls_section_end|>"),)),
    call=(
        Marker("<|tool_call_begin|>"),
        "functions.",
        _NAME,
        ":",
        _NUMBER,
        Marker("<|tool_call_argument_begin|>"),
        _ARGUMENTS,
        Marker("<|tool_call_end|>"),
    ),
    identity="functions.{name}:{number}",
    preamble=400,
    style=_JSON,
)
_CHANNEL, _MESSAGE, _START = Marker("<|channel|>"), Marker("<|message|>"), Marker("<|start|>")
_NEXT = (Marker("<|end|>"), _START, "assistant")
HARMONY: Final = Family(
    name="harmony",
    call=(
        _CHANNEL,
        "commentary to=functions.",
        _NAME,
        " ",
        Marker("<|constrain|>"),
        "json",
        _MESSAGE,
        _ARGUMENTS,
    ),
    spellings=(
        (
            " to=functions.",
            _NAME,
            _CHANNEL,
            "commentary ",
            Marker("<|constrain|>"),
            "json",
            _MESSAGE,
            _ARGUMENTS,
        ),
        (" to=functions.", _NAME, _CHANNEL, "commentary json", _MESSAGE, _ARGUMENTS),
    ),
    several=False,
    text=Frame((_CHANNEL, "final", _MESSAGE)),
    aside=Frame((_CHANNEL, "commentary", _MESSAGE), _NEXT),
    preamble=400,
    thoughts=Frame((_CHANNEL, "analysis", _MESSAGE), _NEXT),
    ends=("<|call|>", "<|return|>", "<|end|>"),
    style=_JSON,
)

# -- arguments as elements ---------------------------------------------------------------------------------------------

QWEN_3_CODER: Final = Family(
    name="qwen_3_coder",
    call=(_CALL, "\n<function=", _NAME, ">\n", _ARGUMENTS, "</function>\n", _CALL_END),
    between="\n",
    style=Elements(Frame(("<parameter=", _KEY, ">\n"), ("\n</parameter>\n",))),
)
QWEN_3_5: Final = replace(QWEN_3_CODER, name="qwen_3_5")
MIMO: Final = Family(
    name="mimo",
    call=(_CALL, "<function=", _NAME, ">", _ARGUMENTS, "</function>", _CALL_END),
    between="\n",
    style=Elements(Frame(("<parameter=", _KEY, ">"), ("</parameter>",))),
)
_ARG_KEY, _ARG_KEY_END = Marker("<arg_key>"), Marker("</arg_key>")
_ARG_VALUE, _ARG_VALUE_END = Marker("<arg_value>"), Marker("</arg_value>")
GLM_4_5: Final = Family(
    name="glm_4_5",
    call=(_CALL, _NAME, "\n", _ARGUMENTS, _CALL_END),
    between="\n",
    preamble=400,
    style=Elements(Frame((_ARG_KEY, _KEY, _ARG_KEY_END, "\n", _ARG_VALUE), (_ARG_VALUE_END, "\n"))),
)
GLM_4_7: Final = replace(
    GLM_4_5,
    name="glm_4_7",
    call=(_CALL, _NAME, _ARGUMENTS, _CALL_END),
    between="",
    style=Elements(Frame((_ARG_KEY, _KEY, _ARG_KEY_END, _ARG_VALUE), (_ARG_VALUE_END,))),
)
MINIMAX: Final = Family(
    name="minimax",
    section=Frame((Marker("<minimax:tool_call>"), "\n"), (Marker("</minimax:tool_call>"),)),
    call=('<invoke name="', _NAME, '">\n', _ARGUMENTS, "</invoke>\n"),
    preamble=400,
    style=Elements(Frame(('<parameter name="', _KEY, '">'), ("</parameter>\n",))),
)
_NS = Marker("]<]minimax[>[")
MINIMAX_M3: Final = Family(
    name="minimax_m3",
    section=Frame((_NS, "<tool_call>\n"), (_NS, "</tool_call>")),
    call=(_NS, '<invoke name="', _NAME, '">', _ARGUMENTS, _NS, "</invoke>\n"),
    preamble=400,
    thoughts=Frame((Marker("<mm:think>"),), (Marker("</mm:think>"),)),
    style=Elements(
        Frame((_NS, "<", _KEY, ">"), (_NS, "</", _KEY, ">")), item=Frame((_NS, "<item>"), (_NS, "</item>"))
    ),
)
_DSML = Marker("｜DSML｜")


def _dsml(name: str, section: str, space: str = "") -> Family:
    field = Frame(
        ("<", _DSML, f'{space}parameter name="', _KEY, '" string="', _TYPE, '">'),
        ("</", _DSML, f"{space}parameter>\n"),
    )
    types = dict.fromkeys(("number", "boolean", "null", "object", "array"), "false")
    return Family(
        name=name,
        section=Frame(("<", _DSML, f"{space}{section}>\n"), ("</", _DSML, f"{space}{section}>")),
        call=(
            "<",
            _DSML,
            f'{space}invoke name="',
            _NAME,
            '">\n',
            _ARGUMENTS,
            "</",
            _DSML,
            f"{space}invoke>\n",
        ),
        preamble=400,
        style=Elements(field, types={**types, "string": "true"}),
    )


DEEPSEEK_V3_2: Final = _dsml("deepseek_v3_2", "function_calls")
DEEPSEEK_V4: Final = _dsml("deepseek_v4", "tool_calls")
DEEPSEEK_V4_1: Final = _dsml("deepseek_v4_1", "calls", " ")

_COFL_TYPES = {
    "string": "raw",
    "number": "json",
    "boolean": "json",
    "null": "json",
    "object": "dict",
    "array": "list",
}
COHERE: Final = Family(
    name="cohere",
    section=Frame((Marker("<cofl:tool_calls>"),), (Marker("</cofl:tool_calls>"),)),
    call=(
        '<cofl:tool_call id="',
        _NUMBER,
        '" name="',
        _NAME,
        '">',
        _ARGUMENTS,
        "</cofl:tool_call>",
    ),
    thoughts=Frame((Marker("<|START_THINKING|>"),), (Marker("<|END_THINKING|>"),)),
    style=Elements(
        Frame(('<cofl:value name="', _KEY, '" type="', _TYPE, '">'), ("</cofl:value>",)),
        types=_COFL_TYPES,
        item=Frame(('<cofl:value type="', _TYPE, '">'), ("</cofl:value>",)),
        escapes=(("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")),
    ),
)
_OPEN, _CLOSE, _SEP = Marker("<|open|>"), Marker("<|close|>"), Marker("<|sep|>")
KIMI_K3: Final = Family(
    name="kimi_k3",
    section=Frame((_OPEN, "tools", _SEP), (_CLOSE, "tools", _SEP)),
    call=(
        _OPEN,
        'call tool="',
        _NAME,
        '" index="',
        _NUMBER,
        '"',
        _SEP,
        _ARGUMENTS,
        _CLOSE,
        "call",
        _SEP,
    ),
    text=Frame((), (_CLOSE, "response", _SEP)),
    aside=Frame((), (_CLOSE, "response", _SEP)),
    tail=(_CLOSE, "message", _SEP),
    thoughts=Frame((_OPEN, "think", _SEP), (_CLOSE, "think", _SEP, _OPEN, "response", _SEP)),
    preamble=400,
    style=Elements(
        Frame(
            (_OPEN, 'argument key="', _KEY, '" type="', _TYPE, '"', _SEP),
            (_CLOSE, "argument", _SEP),
        ),
        types={kind: kind for kind in ("string", "number", "boolean", "null", "object", "array")},
        escapes=(("&", "&amp;"), ('"', "&quot;")),
    ),
)

# -- arguments of their own kind ---------------------------------------------------------------------------------------

GEMMA_4: Final = Family(
    name="gemma_4",
    call=(Marker("<|tool_call>"), "call:", _NAME, _ARGUMENTS, Marker("<tool_call|>")),
    thoughts=Frame((Marker("<|channel>"), "thought\n"), (Marker("<channel|>"),)),
    style=Gemma(),
)
LLAMA_4: Final = Family(
    name="llama_4",
    section=Frame(("[",), ("]",)),
    call=(_NAME, "(", _ARGUMENTS, ")"),
    between=", ",
    alone=True,
    style=Pythonic(),
)

# ----------------------------------------------------------------------------------------------------------------------

DEFAULT: Final = HERMES
"""For models whose template knows no tools."""

FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        COHERE,
        DEEPSEEK_R1,
        DEEPSEEK_V3_1,
        DEEPSEEK_V3_2,
        DEEPSEEK_V4,
        DEEPSEEK_V4_1,
        EXAONE,
        GEMMA_4,
        GLM_4_5,
        GLM_4_7,
        GRANITE_3,
        GRANITE_4,
        HARMONY,
        HERMES,
        KIMI,
        KIMI_K3,
        LLAMA,
        LLAMA_4,
        MIMO,
        MINIMAX,
        MINIMAX_M3,
        MISTRAL,
        MISTRAL_LIST,
        QWEN_3,
        QWEN_3_5,
        QWEN_3_CODER,
        SMOLLM_2,
    )
}

ALIASES: Final[Mapping[str, str]] = {
    "command": "cohere",
    "deepseek_v3": "deepseek_r1",
    "gpt_oss": "harmony",
    "kimi_k2": "kimi",
    "llama_3": "llama",
    "llama_4_pythonic": "llama_4",
    "minimax_m2": "minimax",
    "pythonic": "llama_4",
    "qwen_2_5": "qwen_3",
    "smollm": "smollm_2",
    "smollm_3": "exaone",
}


def named(name: str) -> Family | None:
    """The family of a name or an alias, with `-` or `.` for `_` if one likes."""
    plain = name.lower().replace("-", "_").replace(".", "_")
    return FAMILIES.get(ALIASES.get(plain, plain))


_SIGNS: Final[tuple[tuple[tuple[str, ...], Family], ...]] = (
    (("<cofl:tool_call",), COHERE),
    (("<|tool_calls_section_begin|>",), KIMI),
    (("<|open|>", "<|sep|>"), KIMI_K3),
    (("<｜tool▁calls▁begin｜>", "```json"), DEEPSEEK_R1),
    (("<｜tool▁calls▁begin｜>",), DEEPSEEK_V3_1),
    (("｜DSML｜", "function_calls"), DEEPSEEK_V3_2),
    (("｜DSML｜", "tool_calls>"), DEEPSEEK_V4),
    (("｜DSML｜", " calls>"), DEEPSEEK_V4_1),
    (("<|channel|>", "commentary", "<|message|>"), HARMONY),
    (("<|tool_call>", "<tool_call|>"), GEMMA_4),
    (("]<]minimax[>[",), MINIMAX_M3),
    (("<minimax:tool_call>",), MINIMAX),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL),
    (("[TOOL_CALLS]",), MISTRAL_LIST),
    (("<arg_key>", "<arg_value>", "}</arg_key>\n<arg_value>"), GLM_4_5),
    (("<arg_key>", "<arg_value>"), GLM_4_7),
    (("<tool_call><function=",), MIMO),
    (("<tool_call>", "<function="), QWEN_3_CODER),
    (("<|tool_call|>",), GRANITE_3),
    (("<tool_call>[",), SMOLLM_2),
    (("<tool_call>{",), EXAONE),
    (("<tool_call>",), HERMES),
    (("[func_name1(",), LLAMA_4),
    (('{"name":', '"parameters":'), LLAMA),
)
"""What a template that speaks a family's format writes or shows, all of it. The first that fits is taken."""


def detect(template: str) -> Family | None:
    """The family that a chat template writes calls for; None for one that knows no tools or a format we do not know."""
    if "tools" not in template:
        return None
    return next((family for signs, family in _SIGNS if all(sign in template for sign in signs)), None)
