"""All stores are a dict with versions and an end of time, and the one in files is that after any kind of end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache.file_store import FileStore
from cache.memory_store import OVERHEAD, MemoryStore
from cache.redis_address import RedisAddress
from cache.redis_link import RedisLink
from cache.redis_store import RedisStore
from cache.store import ABSENT, SWEEP_INTERVAL, Conflict, Record, Store, StoreError
from tests.fakes import ManualClock
from tests.redis_server import RedisServer

Kind = Literal["memory", "files", "redis"]
KINDS: tuple[Kind, ...] = ("memory", "files", "redis")
LOCAL: tuple[Kind, ...] = ("memory", "files")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of store in turn."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def place(kind: Kind, tmp_path: Path, request: pytest.FixtureRequest) -> Path | RedisServer:
    """Where the store of that kind is, empty."""
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        return server
    return tmp_path


@asynccontextmanager
async def opened(
    kind: Kind, place: Path | RedisServer, clock: ManualClock | None = None
) -> AsyncIterator[Store]:
    clock = clock or ManualClock(1.0)
    store: Store
    if isinstance(place, RedisServer):
        store = RedisStore(RedisLink(RedisAddress.parse(place.socket_url), timeout=5.0))
    elif kind == "memory":
        store = MemoryStore(clock=clock)
    else:
        store = FileStore(place / "records", clock=clock)
        await store.open()
    try:
        yield store
    finally:
        await store.close()


def names_in(directory: Path, store: str = "records") -> list[str]:
    """Of every file that holds or held a record."""
    return sorted(path.name for path in directory.glob(f"{store}/*/*/*"))


async def test_a_record_is_found_by_all_three_of_its_names(kind: Kind, place: Path | RedisServer) -> None:
    async with opened(kind, place) as store:
        record = await store.put("object", "a", "x", b"1")
        assert await store.get("object", "a", "x") == record == Record("x", b"1", record.version)
        for other in (("session", "a", "x"), ("object", "b", "x"), ("object", "a", "y")):
            assert await store.get(*other) is None
        assert await store.list("object", "a") == [record]
        assert await store.list("object", "b") == []


async def test_a_change_that_expects_another_version_is_refused(
    kind: Kind, place: Path | RedisServer
) -> None:
    async with opened(kind, place) as store:
        first = await store.put("k", "t", "x", b"1", expected=ABSENT)
        with pytest.raises(Conflict):
            await store.put("k", "t", "x", b"2", expected=ABSENT)
        second = await store.put("k", "t", "x", b"2", expected=first.version)
        for change in (store.put("k", "t", "x", b"3", expected=first.version), store.delete("k", "t", "x", expected=first.version)):  # fmt: skip
            with pytest.raises(Conflict):
                await change
        assert await store.get("k", "t", "x") == second
        assert await store.delete("k", "t", "x", expected=second.version)
        assert not await store.delete("k", "t", "x")
        again = await store.put("k", "t", "x", b"1", expected=ABSENT)
        assert again.version not in {first.version, second.version}


@pytest.mark.parametrize("kind", LOCAL)
async def test_a_record_ends_with_its_time_and_its_room_is_freed_later(kind: Kind, tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    async with opened(kind, tmp_path, clock) as store:
        await store.put("k", "t", "short", b"1", ttl=10)
        await store.put("k", "t", "kept", b"1")
        clock.now += 9
        assert await store.get("k", "t", "short") is not None
        clock.now += 1
        assert await store.get("k", "t", "short") is None
        assert [record.name for record in await store.list("k", "t")] == ["kept"]
        assert not await store.delete("k", "t", "short")
        await store.put("k", "t", "short", b"2", ttl=1, expected=ABSENT)
        clock.now += SWEEP_INTERVAL
        await store.put("k", "u", "other", b"1")
        if isinstance(store, FileStore):
            assert names_in(tmp_path) == ["@kept", "@other"]
        else:
            assert "short" not in store._records["k", "t"]  # type: ignore[attr-defined]


Names = st.sampled_from(["", "a", "b", "a/b", "..", ".", "%41", "A", "é", "@a", "x" * 60])
Steps = st.lists(
    st.tuples(
        st.sampled_from(["get", "put", "delete", "list", "restart"]), Names, Names, st.binary(max_size=40)
    ),
    max_size=30,
)


@given(steps=Steps, page=st.tuples(st.none() | Names, st.none() | st.integers(0, 4), st.booleans()))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_store_is_a_dict(
    kind: Kind,
    place: Path | RedisServer,
    steps: list[tuple[str, str, str, bytes]],
    page: tuple[str | None, int | None, bool],
) -> None:
    where = place
    if isinstance(where, RedisServer):
        where.ask("FLUSHALL")
    else:
        where = Path(tempfile.mkdtemp(dir=where))
    asyncio.run(_agrees(kind, where, steps, page))


async def _agrees(
    kind: Kind,
    place: Path | RedisServer,
    steps: list[tuple[str, str, str, bytes]],
    page: tuple[str | None, int | None, bool],
) -> None:
    after, limit, reverse = page
    oracle: dict[tuple[str, str], bytes] = {}
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened(kind, place))
        for what, tenant, name, value in steps:
            if what == "put":
                await store.put("k", tenant, name, value)
                oracle[tenant, name] = value
            elif what == "delete":
                assert await store.delete("k", tenant, name) == (oracle.pop((tenant, name), None) is not None)
            elif what == "get":
                found = await store.get("k", tenant, name)
                assert (None if found is None else found.value) == oracle.get((tenant, name))
            elif what == "restart" and kind != "memory":
                await stack.aclose()
                store = await stack.enter_async_context(opened(kind, place))
            listed = [(record.name, record.value) for record in await store.list("k", tenant)]
            expected = sorted((n, v) for (t, n), v in oracle.items() if t == tenant)
            assert listed == expected
            shown = await store.list("k", tenant, after=after, limit=limit, reverse=reverse)
            expected.sort(reverse=reverse)
            behind = [n for n, _ in expected if after is None or (n < after if reverse else n > after)]
            assert [record.name for record in shown] == behind[:limit]


async def test_of_many_writers_who_expect_the_same_one_wins(kind: Kind, place: Path | RedisServer) -> None:
    async with opened(kind, place) as store:
        first = await store.put("k", "t", "x", b"0")
        changes = [store.put("k", "t", "x", str(i).encode(), expected=first.version) for i in range(20)]
        outcomes = await asyncio.gather(*changes, return_exceptions=True)
        assert sum(isinstance(outcome, Record) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 19


async def test_a_change_goes_on_without_its_caller(tmp_path: Path) -> None:
    """What is queued behind other work is done too when its caller has left."""
    async with opened("files", tmp_path, ManualClock(1.0)) as store:
        before = [asyncio.create_task(store.put("k", "t", str(i), b"1" * 100_000)) for i in range(5)]
        last = asyncio.create_task(store.put("k", "t", "last", b"1"))
        await asyncio.sleep(0)
        last.cancel()
        await asyncio.gather(*before)
        assert await store.get("k", "t", "last") is not None


async def test_a_change_that_fails_without_its_caller_is_nobodys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever has left hears of nothing, and no log speaks of an error that nobody has looked at."""
    async with opened("files", tmp_path, ManualClock(1.0)) as store:
        late = asyncio.create_task(store.put("k", "t", "x", b"1", expected="no such version"))
        await asyncio.sleep(0)
        late.cancel()
        await asyncio.wait([late])
        await store.list("k", "t")
        del late
        gc.collect()
        await asyncio.sleep(0)
    assert caplog.text == ""


