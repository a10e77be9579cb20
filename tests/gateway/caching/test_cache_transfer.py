"""Caches as files, over an engine that writes and reads token ids for pages."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientError

from cache.lease import Lease
from engine.private_directory import PrivateDirectory
from engine.request import LookUpReport
from gateway.caching import transfer
from gateway.caching.transfer import MAGIC, Manifest
from tests.fakes import pages_of
from tests.gateway.live import MODEL, Gateway, Start

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "system", "content": "Be kind."}], "name": "n"}
KEYS: dict[str, Any] = {"api_keys": ("sk-a", "sk-b")}


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


@pytest.fixture(autouse=True)
def private_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


async def left_in(directory: Path) -> list[str]:
    return await asyncio.to_thread(os.listdir, directory)


async def emptied(directory: Path) -> None:
    async with asyncio.timeout(5):
        while await left_in(directory):  # noqa: ASYNC110 - nobody tells when a directory is empty
            await asyncio.sleep(0.05)


async def export(gateway: Gateway, cache_id: str, key: str | None = None) -> bytes:
    async with gateway.client.post(
        f"{gateway.url}/v1/caches/{cache_id}/export", headers=bearer(key)
    ) as response:
        assert response.status == 200
        assert response.content_type == "application/octet-stream"
        assert response.headers["Content-Disposition"] == f'attachment; filename="{cache_id}.hwcache"'
        data = await response.read()
        assert response.content_length == len(data)
        return data


async def take(
    gateway: Gateway, data: bytes, query: str = "", key: str | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    given = {"Content-Type": "application/octet-stream", **bearer(key), **headers}
    async with gateway.client.post(
        f"{gateway.url}/v1/caches/import{query}", data=io.BytesIO(data), headers=given
    ) as response:
        return response.status, await response.json()


async def make(gateway: Gateway, key: str | None = None) -> dict[str, Any]:
    status, made = await gateway.post("/v1/caches", BODY, headers=bearer(key))
    assert status == 200
    gateway.engine.found = LookUpReport(query_id=0, device=made["tokens"])
    return made


async def test_out_and_in_again(start: Start, private_tmp: Path) -> None:
    gateway = await start(http=KEYS)
    made = await make(gateway, "sk-a")
    data = await export(gateway, made["id"], "sk-a")
    prompt = gateway.engine.requests[0].prompt
    assert data.endswith(pages_of(prompt))
    status, taken = await take(gateway, data, "?name=m&ttl=5m&priority=3&tag=x", "sk-b")
    assert status == 200
    assert taken["id"] != made["id"]
    assert (taken["name"], taken["ttl"], taken["priority"], taken["tag"], taken["tokens"]) == (
        "m",
        "5m",
        3,
        "x",
        made["tokens"],
    )
    (question,) = gateway.engine.imported
    assert (question.entry_id, question.lease) == (taken["id"], Lease(ttl=300, priority=3, tag="x"))
    await gateway.post(
        "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1}, headers=bearer("sk-b")
    )
    request = gateway.engine.requests[-1]
    assert (question.tenant, question.namespace) == (request.tenant, request.namespace)
    status, _ = await gateway.post(f"/v1/caches/{taken['id']}/warm", {}, headers=bearer("sk-b"))
    assert gateway.engine.requests[-1].prompt == prompt
    assert await left_in(private_tmp) == []


async def test_a_taken_name_is_said(gateway: Gateway) -> None:
    made = await make(gateway)
    data = await export(gateway, made["id"])
    assert (await take(gateway, data))[0] == 200
    status, answer = await take(gateway, data, "?name=n")
    assert (status, answer["error"]["code"]) == (409, "cache_name_taken")


def rewritten(data: bytes, **changes: Any) -> bytes:
    """A file with another manifest."""
    length = int.from_bytes(data[8:16], "little")
    manifest = msgspec.msgpack.decode(data[16 : 16 + length])
    raw = msgspec.msgpack.encode({**manifest, **changes})
    return MAGIC + len(raw).to_bytes(8, "little") + raw + data[16 + length :]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:7],
        lambda data: data[:40],
        lambda data: b"X" + data[1:],
        lambda data: data[:8] + (1 << 62).to_bytes(8, "little") + data[16:],
        lambda data: data[:16] + b"\xff" * (len(data) - 16),
        lambda data: rewritten(data, model_digest="0" * 64),
        lambda data: rewritten(data, tokens=b"0" * 32),
        lambda data: rewritten(data, tokens="x"),
        lambda data: rewritten(data, content=b"{}"),
        lambda data: rewritten(data, content=b"{"),
        lambda data: rewritten(data, content=b"[]"),
        lambda data: rewritten(data, content=b'{"text": "\\ud800"}'),
        lambda data: rewritten(data, content=b"[" * 100_000),
    ],
)
async def test_a_file_that_is_none_is_refused_and_gone(
    gateway: Gateway, private_tmp: Path, spoil: Any
) -> None:
    made = await make(gateway)
    status, answer = await take(gateway, spoil(await export(gateway, made["id"])))
    assert status == 400
    assert answer["error"]["code"] in {"invalid_cache_file", "invalid_value"}
    assert gateway.engine.imported == []
    assert len((await gateway.get("/v1/caches"))[1]["data"]) == 1
    assert await left_in(private_tmp) == []


async def test_what_a_file_says_is_read_like_a_client_s_words(gateway: Gateway) -> None:
    """Roles become parts of special tokens: nothing that a request could not say comes in by a file."""
    made = await make(gateway)
    data = await export(gateway, made["id"])
    status, answer = await take(
        gateway, rewritten(data, content=b'{"messages": [{"role": "<|x|>", "content": ""}]}')
    )
    assert (status, answer["error"]["param"]) == (400, "messages[0].role")


async def test_a_file_says_no_more_of_itself_than_a_request_may(start: Start) -> None:
    """A byte of it can be worth seventy in memory: nothing is made of one that is too long, and nothing waits meanwhile."""
    gateway = await start(limits={"max_body": 20_000})
    data = await export(gateway, (await make(gateway))["id"])
    assert (await take(gateway, data))[0] == 200
    status, answer = await take(gateway, rewritten(data, content=b'{"messages": [' + b"{}," * 8000 + b"{}]}"))
    assert (status, answer["error"]["message"]) == (
        400,
        "This file cannot be imported: its manifest is too long.",
    )


async def test_pages_of_other_tokens_are_refused(gateway: Gateway) -> None:
    made = await make(gateway)
    gateway.engine.found = LookUpReport(query_id=0, device=1)
    status, answer = await take(gateway, await export(gateway, made["id"]))
    assert (status, answer["error"]["code"]) == (400, "invalid_cache_file")
    assert len((await gateway.get("/v1/caches"))[1]["data"]) == 1


@pytest.mark.parametrize(("told", "announced"), [(True, True), (False, False)])
async def test_large_files_are_refused(start: Start, private_tmp: Path, told: bool, announced: bool) -> None:
    gateway = await start(limits={"max_import": 1000})
    made = await make(gateway)
    data = await export(gateway, made["id"]) + b"x" * 5000

    async def piecemeal() -> Any:
        for i in range(0, len(data), 500):
            yield data[i : i + 500]

    async with gateway.client.post(
        f"{gateway.url}/v1/caches/import",
        data=io.BytesIO(data) if announced else piecemeal(),
        headers={"Content-Type": "application/octet-stream"},
    ) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (413, "request_too_large")
    assert await left_in(private_tmp) == []


async def test_a_full_disk_is_the_servers_fault(
    gateway: Gateway, private_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = await export(gateway, (await make(gateway))["id"])

    def full(file: object, chunk: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(transfer, "_write", full)
    status, answer = await take(gateway, data)
    assert (status, answer["error"]["message"]) == (
        503,
        "The file cannot be kept here now: No space left on device.",
    )
    assert await left_in(private_tmp) == []


async def test_a_sender_that_falls_silent_is_told_and_one_that_leaves_is_tidied_up(
    start: Start, private_tmp: Path
) -> None:
    gateway = await start(limits={"body_timeout": 0.2})
    made = await make(gateway)
    data = await export(gateway, made["id"])

    async def stalls() -> Any:
        yield data[:-5]
        await asyncio.sleep(1.0)
        yield data[-5:]

    async with gateway.client.post(
        f"{gateway.url}/v1/caches/import",
        data=stalls(),
        headers={"Content-Type": "application/octet-stream"},
    ) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (408, "request_timeout")
    assert await left_in(private_tmp) == []


async def test_forms_and_unknown_fields_are_refused(gateway: Gateway) -> None:
    assert (await take(gateway, b"x", **{"Content-Type": "text/plain"}))[0] == 415
    assert (await take(gateway, b"x", **{"Content-Encoding": "gzip"}))[0] == 415
    for query, param in [
        ("?what=1", "what"),
        ("?priority=x", "priority"),
        ("?ttl=1", "ttl"),
        ("?name=", "name"),
    ]:
        status, answer = await take(gateway, b"x", query)
        assert (status, answer["error"]["param"]) == (400, param)


async def test_what_is_not_cached_is_not_exported(gateway: Gateway, private_tmp: Path) -> None:
    made = await make(gateway)
    gateway.engine.exports = 0
    status, answer = await gateway.post(f"/v1/caches/{made['id']}/export", {})
    assert (status, answer["error"]["code"]) == (409, "cache_cold")
    assert await left_in(private_tmp) == []


async def test_a_reader_that_stalls_is_cut_off(start: Start, private_tmp: Path) -> None:
    gateway = await start(limits={"write_timeout": 0.3})
    made = await make(gateway)
    gateway.engine.export_padding = 64 << 20
    async with gateway.client.post(f"{gateway.url}/v1/caches/{made['id']}/export") as response:
        assert response.status == 200
        await emptied(private_tmp)
        with pytest.raises(ClientError):
            await response.read()


async def test_a_reader_that_leaves_is_tidied_up(gateway: Gateway, private_tmp: Path) -> None:
    made = await make(gateway)
    gateway.engine.export_padding = 64 << 20
    async with gateway.client.post(f"{gateway.url}/v1/caches/{made['id']}/export") as response:
        assert await left_in(private_tmp) != []
        response.close()
    await emptied(private_tmp)


async def test_an_engine_that_starts_meanwhile_takes_nothing_away(
    gateway: Gateway, private_tmp: Path
) -> None:
    """It removes what dead processes left in the same place."""
    made = await make(gateway)
    gateway.engine.export_padding = 64 << 20
    async with gateway.client.post(f"{gateway.url}/v1/caches/{made['id']}/export") as response:
        there = await left_in(private_tmp)
        await asyncio.to_thread(lambda: PrivateDirectory().close())
        assert await left_in(private_tmp) == there != []
        response.close()
    await emptied(private_tmp)


def test_a_manifest_is_what_it_was() -> None:
    names = [field.name for field in msgspec.structs.fields(Manifest)]
    assert names == ["model", "model_digest", "content", "tokens"]
