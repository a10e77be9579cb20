"""The `headwater` command: the only reader of argv and the environment. Each subcommand is a few lines over its module."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import click
import uvloop

from engine.errors import EngineError

from .config import EngineOptions, Http, Limits, ModelOptions
from .options import ENVIRONMENT_PREFIX, options_of, read, read_file

SERVE_PARTS = (Http, ModelOptions, EngineOptions, Limits)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(installed_version("headwater"), prog_name="headwater")
def cli() -> None:
    """Headwater: an OpenAI-compatible LLM server with a managed prompt cache."""


def _load_file(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Make the YAML file the command's default map: below flags and environment, above the built-in defaults."""
    if path is not None:
        known = {name for part in SERVE_PARTS for name in part.model_fields}
        context.default_map = read_file(path, known)
    return path


@cli.command(short_help="Serve a model over HTTP.")
@click.argument("model", required=False)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=_load_file,
    envvar=ENVIRONMENT_PREFIX + "CONFIG",
    help="YAML file of these options, names with _ for -",
)
@options_of(*SERVE_PARTS)
def serve(model: str | None, **values: Any) -> None:
    """Serve MODEL: a directory in Hugging Face layout, a .gguf file, a hub id, `hash` for the hash model, or nothing
    for the demo model. Every option is also an environment variable HEADWATER_NAME and a key of the --config file;
    flags win over the environment, the environment over the file.
    """
    from .serve import Serve

    http, model_options, engine, limits = (read(part, values) for part in SERVE_PARTS)
    assert isinstance(http, Http)
    assert isinstance(model_options, ModelOptions)
    assert isinstance(engine, EngineOptions)
    assert isinstance(limits, Limits)
    raise SystemExit(uvloop.run(Serve(model, http, model_options, engine, limits).run()))


def main() -> None:
    """Entry point. An error of ours is one line on stderr and exit status 1, never a traceback."""
    try:
        cli()
    except EngineError as error:
        click.echo(f"headwater: {error}", err=True)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