async def test_one_process_at_a_time(tmp_path: Path) -> None:
    async with opened("files", tmp_path, ManualClock(1.0)):
        second = FileStore(tmp_path / "records")
        with pytest.raises(StoreError, match="in use by another server"):
            await second.open()
        await second.close()
    async with opened("files", tmp_path, ManualClock(1.0)):
        pass  # free again


@pytest.mark.parametrize("place", [0, 8, 25, 40, -1])
async def test_damage_is_named_and_not_read(place: int, tmp_path: Path) -> None:
    async with opened("files", tmp_path, ManualClock(1.0)) as store:
        await store.put("k", "t", "x", b"value")
        file = tmp_path / "records/@k/@t/@x"
        content = bytearray(file.read_bytes())
        content[place] ^= 1
        file.write_bytes(content)
        for look in (store.get("k", "t", "x"), store.list("k", "t")):
            with pytest.raises(StoreError, match="damaged"):
                await look
        file.write_bytes(content[:-3])
        with pytest.raises(StoreError, match="damaged"):
            await store.get("k", "t", "x")


async def test_what_the_disk_refuses_is_an_error_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened("files", tmp_path, ManualClock(1.0)) as store:
        before = await store.put("k", "t", "x", b"1")

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            await store.put("k", "t", "x", b"2")
        monkeypatch.undo()
        assert await store.get("k", "t", "x") == before
        assert names_in(tmp_path) == ["@x"]


