"""`headwater cache` against a gateway: what it asks, what it shows, and how it fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from msgspec import structs

from cache.lease import FlushScope, Lease
from engine.request import LookUpReport, TenantCache
from gateway.__main__ import cli
from gateway.api_client import ApiError
from gateway.cache_cli import _CACHE_FIELDS
from gateway.cache_tables import explanation, size, span, write
from gateway.caching.object_fields import CreateCache
from tests.gateway.live import MODEL, Gateway, Start


async def run(gateway: Gateway, *arguments: str, stdin: str | None = None, key: str | None = None) -> str:
    """What the command shows; raises what it fails with."""

    def invoke() -> str:
        named = [
            "cache",
            arguments[0],
            "--url",
            gateway.url,
            *(["--key", key] if key else []),
            *arguments[1:],
        ]
        result = CliRunner().invoke(cli, named, input=stdin, standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return result.output

    return await asyncio.to_thread(invoke)


async def make(gateway: Gateway, **fields: Any) -> str:
    body = {"model": MODEL, "messages": [{"role": "system", "content": "Be kind."}], **fields}
    status, made = await gateway.post("/v1/caches", body)
    assert status == 200, made
    return str(made["id"])


async def test_lists(gateway: Gateway) -> None:
    assert await run(gateway, "ls") == "No caches.\n"
    first = await make(gateway, name="first", ttl="30m", tag="a")
    second = await make(gateway, pin="soft")
    gateway.engine.entries[second] = structs.replace(
        gateway.engine.entries[second], device=1, status="broken", cause="pressure"
    )
    lines = (await run(gateway, "ls")).splitlines()
    assert lines[0].split() == [
        "id",
        "name",
        "status",
        "tokens",
        "device",
        "host",
        "disk",
        "hits",
        "pin",
        "lasts",
        "used",
        "tag",
    ]
    assert lines[1].split()[:10] == [second, "broken", "18", "1", "0", "0", "0", "soft", "until", "deleted"]
    assert lines[2].split()[:9] == [first, "first", "active", "18", "18", "0", "0", "0", "30m"]
    assert (await run(gateway, "ls", "--tag", "a")).splitlines()[1].startswith(first)
    assert [each["id"] for each in json.loads(await run(gateway, "ls", "--json"))] == [second, first]


async def test_what_clients_wrote_is_neither_markup_nor_an_escape(gateway: Gateway) -> None:
    await make(gateway, name="[red]\x1b[2J", tag="\x9b[/red]")
    shown = await run(gateway, "ls")
    assert r"[red]\u001b[2J" in shown
    assert r"\u009b[/red]" in shown


async def test_lists_of_many_pages(start: Start) -> None:
    gateway = await start(limits={"max_caches": 200})
    for _ in range(120):
        await make(gateway)
    assert len(json.loads(await run(gateway, "ls", "--json"))) == 120


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        (
            '{"messages": [{"role": "user", "content": "x"}], "temperature": 1}',
            "<|im_start|>user\nx<|im_end|>\n",
        ),
        ('[{"role": "user", "content": "x"}]', "<|im_start|>user\nx<|im_end|>\n"),
        ("plain text", "plain text"),
        ('"a string"', '"a string"'),
    ],
)
async def test_creates(gateway: Gateway, tmp_path: Path, given: str, prompt: str) -> None:
    shown = await run(gateway, "create", "-", "--name", "n", "--ttl", "5m", "--tag", "t", stdin=given)
    (request,) = gateway.engine.requests
    assert (await gateway.post("/detokenize", {"tokens": request.prompt}))[1]["prompt"] == prompt
    (entry,) = request.cache.entries
    assert entry.lease == Lease(ttl=300, tag="t")
    lines = [[word.strip() for word in line.split(maxsplit=1)] for line in shown.splitlines()]
    tokens = len(request.prompt)
    assert lines == [
        ["cache", f"{entry.entry_id} (n)"],
        ["status", "active"],
        ["tokens", f"{tokens} (device {tokens})"],
        ["held", "for 5m, 5m after each use, tag t"],
        ["cached", "0 tokens were there"],
        ["written", f"{tokens} tokens are new"],
    ]


async def test_a_file_may_hold_all_that_makes_a_cache_and_options_win(gateway: Gateway) -> None:
    given = {
        "model": MODEL,
        "prompt": "x",
        "name": "n",
        "ttl": "5m",
        "pin": "soft",
        "tag": "t",
        "lowest": "host",
    }
    made = json.loads(await run(gateway, "create", "-", "--json", "--ttl", "90s", stdin=json.dumps(given)))
    assert {name: made[name] for name in given if name != "prompt"} == {
        "model": MODEL,
        "name": "n",
        "ttl": "90s",
        "pin": "soft",
        "tag": "t",
        "lowest": "host",
    }
    with pytest.raises(ApiError, match="king"):
        await run(gateway, "create", "-", stdin=json.dumps({**given, "model": "king"}))
    assert set(_CACHE_FIELDS) == set(CreateCache.model_fields)


async def test_a_file_that_cannot_be_read_is_one_line(gateway: Gateway, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="none: No such file"):
        await run(gateway, "create", str(tmp_path / "none"))
    await asyncio.to_thread((tmp_path / "image").write_bytes, b"\xff\xd8")
    with pytest.raises(ApiError, match="image: it is no UTF-8"):
        await run(gateway, "create", str(tmp_path / "image"))


async def test_warms_pins_and_deletes_by_id_or_name(gateway: Gateway) -> None:
    made = await make(gateway, name="n", ttl="5m")
    gateway.engine.entries.clear()
    assert "active" in await run(gateway, "warm", "n")
    assert len(gateway.engine.requests) == 2
    assert "pinned (soft)" in await run(gateway, "pin", made)
    assert gateway.engine.entries[made].lease == Lease(ttl=300, pin="soft")
    await run(gateway, "pin", "n", "--pin", "none", "--ttl", "90s", "--priority", "9")
    assert gateway.engine.entries[made].lease == Lease(ttl=90, priority=9)
    assert await run(gateway, "rm", "n") == f"{made} is deleted.\n"
    with pytest.raises(ApiError, match="There is no cache 'n'"):
        await run(gateway, "warm", "n")
    with pytest.raises(ApiError, match=f"There is no cache '{made}'"):
        await run(gateway, "warm", made)


async def test_a_name_may_be_any_text(gateway: Gateway) -> None:
    for name in ("a/b c", "ünï%2F?x=1#y", "stats", "n" * 500):
        made = await make(gateway, name=name)
        assert made in await run(gateway, "warm", name)
        assert await run(gateway, "rm", name) == f"{made} is deleted.\n"


async def test_flushes(gateway: Gateway) -> None:
    made = await make(gateway, name="n", tag="t")
    shown = await run(gateway, "flush", "--tag", "t", "--dry-run")
    assert shown == "would be flushed  device\ndevice            48 tokens in 3 pages, 48 B\n"
    await run(gateway, "flush", "--id", "n", "--tier", "host", "--tier", "disk")
    await run(gateway, "flush", "--older-than", "24h", "--model", MODEL)
    await run(gateway, "flush", "--tenant", "local")
    await run(gateway, "flush", "--all")
    assert gateway.engine.flushed == [
        (FlushScope(tenant="local", tag="t"), True),
        (FlushScope(tenant="local", entry_id=made, tiers=("host", "disk")), False),
        (FlushScope(tenant="local", adapter=b"", idle_for=86400.0), False),
        (FlushScope(tenant="local"), False),
        (FlushScope(), False),
    ]
    with pytest.raises(click.UsageError):
        await run(gateway, "flush")


async def test_files(gateway: Gateway, tmp_path: Path) -> None:
    await make(gateway, name="n")
    gateway.engine.found = LookUpReport(query_id=0, device=18)
    file = tmp_path / "kind.hwcache"
    shown = await run(gateway, "export", "n", str(file))
    assert shown == f"n: {size(len(await asyncio.to_thread(file.read_bytes)))} in {file}\n"
    shown = await run(gateway, "import", str(file), "--name", "m", "--priority", "7")
    assert "(m)" in shown
    assert gateway.engine.imported[0].lease.priority == 7
    for command in (("export", "n", str(tmp_path / "no" / "x")), ("import", str(tmp_path / "none"))):
        with pytest.raises(ApiError, match="No such file"):
            await run(gateway, *command)
    with pytest.raises(ApiError, match="There is no cache"):
        await run(gateway, "export", "cache_0", str(file))
    assert [path.name for path in await asyncio.to_thread(lambda: list(tmp_path.iterdir()))] == [file.name]


async def test_top(gateway: Gateway) -> None:
    gateway.engine.tenants = (
        TenantCache(
            tenant="local",
            bytes={"device": 3 << 20, "disk": 1536},
            pinned_pages=4,
            evictions={"pressure": 1000, "quota": 234},
            broken_leases=2,
        ),
    )
    made = await make(gateway, name="kind")
    gateway.engine.cached_tokens = 5
    await gateway.post(
        "/v1/completions",
        {"model": MODEL, "prompt": "0123456789", "prompt_cache_key": "agent 7", "max_tokens": 1},
    )
    await gateway.at_rest()
    lines = [line.split() for line in (await run(gateway, "top")).splitlines()]
    assert lines[1][:11] == ["local", "3.0", "MiB", "0", "B", "1.5", "KiB", "1", "4", "1,234", "2"]
    assert lines[1][11] == "18%"  # 5 of 28 tokens
    assert lines[4] == ["agent", "7", "local", "1", "10", "50%", "0", "ms"]
    assert lines[7] == ["kind", "local", "1", "18", "0%", "0", "ms"]
    listed = json.loads(await run(gateway, "top", "--json"))["tenants"][0]["usage"]["objects"]
    assert [(each["id"], each["name"]) for each in listed] == [(made, "kind")]


EXPLAINED: dict[str, Any] = {
    "object": "cache.explanation",
    "response_id": "chatcmpl-2",
    "baseline_id": "chatcmpl-1",
    "baseline": "chosen",
    "reason": "system_changed",
    "summary": "Message 0 (system) differs from character 12 on.",
    "prompt_tokens": 2000,
    "hit_tokens": 16,
    "hit_tokens_by_tier": {"device": 16, "host": 0, "disk": 0},
    "cached_until": {"token": 16, "message": 0, "char": 40, "preview": "x"},
    "first_divergence": {
        "segment": "system",
        "message": 0,
        "role": "system",
        "part": None,
        "token": 17,
        "char": 12,
        "expected_preview": 'It is\n"Monday"',
        "got_preview": "It is \x1b[31mTuesday",
    },
}


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        (
            {},
            [
                "parts at       system, message 0 (system), character 12, token 17",
                r'was            "It is\n\"Monday\""',
                r'is             "It is \u001b[31mTuesday"',
            ],
        ),
        ({"first_divergence": None}, ['cached until   token 16, before "x"']),
        ({"first_divergence": None, "cached_until": None}, []),
    ],
)
def test_explains(capsys: pytest.CaptureFixture[str], changes: dict[str, Any], last: list[str]) -> None:
    write(explanation({**EXPLAINED, **changes}))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "reason         system_changed",
        "               Message 0 (system) differs from character 12 on.",
        "compared with  chatcmpl-1 (chosen)",
        "cached         16 of 2,000 (device 16)",
        *last,
    ]


async def test_what_the_server_refuses_is_one_line(start: Start) -> None:
    gateway = await start(http={"api_keys": ("sk-a",), "admin_key": "sk-root"})
    with pytest.raises(ApiError, match="valid API key") as refused:
        await run(gateway, "ls")
    assert (refused.value.status, "\n" in str(refused.value)) == (401, False)
    with pytest.raises(ApiError, match="needs the admin key"):
        await run(gateway, "flush", "--all", key="sk-a")
    assert "flushed" in await run(gateway, "flush", "--all", key="sk-root")


async def test_no_server_is_one_line(gateway: Gateway) -> None:
    def invoke() -> BaseException | None:
        arguments = ["cache", "ls", "--url", "http://127.0.0.1:1"]
        return CliRunner().invoke(cli, arguments, standalone_mode=False).exception

    assert "cannot reach http://127.0.0.1:1/v1: Connection refused" in str(await asyncio.to_thread(invoke))


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes(number: int, said: str) -> None:
    assert size(number) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0s"), (59, "59s"), (119, "119s"), (1800, "30m"), (7200, "2h"), (86400 * 3, "3d")],
)
def test_spans(seconds: float, said: str) -> None:
    assert span(seconds) == said
