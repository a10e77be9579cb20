"""The front of the store: what is known while it is away, what it gets when it is back, and what is never said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from cache.store import ABSENT, Conflict
from gateway.errors import ApiError
from gateway.sessions.journal import OVERHEAD, Change, Journal
from gateway.sessions.sessions import COPY_FOR, Sessions
from tests.fakes import ManualClock

from .away import AwayStore

MIB = 2**20


class Bench:
    def __init__(self, *, most_bytes: int = MIB) -> None:
        self.clock = ManualClock(1000.0)
        self.store = AwayStore(clock=self.clock)
        self.sessions = Sessions(self.store, ttl=100.0, most_bytes=most_bytes, clock=self.clock)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        context = self.sessions.context(web.Application())
        await anext(context)
        try:
            yield
        finally:
            await anext(context, None)

    async def caught_up(self) -> None:
        async with asyncio.timeout(5):
            while self.sessions.late:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def refused(error: ApiError) -> bool:
    return (error.status, error.code) == (503, "session_store_unavailable") and "Retry-After" in error.headers


async def test_what_is_not_known_is_503_and_never_nothing(bench: Bench) -> None:
    await bench.store.put("r", "t", "x", b"1")
    bench.store.away = True
    sessions = bench.sessions
    for ask in (
        sessions.get("r", "t", "x"),
        sessions.get("r", "t", "never was"),
        sessions.delete("r", "t", "x"),
        sessions.list("r", "t"),
    ):
        with pytest.raises(ApiError) as caught:
            await ask
        assert refused(caught.value)
        assert caught.value.headers["Retry-After"] == "3"
    bench.store.away = False
    assert await sessions.get("r", "t", "never was") is None


async def test_what_was_read_or_written_here_is_answered_from_copies(bench: Bench) -> None:
    """For a while, for its tenant, and for no longer than it lasts."""
    sessions = bench.sessions
    await bench.store.put("r", "t", "read", b"1")
    await sessions.get("r", "t", "read")
    await sessions.put("r", "t", "written", b"2")
    bench.store.away = True
    for name, value in (("read", b"1"), ("written", b"2")):
        found = await sessions.get("r", "t", name)
        assert found is not None
        assert found.value == value
        with pytest.raises(ApiError):
            await sessions.get("r", "u", name)
    bench.clock.now += 100
    with pytest.raises(ApiError):
        await sessions.get("r", "t", "written")
    assert await sessions.get("r", "t", "read") is not None
    bench.clock.now += COPY_FOR
    with pytest.raises(ApiError):
        await sessions.get("r", "t", "read")


async def test_the_store_is_believed_while_it_is_there(bench: Bench) -> None:
    """What it has not is gone here too, also when it goes away after that."""
    await bench.sessions.put("r", "t", "x", b"1")
    await bench.store.delete("r", "t", "x")
    assert await bench.sessions.get("r", "t", "x") is None
    bench.store.away = True
    with pytest.raises(ApiError):
        await bench.sessions.get("r", "t", "x")


async def test_what_is_written_meanwhile_reaches_the_store_in_order(bench: Bench) -> None:
    sessions, store = bench.sessions, bench.store
    await sessions.put("r", "t", "old", b"0")
    await store.get("r", "t", "old")
    store.away = True
    async with bench.running():
        for name in ("a", "b", "c", "a"):
            saved = await sessions.put("r", "t", name, f"{name}{len(sessions.journal)}".encode(), ttl=50)
            assert saved.where == "journal"
            assert await sessions.get("r", "t", name) == saved.record
        assert await sessions.delete("r", "t", "old")
        assert await sessions.get("r", "t", "old") is None
        assert not await sessions.delete("r", "t", "old")
        assert len(sessions.journal) == 4
        bench.clock.now += 20
        store.away, store.writes = False, []
        await bench.caught_up()
    assert store.writes == ["b", "c", "a"]
    records = await store.list("r", "t")
    assert [(record.name, record.value) for record in records] == [("a", b"a3"), ("b", b"b1"), ("c", b"c2")]
    assert records[0] == await sessions.get("r", "t", "a")
    bench.clock.now += 30  # fifty since they were written
    assert await store.list("r", "t") == []


async def test_a_list_while_the_journal_is_written_is_of_what_will_be(bench: Bench) -> None:
    sessions, store = bench.sessions, bench.store
    for name in "abcdef":
        await sessions.put("r", "t", name, name.encode())
    store.away = True
    await sessions.delete("r", "t", "b")
    await sessions.put("r", "t", "c", b"new")
    await sessions.put("r", "t", "bb", b"bb")
    await sessions.put("r", "u", "zz", b"another's")
    store.away = False
    shown = {record.name: record.value for record in await sessions.list("r", "t")}
    assert list(shown) == ["a", "bb", "c", "d", "e", "f"]
    assert shown["c"] == b"new"
    assert [record.name for record in await sessions.list("r", "t", after="a", limit=3)] == ["bb", "c", "d"]
    page = await sessions.list("r", "t", after="d", limit=2, reverse=True)
    assert [record.name for record in page] == ["c", "bb"]


async def test_a_change_that_was_made_unheard_is_not_taken_for_anothers(bench: Bench) -> None:
    """A reply may be lost after the store has done it."""
    sessions, store = bench.sessions, bench.store
    first = (await sessions.put("r", "t", "x", b"1", expected=ABSENT)).record
    store.deaf = True
    second = await sessions.put("r", "t", "x", b"2", expected=first.version)
    assert second.where == "journal"
    store.deaf = False
    async with bench.running():
        await bench.caught_up()
    assert sessions.counts.conflicts == 0
    assert await store.get("r", "t", "x") == second.record
    third = await sessions.put("r", "t", "x", b"3", expected=second.record.version)
    assert third.where == "store"


async def test_whoever_was_faster_stays_and_the_other_is_counted(bench: Bench) -> None:
    sessions, store = bench.sessions, bench.store
    first = (await sessions.put("r", "t", "x", b"1")).record
    store.away = True
    second = await sessions.put("r", "t", "x", b"2", expected=first.version)
    with pytest.raises(Conflict):
        await sessions.put("r", "t", "x", b"3", expected=first.version)
    third = await sessions.put("r", "t", "x", b"3", expected=second.record.version)
    assert third.where == "journal"
    store.away = False
    theirs = await store.put("r", "t", "x", b"theirs")
    async with bench.running():
        await bench.caught_up()
    assert sessions.counts.conflicts == 1
    assert await sessions.get("r", "t", "x") == theirs
    store.away = True
    assert await sessions.get("r", "t", "x") == theirs


async def test_a_full_journal_says_that_nothing_is_kept() -> None:
    bench = Bench(most_bytes=8 * (OVERHEAD + 100))  # two in the journal, six copies
    bench.store.away = True
    saved = [await bench.sessions.put("r", "t", name, b"x" * 100) for name in "abc"]
    assert [each.where for each in saved] == ["journal", "journal", "nowhere"]
    assert [each.kept for each in saved] == [True, True, False]
    assert bench.sessions.counts.lost == 1
    assert bench.sessions.journal.nbytes == 2 * (OVERHEAD + 100)
    with pytest.raises(ApiError) as caught:
        await bench.sessions.get("r", "t", "c")
    assert refused(caught.value)


async def test_a_store_that_is_broken_keeps_nothing_and_nothing_waits_for_it(bench: Bench) -> None:
    bench.store.broken = True
    saved = await bench.sessions.put("r", "t", "x", b"1")
    assert saved.where == "nowhere"
    assert not bench.sessions.late
    for ask in (bench.sessions.get("r", "t", "x"), bench.sessions.delete("r", "t", "x")):
        with pytest.raises(ApiError) as caught:
            await ask
        assert refused(caught.value)


async def test_what_is_left_when_the_server_stops_is_written_if_it_can_be(bench: Bench) -> None:
    bench.store.away = True
    async with bench.running():
        await bench.sessions.put("r", "t", "x", b"1")
        bench.store.away = False
    assert await bench.store.get("r", "t", "x") is not None


Puts = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 300), st.booleans()), max_size=20)


@given(Puts)
def test_the_journal_counts_its_bytes_and_keeps_the_latest(puts: list[tuple[str, int, bool]]) -> None:
    journal = Journal(3 * OVERHEAD)
    latest: dict[str, Change] = {}
    for number, (name, size, done) in enumerate(puts):
        change = Change(("k", "t", name), b"x" * size, str(number))
        if journal.add(change):
            latest.pop(name, None)
            latest[name] = change
        first = journal.first()
        if done and first is not None:
            journal.done(first)
            del latest[first.key[-1]]
        assert journal.nbytes == sum(each.nbytes for each in latest.values()) <= 3 * OVERHEAD
        assert list(journal.of("k", "t")) == list(latest.values())


def test_a_change_in_the_place_of_another_expects_what_that_did() -> None:
    """And once that one is with the store, the version it has there."""
    journal = Journal(MIB)
    key = ("k", "t", "x")
    journal.add(first := Change(key, b"1", "v1", expected="v0"))
    journal.add(Change(key, b"2", "v2", expected="v1"))
    assert journal.first() == Change(key, b"2", "v2", expected="v0")
    journal.done(first)
    assert journal.first() == Change(key, b"2", "v2", expected="v1")
    journal.add(Change(key, None, "v3"))
    assert journal.first() == Change(key, None, "v3")
