"""Tools as a prompt shows them.

A template that knows tools is given them as a list, each in the form models were trained on; what only concerns us
(`strict`) is left out. For a template that knows none they become a text. Both depend on nothing but the tools, so that
the prompts of an agent keep a common beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grammar.spec import Lark, Regex

from ..chat_template import ToolPrompt
from ..template_sandbox import to_json
from .definitions import CustomTool, Tool

CUSTOM_ARGUMENT = "input"
"""To a model a custom tool is a function with this one argument, a text."""

_TEXT = """\
# Tools

Each line between the tags describes a tool that you can call:
<tools>
{tools}
</tools>

To call one, write its name and arguments that fit its parameters, in this form and nothing else:
{example}"""


def tool_prompt(tools: Sequence[Tool], example: str) -> ToolPrompt:
    """`example` is a call as the model is to write it."""
    listed = [_listed(tool) for tool in tools]
    lines = [to_json(entry) for entry in listed]
    # not by format: the names and descriptions may hold braces
    text = _TEXT.replace("{example}", example).replace("{tools}", "\n".join(lines))
    return ToolPrompt(listed, text, lines)


def custom_arguments(text: str) -> str:
    """The arguments of a call to a custom tool, as JSON."""
    return to_json({CUSTOM_ARGUMENT: text})


def _listed(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if description := _described(tool) if isinstance(tool, CustomTool) else tool.description:
        function["description"] = description
    function["parameters"] = _CUSTOM_PARAMETERS if isinstance(tool, CustomTool) else dict(tool.parameters)
    return {"type": "function", "function": function}


_CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {CUSTOM_ARGUMENT: {"type": "string"}},
    "required": [CUSTOM_ARGUMENT],
}


def _described(tool: CustomTool) -> str:
    """With what the text has to look like, which a model cannot see otherwise."""
    parts = [tool.description] if tool.description else []
    match tool.input:
        case Lark(text):
            parts.append(f"The input follows this grammar (Lark):\n{text}")
        case Regex(pattern):
            parts.append(f"The input matches this regular expression: {pattern}")
    return "\n\n".join(parts)
