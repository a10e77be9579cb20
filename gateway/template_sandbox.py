"""A model's chat template, compiled, and the world it runs in: what templates of the field expect, and no more.

The sandbox is jinja2's immutable one: no attributes that lead out of the template, no change to what it is given, no
`range` over 100,000. Output is bounded. The template comes with the model and is trusted as far as that; a request has
no way to bring one.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

Message = dict[str, Any]
"""One message as JSON: role, content (string, list of text parts, or null), tool_calls, tool_call_id, name …"""

Clock = Callable[[], dt.datetime]

OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Names that every template is given by us; special tokens such as bos_token come besides."""

_NOTHING: Mapping[str, Any] = {}

MAX_OUTPUT = 64 * 2**20
"""Characters a rendering may have: above any request body, far below memory."""


class TemplateError(ValueError):
    """The template cannot be used, or refuses these messages. `str(error)` is safe to show a client."""


class TemplateSandbox:
    """Immutable; `render` may run in many threads at once."""

    def __init__(
        self, source: str, names: Mapping[str, str], *, clock: Clock, max_output: int = MAX_OUTPUT
    ) -> None:
        """`names` are variables the template sees, such as bos_token. Raises TemplateError if it does not compile."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: clock().strftime(form)
        self.source = source
        self._max_output = max_output
        self._names = dict(names)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Message] | None = None,
        variables: Mapping[str, Any] = _NOTHING,
    ) -> str:
        """The prompt as the template writes it. `variables` are what else it may ask for. Raises TemplateError."""
        context = {
            **variables,
            **self._names,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return "".join(self._bounded(self._template.generate(context)))
        except _Refusal as refusal:
            raise TemplateError(str(refusal)) from refusal
        except _FAULTS as error:
            what = f"{type(error).__name__}: {error}"
            raise TemplateError(f"the chat template cannot render these messages: {what}") from error

    def _bounded(self, pieces: Iterable[str]) -> Iterator[str]:
        length = 0
        for piece in pieces:
            length += len(piece)
            if length > self._max_output:
                raise _Refusal(f"the rendered prompt is longer than {self._max_output} characters")
            yield piece


class _Refusal(jinja2.TemplateError):
    """A reason in words for the client: the template called raise_exception, or a bound was passed."""


_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What an expression of a template can raise on data it did not expect."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model wrote, for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - declared as an instance variable by the base class

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: no HTML escapes, no \\u escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)
