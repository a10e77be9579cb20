"""`headwater cache`: the prompt cache of a running server, from the terminal.

Tables go to stdout, and with `--json` what the server said, word for word. A cache may be named by its id or its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import aiohttp
import click
import orjson

from . import cache_tables
from .api_client import ApiError, base_url, first_model, open_session, raise_for_status, reason

LOCAL = "http://127.0.0.1:8000/v1"
PATIENCE = 600.0
"""Seconds for a request: warming a long prompt takes its time."""
PAGE = 100
CHUNK = 1 << 18

_NOTHING: Mapping[str, str] = {}
Json = dict[str, Any]


class CacheClient:
    """The addresses below /v1/caches. Every method blocks, and raises ApiError."""

    def __init__(self, url: str, key: str | None, *, as_json: bool) -> None:
        self.url = base_url(url)
        self.as_json = as_json
        self._key = key

    def ask(
        self, method: str, path: str, body: Json | None = None, *, query: Mapping[str, str] = _NOTHING
    ) -> Json:
        return asyncio.run(self._exchange(method, path, query, json=body))

    def caches(self, query: Mapping[str, str] = _NOTHING) -> list[Json]:
        """All of them, page by page."""
        found: list[Json] = []
        more = True
        while more:
            after = {"after": found[-1]["id"]} if found else {}
            page = self.ask("GET", "/caches", query={"limit": str(PAGE), **query, **after})
            found += page["data"]
            more = page["has_more"]
        return found

    def model(self) -> str:
        """The first that the server lists."""

        async def first() -> str:
            async with open_session(self._key, timeout=PATIENCE) as session:
                return await first_model(session, self.url)

        return asyncio.run(first())

    def download(self, path: str, to: Path) -> int:
        """Into a file that is there whole or not at all; its size. Raises OSError."""
        descriptor, made = tempfile.mkstemp(dir=to.parent, prefix=f".{to.name}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                size = asyncio.run(self._copy(path, file))
            Path(made).replace(to)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
        return size

    def upload(self, path: str, file: Path, query: Mapping[str, str]) -> Json:
        """Raises OSError."""
        headers = {"Content-Type": "application/octet-stream"}
        with file.open("rb") as opened:
            return asyncio.run(self._exchange("POST", path, query, data=opened, headers=headers))

    def show(self, answer: Json | list[Json], render: Callable[[Any], object]) -> None:
        """What the server said, as JSON or as a table."""
        if self.as_json:
            click.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode())
        else:
            cache_tables.write(render(answer))

    async def _exchange(self, method: str, path: str, query: Mapping[str, str], **options: Any) -> Json:
        async with self._request(method, path, query, **options) as response:
            answer: Json = orjson.loads(await response.read())
            return answer

    async def _copy(self, path: str, file: BinaryIO) -> int:
        size = 0
        async with self._request("POST", path, {}) as response:
            async for chunk in response.content.iter_chunked(CHUNK):
                size += await asyncio.to_thread(file.write, chunk)
        return size

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, query: Mapping[str, str], **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with (
                open_session(self._key, timeout=PATIENCE) as session,
                session.request(method, self.url + path, params=query, **options) as response,
            ):
                await raise_for_status(response)
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(f"cannot reach {self.url}: {reason(error)}") from error


Command = Callable[..., None]


def connected(command: Command) -> Command:
    """A command with the options that lead to a server, given a client for it."""

    @click.option("--url", default=LOCAL, show_default=True, help="server, with or without /v1")
    @click.option("--key", envvar="OPENAI_API_KEY", help="API key, or the admin key")
    @click.option("--json", "as_json", is_flag=True, help="what the server says, as JSON")
    @functools.wraps(command)
    def run(url: str, key: str | None, as_json: bool, **given: Any) -> None:
        command(CacheClient(url, key, as_json=as_json), **given)

    return run


def _lease_options(command: Command) -> Command:
    for option in reversed(
        (
            click.option("--ttl", help="at least so long after its last use: 5m, 30m, 1h, 12h, 24h, 90s"),
            click.option("--pin", type=click.Choice(("none", "soft", "hard")), help="how firmly to hold it"),
            click.option("--priority", type=click.IntRange(0, 100), help="lower goes first"),
            click.option("--tag", help="a word to list and flush by"),
        )
    ):
        command = option(command)
    return command


@click.group(short_help="Look into a server's prompt cache and change it.")
def cache() -> None:
    """Look into the prompt cache of a running server: what is in it, whose it is, why a request missed; and change it."""


@cache.command("ls", short_help="List caches.")
@click.option("--tag", help="with this tag")
@click.option("--name", help="of this name")
@connected
def list_caches(client: CacheClient, tag: str | None, name: str | None) -> None:
    """List the caches there are: how much of each is cached where, and until when it lasts."""
    client.show(client.caches(_given(tag=tag, name=name)), cache_tables.caches)


@cache.command(short_help="Show what takes the room and what it saves.")
@click.option("--tenant", help="another tenant; needs the admin key")
@click.option("--all", "everybody", is_flag=True, help="all tenants; needs the admin key")
@connected
def top(client: CacheClient, tenant: str | None, everybody: bool) -> None:
    """Show what takes the room: bytes by tier, evictions, and what hits have saved."""
    query = _given(tenant=tenant, all="true" if everybody else None)
    client.show(client.ask("GET", "/caches/stats", query=query), cache_tables.stats)


@cache.command(short_help="Say why a request missed.")
@click.argument("response_id")
@click.argument("baseline_id", required=False)
@connected
def explain(client: CacheClient, response_id: str, baseline_id: str | None) -> None:
    """Say why the prompt of RESPONSE_ID was cached as far as it was: against BASELINE_ID, or the likeliest earlier one."""
    body = _given(response_id=response_id, baseline_id=baseline_id)
    client.show(client.ask("POST", "/caches/explain", body), cache_tables.explanation)


@cache.command(short_help="Let nobody find pages again.")
@click.option("--tenant", help="all of a tenant")
@click.option("--all", is_flag=True, default=None, help="everything of everybody; needs the admin key")
@click.option("--prompt-cache-key", help="what only requests with this prompt_cache_key used")
@click.option("--salt", "cache_salt", help="of requests with this cache_salt")
@click.option("--tag", help="what only caches with this tag hold")
@click.option("--id", "cache_id", help="a cache, by id or name")
@click.option("--model", help="of this model")
@click.option("--older-than", help="not used for so long: 30m, 24h, 90s")
@click.option("--tier", "tiers", multiple=True, help="device, host or disk only (repeatable)")
@click.option("--dry-run", is_flag=True, help="only say what would go")
@connected
def flush(client: CacheClient, tiers: tuple[str, ...], dry_run: bool, **fields: Any) -> None:
    """Let nobody find pages again: those that fit all of what is given."""
    scope = _given(**fields)
    if not scope:
        raise click.UsageError("say what to flush: --tenant, --prompt-cache-key, --tag, --id, … or --all")
    body = {"scope": scope, "dry_run": dry_run, **_given(tiers=list(tiers) or None)}
    client.show(client.ask("POST", "/caches/flush", body), cache_tables.flushed)


@cache.command(short_help="Bring a prompt into the cache and keep it there.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--name", help="a name; the same again renews it")
@click.option("--model", help="model; default: the first the server lists")
@_lease_options
@connected
def create(client: CacheClient, file: Path, model: str | None, **fields: Any) -> None:
    """Cache the prompt in FILE (- is stdin): JSON with messages (and tools), a JSON list of messages, or plain text. JSON may
    hold the name, the ttl and so on too; options win."""
    body = {**_described(_text(file)), **_given(model=model, **fields)}
    if "model" not in body:
        body["model"] = client.model()
    client.show(client.ask("POST", "/caches", body), cache_tables.one)


@cache.command(short_help="Compute what is missing of a cache.")
@click.argument("which")
@connected
def warm(client: CacheClient, which: str) -> None:
    """Compute what is missing of the cache WHICH, and renew it."""
    client.show(client.ask("POST", f"{_at(which)}/warm", {}), cache_tables.one)


@cache.command(short_help="Change how firmly and how long a cache is held.")
@click.argument("which")
@_lease_options
@connected
def pin(client: CacheClient, which: str, **fields: Any) -> None:
    """Pin the cache WHICH, softly unless --pin says otherwise; or change its lifetime, priority or tag."""
    changes = _given(**fields) or {"pin": "soft"}
    client.show(client.ask("PATCH", _at(which), changes), cache_tables.one)


@cache.command(short_help="Promise nothing more of a cache.")
@click.argument("which")
@connected
def rm(client: CacheClient, which: str) -> None:
    """Delete the cache WHICH: nothing is promised any more, and its pages become like any other's."""
    client.show(client.ask("DELETE", _at(which)), cache_tables.deleted)


