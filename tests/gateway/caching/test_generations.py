"""Generations that several servers share: the truth is in the store, and none that has ended is ever in use again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from cache.store import StoreUnavailable
from gateway.caching.generations import KIND, SERVER, SharedGenerations
from tests.fakes import ManualClock
from tests.gateway.sessions.away import AwayStore


@asynccontextmanager
async def running(*servers: SharedGenerations) -> AsyncIterator[None]:
    contexts = [server.context(web.Application()) for server in servers]
    for context in contexts:
        await anext(context)
    try:
        yield
    finally:
        for context in contexts:
            await anext(context, None)


async def settled(*servers: SharedGenerations) -> None:
    async with asyncio.timeout(5):
        while any(server._unsettled or not server._loaded for server in servers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_one_server_has_begun_the_next_goes_on_with() -> None:
    store = AwayStore()
    first, second = SharedGenerations(store), SharedGenerations(store)
    async with running(first):
        proposed = first.of("t")
        await settled(first)
        assert first.of("t") == proposed
    async with running(second):
        await settled(second)
        assert second.of("t") == proposed
        assert not second.has_ended("t", proposed)


async def test_a_server_that_starts_without_the_store_finds_nothing_old_and_adopts_the_truth() -> None:
    store = AwayStore()
    first = SharedGenerations(store)
    await first.settled("t")
    await first.end("t")
    truth = first.of("t")
    store.away = True
    second = SharedGenerations(store)
    async with running(second):
        provisional = second.of("t")
        assert provisional not in {truth, 0}
        assert second.of("t") == provisional
        with pytest.raises(StoreUnavailable):
            await second.settled("t")
        store.away = False
        await settled(second)
        assert second.of("t") == truth
        await second.settled("t")
        assert not second.has_ended("t", truth)
        assert second.has_ended("t", truth - 1)


async def test_a_flush_holds_at_once_and_the_store_has_it_when_it_is_back() -> None:
    store = AwayStore()
    first, second = SharedGenerations(store), SharedGenerations(store)
    await first.settled("t")
    await second.settled("t")
    before = first.of("t")
    store.away = True
    async with running(first):
        assert not await first.end("t")
        now = first.of("t")
        assert now > before
        store.away = False
        await settled(first)
    record = await store.get(KIND, SERVER, "t")
    assert record is not None
    assert int(record.value) == first.of("t") == now
    seen: list[str] = []
    second.changed = seen.append
    await second.load()
    assert (second.of("t"), seen) == (now, ["t"])
    assert second.has_ended("t", before)


async def test_of_two_flushes_apart_both_count() -> None:
    """Also when the clock of the one that comes last is behind: what was cached before is not found."""
    store = AwayStore()
    ahead, behind = (SharedGenerations(store, clock=ManualClock(now)) for now in (2000.0, 1000.0))
    await ahead.settled("t")
    await behind.settled("t")
    await ahead.end("t")
    cached = ahead.of("t")
    assert await behind.end("t")
    await ahead.load()
    assert ahead.of("t") == behind.of("t") > cached


@pytest.mark.parametrize("spoil", ["lost", "older", "junk"])
async def test_a_store_that_has_lost_the_latest_gets_it_again(spoil: str) -> None:
    store = AwayStore()
    server = SharedGenerations(store)
    async with running(server):
        await server.settled("t")
        before = server.of("t")
        await server.end("t")
        now = server.of("t")
        if spoil == "lost":
            await store.delete(KIND, SERVER, "t")
        else:
            await store.put(KIND, SERVER, "t", str(before).encode() if spoil == "older" else b"?")
        server.reload()
        assert server.of("t") == now
        await asyncio.sleep(0.02)
        await settled(server)
    record = await store.get(KIND, SERVER, "t")
    assert record is not None
    assert int(record.value) == server.of("t") >= now


Steps = st.lists(
    st.sampled_from(["use a", "use b", "end a", "end b", "away", "back", "lose", "reload a", "restart b"]),
    max_size=14,
)


@given(Steps)
def test_nothing_that_has_ended_is_in_use_again(steps: list[str]) -> None:
    """On the server that ended it, whatever the store goes through; and in the end all agree."""
    asyncio.run(_machine(steps))


async def _machine(steps: list[str]) -> None:
    store = AwayStore()
    servers = {name: SharedGenerations(store) for name in "ab"}
    ended: dict[str, set[int]] = {"a": set(), "b": set()}
    for step in steps:
        what, _, name = step.partition(" ")
        if what in ("away", "back"):
            store.away = what == "away"
        elif what == "lose" and not store.away:
            await store.delete(KIND, SERVER, "t")
        elif what == "restart":
            servers[name], ended[name] = SharedGenerations(store), set()
        elif what == "reload":
            servers[name].reload()
        elif what == "end":
            ended[name].add(servers[name].of("t"))
            await servers[name].end("t")
        for server in servers.values():
            if not store.away:
                await server.load()
                await server._settle("t")
        for each, server in servers.items():
            assert server.of("t") not in ended[each]
    store.away = False
    for _ in range(2):
        for server in servers.values():
            server.of("t")
            await server.load()
            await server._settle("t")
    assert servers["a"].of("t") == servers["b"].of("t")
    assert not (ended["a"] | ended["b"]) & {servers["a"].of("t")}