async def test_a_record_is_replaced_and_never_written_over(tmp_path: Path) -> None:
    """Nobody, whenever he dies, finds half of it: the new file is whole before it has the name."""
    async with opened("files", tmp_path, ManualClock(1.0)) as store:
        await store.put("k", "t", "x", b"1")
        file = tmp_path / "records/@k/@t/@x"
        with await asyncio.to_thread(file.open, "rb") as before:
            old = before.read()
            await store.put("k", "t", "x", b"2")
            before.seek(0)
            assert before.read() == old


async def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    async with opened("files", tmp_path, ManualClock(1.0)) as store:
        with pytest.raises(StoreError, match="too long"):
            await store.put("k", "t", "é" * 100, b"")


WRITER = """
import asyncio, sys
from pathlib import Path
from cache.file_store import FileStore

async def main():
    store = FileStore(Path(sys.argv[1]))
    await store.open()
    for i in range(1_000_000):
        name = str(i % 7)
        await store.put("k", "t", name, str(i).encode() * 5000)
        print(i, flush=True)

asyncio.run(main())
"""


async def test_a_kill_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """Whatever moment it comes at: each record is the last that was acknowledged or the one in the making, whole."""
    for number, pause in enumerate((0.05, 0.06, 0.07)):
        directory = tmp_path / str(number)
        writer = await asyncio.to_thread(
            subprocess.Popen, [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        said = await asyncio.to_thread(writer.stdout.readline)
        await asyncio.to_thread(time.sleep, pause)
        writer.kill()
        said += (await asyncio.to_thread(writer.communicate))[0]
        acknowledged = int(said.split()[-1])
        store = FileStore(directory)
        await store.open()
        records = {record.name: record.value for record in await store.list("k", "t")}
        for name in map(str, range(min(acknowledged + 1, 7))):
            last = max(i for i in range(acknowledged + 1) if i % 7 == int(name))
            next_ = acknowledged + 1
            allowed = [last, next_] if next_ % 7 == int(name) else [last]
            assert records[name] in [str(i).encode() * 5000 for i in allowed], (name, acknowledged)
        assert set(names_in(tmp_path, str(number))) == {"@" + name for name in records}
        await store.close()


async def test_memory_is_bounded_and_what_lasts_stays() -> None:
    """The oldest go first; what is written again is the newest; the kinds that last are neither counted nor dropped."""
    store = MemoryStore(most_bytes=3 * (OVERHEAD + 101), lasting={"generation"})
    await store.put("generation", "", "a", b"1" * 5000)
    for name in "abc":
        await store.put("session", "t", name, b"x" * 100)
    await store.put("session", "t", "a", b"y" * 100)
    await store.put("session", "t", "d", b"x" * 100)
    assert [record.name for record in await store.list("session", "t")] == ["a", "c", "d"]
    assert await store.get("generation", "", "a") is not None
    with pytest.raises(StoreError, match="larger than"):
        await store.put("session", "t", "b", b"x" * 2000)
    assert len(await store.list("session", "t")) == 3
    for name in "acd":
        await store.delete("session", "t", name)
    assert store.bytes == 0
