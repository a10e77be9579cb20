"""The `tools` of a request: what each is called, what it takes, and what is promised about that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grammar.contract import Contract
from grammar.spec import FreeText, Lark, Regex


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function that takes a JSON object.

    `parameters` is its schema as the client sent it, `{"type": "object", "properties": {}}` with
    `additionalProperties: false` where it sent none. `contract.grammar` is the JSON text of its arguments.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Any]
    strict: bool
    contract: Contract


@dataclass(frozen=True, slots=True)
class CustomTool:
    """A tool that takes a text, which `input` describes."""

    name: str
    description: str | None
    input: FreeText | Lark | Regex


Tool = FunctionTool | CustomTool
