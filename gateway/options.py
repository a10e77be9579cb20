"""One field, three spellings: turns the parts of `config` into flags, environment variables and YAML keys.

`options_of(Part)` makes click options; click itself does the precedence (flag, then `HEADWATER_NAME`, then the YAML file
as its default map, then the field's default). `read` makes the frozen part from what click collected.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import click
import yaml
from pydantic import BaseModel, ByteSize, ValidationError
from pydantic.fields import FieldInfo

PartT = TypeVar("PartT", bound=BaseModel)
Command = Callable[..., Any]
ENVIRONMENT_PREFIX = "HEADWATER_"


def options_of(*parts: type[BaseModel], only: Container[str] | None = None) -> Callable[[Command], Command]:
    """A decorator that adds one option for each field of the parts, in the order of their definition, or `only` some."""

    def decorate(command: Command) -> Command:
        for part in reversed(parts):
            for name, field in reversed(part.model_fields.items()):
                if only is None or name in only:
                    command = _option(name, field)(command)
        return command

    return decorate


def _option(name: str, field: FieldInfo) -> Callable[[Command], Command]:
    kind, multiple, toggle = _click_type(field.annotation)
    flag = _flag(name, multiple=multiple)
    default = field.get_default(call_default_factory=True)
    shown = default not in (None, ()) and not toggle
    return click.option(
        f"{flag}/--no-{flag[2:]}" if toggle else flag,
        name,
        type=kind,
        multiple=multiple,
        default=default,
        show_default=shown,
        envvar=ENVIRONMENT_PREFIX + name.upper(),
        help=field.description,
    )


def _flag(name: str, *, multiple: bool) -> str:
    return "--" + (name.removesuffix("s") if multiple else name).replace("_", "-")


def _click_type(annotation: Any) -> tuple[click.ParamType[Any] | type | None, bool, bool]:
    """The click type of an annotation, whether it repeats, and whether it is an on/off flag."""
    annotation = _required(annotation)
    if get_origin(annotation) is Literal:
        return click.Choice(get_args(annotation)), False, False
    if get_origin(annotation) is tuple:
        return str, True, False
    if annotation is bool:
        return None, False, True
    if annotation is Path:
        return _Place(path_type=Path), False, False
    if annotation is ByteSize:
        return str, False, False
    return annotation, False, False


def _required(annotation: Any) -> Any:
    """The annotation without its None."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next(a for a in get_args(annotation) if a is not type(None))
    return annotation


class _Place(click.Path):
    """A path that may begin with `~`: in a file, the environment or after `=` no shell has expanded that."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        path = Path(super().convert(value, parameter, context))  # type: ignore[arg-type]
        try:
            return path.expanduser()
        except RuntimeError:
            self.fail(f"{path}: this user has no home directory, name another place", parameter, context)


class Sections(click.Command):
    """A command whose help lists options by part, each under the first sentence of its docstring."""

    parts: tuple[type[BaseModel], ...] = ()

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(self._title(parameter.name), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def _title(self, name: str | None) -> str:
        for part in self.parts:
            if name in part.model_fields:
                return (part.__doc__ or part.__name__).partition(".")[0]
        return "Options"


def sections_of(*parts: type[BaseModel]) -> type[Sections]:
    return type("Sections", (Sections,), {"parts": parts})


def read(part: type[PartT], values: dict[str, Any]) -> PartT:
    """The part made of its own fields among `values`. Raises click.UsageError naming the field that is wrong."""
    try:
        return part(**{name: values[name] for name in part.model_fields})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = f"{first['loc'][0]}: " if first["loc"] else ""
        raise click.UsageError(where + first["msg"].removeprefix("Value error, ")) from None


def read_file(path: Path, *parts: type[BaseModel]) -> dict[str, Any]:
    """A YAML mapping of the parts' option names to values; those that are null are left out.

    A single string may stand for a list. Raises click.UsageError for anything else, unknown names and values of another
    type included. Whether a value is in its range is up to `read`.
    """
    kinds = {name: _required(field.annotation) for part in parts for name, field in part.model_fields.items()}
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path}: {error}") from None
    except yaml.YAMLError as error:
        raise click.UsageError(f"{path}: not YAML: {yaml_problem(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise click.UsageError(f"{path}: expected a mapping of option names to values")
    names = {str(key).replace("-", "_"): value for key, value in content.items()}
    unknown = sorted(names.keys() - kinds.keys())
    if unknown:
        raise click.UsageError(f"{path}: unknown option {unknown[0]!r}")
    return {
        name: _of_file(path, name, value, kinds[name]) for name, value in names.items() if value is not None
    }


_YAML_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int, str), "a whole number"),
    float: ((int, float, str), "a number"),
    ByteSize: ((int, str), "a size such as 2GiB"),
}
"""What stands for a kind of value in a file, and how that is called; a string for all others. YAML 1.1, which
PyYAML reads, takes numbers such as `1e-3` for strings: click makes numbers of those."""


def _of_file(path: Path, name: str, value: Any, kind: Any) -> Any:
    """The value as click takes it. click would make a number of `true` and text of anything."""
    if get_origin(kind) is tuple:
        values = value if isinstance(value, list) else [value]
        if all(isinstance(each, str) for each in values):
            return values
        raise click.UsageError(f"{path}: {name}: expected a list of strings")
    accepted, called = _YAML_KINDS.get(kind, ((str,), "a string"))
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise click.UsageError(f"{path}: {name}: expected {called}")
    return value


def yaml_problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        return f"{error.problem} in line {error.problem_mark.line + 1}"
    return " ".join(str(error).split())