@cache.command(short_help="Save a cache as a file.")
@click.argument("which")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@connected
def export(client: CacheClient, which: str, file: Path) -> None:
    """Save the cache WHICH, its pages included, as FILE."""
    with _naming(file):
        size = client.download(f"{_at(which)}/export", file)
    client.show({"cache": which, "file": str(file), "bytes": size}, cache_tables.exported)


@cache.command("import", short_help="Make a cache of a file.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--name", help="a name")
@_lease_options
@connected
def import_file(client: CacheClient, file: Path, **fields: Any) -> None:
    """Make a cache of FILE, as `export` wrote it."""
    query = {name: str(value) for name, value in _given(**fields).items()}
    with _naming(file):
        answer = client.upload("/caches/import", file, query)
    client.show(answer, cache_tables.one)


@contextlib.contextmanager
def _naming(file: Path) -> Iterator[None]:
    """What goes wrong with a file, as one line that names it."""
    try:
        yield
    except OSError as error:
        raise ApiError(f"{file}: {error.strerror}") from None


def _text(file: Path) -> str:
    try:
        with _naming(file), click.open_file(str(file), encoding="utf-8") as opened:
            return str(opened.read())
    except UnicodeDecodeError:
        raise ApiError(f"{file}: it is no UTF-8") from None


def _described(text: str) -> Json:
    """What a file holds: a cache's fields or a request's, of which those that it shares with a cache; messages; or text."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {"prompt": text}
    if isinstance(value, list):
        return {"messages": value}
    if isinstance(value, dict):
        return {name: value[name] for name in _CACHE_FIELDS if name in value}
    return {"prompt": text}


_CACHE_FIELDS = (
    "model",
    "messages",
    "tools",
    "chat_template_kwargs",
    "prompt",
    "name",
    "ttl",
    "expires_at",
    "pin",
    "priority",
    "tag",
    "lowest",
    "cache_salt",
    "prompt_cache_key",
)
"""Of `POST /v1/caches`, spelled out: importing them takes longer than all else that a command does."""


def _at(which: str) -> str:
    return f"/caches/{quote(which, safe='')}"


def _given(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}
