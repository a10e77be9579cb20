"""The `headwater` command: the only reader of argv and the environment. Each subcommand is a few lines over its module."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click
import uvloop

from engine.errors import EngineError

from .api_client import ApiError
from .cache_cli import cache
from .config import CacheOptions, EngineOptions, Http, Limits, ModelOptions, StoreOptions
from .options import ENVIRONMENT_PREFIX, options_of, read, read_file, sections_of

SERVE_PARTS = (Http, ModelOptions, EngineOptions, CacheOptions, StoreOptions, Limits)
LOCAL = "http://127.0.0.1:8000/v1"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="headwater", prog_name="headwater")
def cli() -> None:
    """Headwater: an OpenAI-compatible LLM server with a managed prompt cache."""


def _load_file(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Make the YAML file the command's default map: below flags and environment, above the built-in defaults."""
    if path is not None:
        context.default_map = read_file(path, *SERVE_PARTS)
    return path


@cli.command(cls=sections_of(*SERVE_PARTS), short_help="Serve a model over HTTP.")
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
    from .serve import serve as run_server

    server = run_server(
        model,
        http=read(Http, values),
        models=read(ModelOptions, values),
        engine=read(EngineOptions, values),
        caching=read(CacheOptions, values),
        keeping=read(StoreOptions, values),
        limits=read(Limits, values),
    )
    _log_to_stderr()
    raise SystemExit(uvloop.run(server))


@cli.command(short_help="Fetch or import a model.")
@click.argument("model", required=False)
@options_of(ModelOptions, only=("store", "offline"))
def pull(model: str | None, store: Path, offline: bool) -> None:
    """Fetch MODEL (a hub id, a .gguf file, or nothing for the demo model) into the store, ahead of serving it."""
    from rich.console import Console

    from .pull import pull as fetch

    local = fetch(store, model, Console(stderr=True), offline=offline)
    click.echo(f"{local.id}: {local.path}")


@cli.group(short_help="Make, show and revoke API keys.")
def keys() -> None:
    """Make, show and revoke the API keys in a key file. A running server that uses the file follows within two seconds."""


_key_file_options = options_of(Http, ModelOptions, only=("key_store", "store"))


@keys.command("create", short_help="Make a key and show it once.")
@click.argument("name")
@click.option("--tenant", help="whose key it is: keys of a tenant share a cache; default: NAME")
@click.option("--expires", help="after what time it ends, such as 30d; default: never")
@_key_file_options
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of the key alone")
def create_key(
    *, name: str, tenant: str | None, expires: str | None, key_store: Path | None, store: Path, as_json: bool
) -> None:
    """Make a key called NAME. It is shown now and never again; the file keeps its digest."""
    from .keys_cli import create, key_file

    try:
        create(key_file(key_store, store), name, tenant, expires, as_json=as_json)
    except ValueError as error:
        raise click.UsageError(f"--expires: {error}") from None


@keys.command("list", short_help="Show keys.")
@click.option("--all", "everything", is_flag=True, help="revoked and expired ones too")
@_key_file_options
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table")
def list_keys(everything: bool, key_store: Path | None, store: Path, as_json: bool) -> None:
    """Show the keys that may be used: whose they are and how they end."""
    from .keys_cli import key_file, show

    show(key_file(key_store, store), everything=everything, as_json=as_json)


@keys.command("revoke", short_help="End a key.")
@click.argument("key")
@_key_file_options
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a line")
def revoke_key(key: str, key_store: Path | None, store: Path, as_json: bool) -> None:
    """End KEY, given by its id or its name."""
    from .keys_cli import key_file, revoke

    revoke(key_file(key_store, store), key, as_json=as_json)


@cli.command(short_help="Talk to a running server.")
@click.option("--url", default=LOCAL, show_default=True, help="server, with or without /v1")
@click.option("--model", help="model; default: the first the server lists")
@click.option("--key", envvar="OPENAI_API_KEY", help="API key")
@click.option("--system", help="system message")
@click.option("--temperature", type=float, default=0.7, show_default=True, help="0 takes the likeliest")
@click.option("--max-tokens", type=int, default=512, show_default=True, help="most tokens of an answer")
def chat(**options: Any) -> None:
    """Talk to a running server in the terminal."""
    from .chat_cli import ChatOptions, run_chat

    run_chat(ChatOptions(**options))


@cli.command(short_help="Put load on a server and measure.")
@click.argument("url", default=LOCAL)
@click.option("--model", help="model; default: the first the server lists")
@click.option("--key", envvar="OPENAI_API_KEY", help="API key")
@click.option(
    "--concurrency", "-c", type=int, help="closed loop: users, each waiting for its answer [default: 1]"
)
@click.option("--rate", type=float, help="open loop: requests a second, arriving at random")
@click.option("--requests", "-n", type=int, default=32, show_default=True, help="requests in all")
@click.option("--prompt-words", type=int, default=100, show_default=True, help="words of each prompt")
@click.option("--shared-words", type=int, default=0, show_default=True, help="words all prompts begin with")
@click.option("--out", "out_tokens", type=int, default=64, show_default=True, help="tokens of each answer")
@click.option("--stream/--no-stream", default=True, help="stream the answers [default: stream]")
@click.option("--seed", type=int, default=0, show_default=True, help="of the words and of the arrivals")
@click.option("--timeout", type=float, default=900.0, show_default=True, help="seconds a request may take")
@click.option("--json", "as_json", is_flag=True, help="one JSON line instead of tables")
def bench(as_json: bool, **options: Any) -> None:
    """Put load on any OpenAI-compatible server at URL and report what its users would have felt."""
    from rich.console import Console

    from .bench import LoadOptions, render, run_load

    try:
        load = LoadOptions(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    report = uvloop.run(run_load(load))
    if as_json:
        click.echo(report.to_json())
    else:
        Console().print(render(report))
    raise SystemExit(1 if report.failed else 0)


@cli.command(short_help="What is installed, and what is missing.")
@options_of(Http, ModelOptions, only=("host", "port", "key_store", "store"))
@options_of(CacheOptions)
def doctor(host: str, port: int, key_store: Path | None, store: Path, **caching: Any) -> None:
    """Examine this machine: what is installed, which device would be used, what stands in the way of serving. With the
    options of the cache what they need is looked at too.
    """
    from rich.console import Console

    from .doctor import examine, healthy, render

    cache = read(CacheOptions, caching)
    console = Console()
    with console.status("looking around …"):
        checks = examine(store, host, port, key_store=key_store, caching=cache)
    console.print(render(checks))
    raise SystemExit(0 if healthy(checks) else 1)


cli.add_command(cache)


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def main() -> None:
    """Entry point. An error is one line on stderr, never a traceback: exit status 2 for one in the options, else 1."""
    try:
        status = cli(prog_name="headwater", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except click.ClickException as error:
        click.echo(f"headwater: {_one_line(error)}", err=True)
        raise SystemExit(error.exit_code) from None
    except (EngineError, ApiError) as error:
        click.echo(f"headwater: {error}", err=True)
        raise SystemExit(1) from None
    except (click.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None
    raise SystemExit(status)


def _one_line(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{message} ({error.ctx.command_path} --help)"
    return message


if __name__ == "__main__":
    main()
