"""A tenants file that changes counts without a restart; one that cannot be followed changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from cache.lease import TenantLimits
from engine.errors import StartError
from gateway import tenant_file
from gateway.tenant_file import TenantFile
from tests.fakes import FakeEngine


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_file, "INTERVAL", 0.005)


@asynccontextmanager
async def following(path: Path, engine: FakeEngine) -> AsyncIterator[TenantFile]:
    file = await asyncio.to_thread(TenantFile, path)
    async with asynccontextmanager(file.followed_by(engine))(web.Application()):
        yield file


async def write(path: Path, text: str) -> None:
    await asyncio.to_thread(path.write_text, text)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.005)


async def test_a_change_reaches_engine_and_gateway(tmp_path: Path) -> None:
    path, engine = tmp_path / "tenants.yaml", FakeEngine()
    await write(path, "tenants: {acme: {quota: 60%}}")
    async with following(path, engine) as file:
        held = file.tenants
        assert held.limits == {"acme": TenantLimits(quota=0.6)}
        await asyncio.sleep(0.05)
        assert engine.limits is None, "nothing has changed"
        await write(path, "default: {pins: 1%}\ntenants: {acme: {quota: 30%, max_ttl: 60s}, b: {}}")
        await until(lambda: held.limits.keys() == {"acme", "b"})
    assert engine.limits == (held.limits, held.others)
    assert held.limits["acme"] == TenantLimits(quota=0.3, pins=0.01)
    assert held.policy("acme").max_ttl == 60


@pytest.mark.parametrize(
    ("content", "refusal", "words"),
    [
        ("tenants: {acme: {quota: 600%}}", None, "tenants.acme.quota"),
        ("tenants: [", None, "not YAML"),
        ("tenants: {acme: {quota: 1%}}", "there is no room for it", "there is no room for it"),
        (None, None, "cannot read the tenants"),
    ],
)
async def test_what_cannot_be_followed_is_said_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None, refusal: str | None, words: str
) -> None:
    path, engine = tmp_path / "tenants.yaml", FakeEngine()
    engine.limits_error = refusal
    await write(path, "tenants: {acme: {quota: 60%}}")
    async with following(path, engine) as file:
        if content is None:
            await asyncio.to_thread(path.unlink)
        else:
            await write(path, content)
        await until(lambda: caplog.records)
        await asyncio.sleep(0.05)
        (record,) = caplog.records
        assert words in record.getMessage()
        assert str(path) in record.getMessage()
        assert file.tenants.limits == {"acme": TenantLimits(quota=0.6)}
        assert engine.limits is None
        engine.limits_error = None
        await write(path, "tenants: {acme: {quota: 20%}}")
        await until(lambda: file.tenants.limits == {"acme": TenantLimits(quota=0.2)})


async def test_an_engine_that_cannot_be_asked_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, engine = tmp_path / "tenants.yaml", FakeEngine()
    await write(path, "tenants: {acme: {quota: 60%}}")
    engine.status = "restarting"
    async with following(path, engine) as file:
        await write(path, "tenants: {acme: {quota: 20%}}")
        await asyncio.sleep(0.05)
        assert file.tenants.limits == {"acme": TenantLimits(quota=0.6)}
        engine.status = "ready"
        await until(lambda: engine.limits is not None)
    assert not caplog.records


def test_a_file_that_is_broken_at_the_start_is_the_operators(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot read the tenants"):
        TenantFile(tmp_path / "none.yaml")
