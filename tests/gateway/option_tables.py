"""The option tables of `docs/operations.md`, made from `gateway.config`.

usage: python -m tests.gateway.option_tables     writes them into the document, between its markers
"""

from __future__ import annotations

from pathlib import Path

import click

from gateway.__main__ import SERVE_PARTS, cli

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
BEGIN = "<!-- options: made by tests/gateway/option_tables.py -->"
END = "<!-- end of options -->"


def tables() -> str:
    """Markdown: a table for each part of the configuration."""
    options = {o.name: o for o in cli.commands["serve"].params if isinstance(o, click.Option)}
    parts = []
    for part in SERVE_PARTS:
        title = (part.__doc__ or "").partition(".")[0]
        rows = [_row(name, options[name]) for name in part.model_fields]
        parts.append(
            "\n".join([f"### {title}", "", "| flag | name | default | meaning |", "|---|---|---|---|", *rows])
        )
    return "\n\n".join(parts)


def _row(name: str, option: click.Option) -> str:
    flags = "/".join([*option.opts, *option.secondary_opts])
    meaning = (option.help or "").replace("|", "\\|")
    return f"| `{flags}` | `{name}` | {_default(option.default)} | {meaning} |"


def _default(value: object) -> str:
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value}`"


def written(document: str) -> str:
    """What stands between the markers."""
    return document.partition(BEGIN)[2].partition(END)[0].strip()


if __name__ == "__main__":
    text = DOCUMENT.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{tables()}\n\n{END}{tail}", "utf-8")
