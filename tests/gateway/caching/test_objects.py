"""The registry of cache objects: lifetimes, names, tenants, and what survives a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cache.file_store import FileStore
from cache.memory_store import MemoryStore
from cache.store import Store
from gateway.caching.generations import LocalGenerations
from gateway.caching.objects import (
    CONTENTS,
    GONE_FOR,
    OBJECTS,
    CacheObject,
    CacheObjects,
    Content,
    Held,
    new_id,
)
from gateway.errors import ApiError
from tests.fakes import ManualClock

HELD = Held(content=Content(text="abc"), prompt=[97, 98, 99])


class Told(LocalGenerations):
    """Generations that a test moves."""

    def __init__(self, known: dict[str, int]) -> None:
        super().__init__(MemoryStore())
        self._known = known


class Bench:
    """A registry with a clock and generations that move when told to."""

    def __init__(self, *, most: int = 5, store: Store | None = None) -> None:
        self.clock = ManualClock(1000.0)
        self.generations: dict[str, int] = {}
        self.store = store or MemoryStore(clock=self.clock)
        self.most = most
        self.objects = self.fresh()

    def fresh(self) -> CacheObjects:
        """As after a restart."""
        return CacheObjects(self.store, Told(self.generations), most=self.most, clock=self.clock)

    def made(self, tenant: str = "t", *, ttl: float | None = 60.0, name: str | None = None) -> CacheObject:
        now = self.clock.now
        return CacheObject(
            id=new_id(),
            tenant=tenant,
            name=name,
            model="m",
            created_at=now,
            updated_at=now,
            last_used_at=now,
            expires_at=None if ttl is None else now + ttl,
            ttl=ttl,
            digest=b"d",
            tokens=3,
            generation=self.generations.get(tenant, 0),
        )

    async def keep(
        self, tenant: str = "t", *, ttl: float | None = 60.0, name: str | None = None
    ) -> CacheObject:
        async with self.objects.making(tenant, name):
            made = self.made(tenant, ttl=ttl, name=name)
            await self.objects.keep(made, HELD)
        return made

    async def status(self, tenant: str, object_id: str) -> int:
        try:
            await self.objects.live(tenant, object_id)
        except ApiError as error:
            return error.status
        return 200


async def test_it_lasts_for_its_ttl_after_the_last_use_and_no_longer() -> None:
    bench = Bench()
    made = await bench.keep(ttl=60.0)
    for _ in range(5):
        bench.clock.now += 59.9
        used, held = await bench.objects.use("t", made.id)
        assert (used.expires_at, held) == (bench.clock.now + 60, HELD)
        assert (await bench.objects.live("t", made.id)).last_used_at == bench.clock.now
    bench.clock.now += 60.0
    assert await bench.status("t", made.id) == 410
    with pytest.raises(ApiError) as refused:
        await bench.objects.use("t", made.id)
    assert (refused.value.status, refused.value.code, refused.value.param) == (410, "cache_gone", "cache.id")


async def test_a_fixed_end_stays_where_it_is() -> None:
    bench = Bench()
    made = structs.replace(bench.made(), ttl=None, expires_at=1060.0)
    await bench.objects.keep(made, HELD)
    bench.clock.now = 1059.0
    used, _ = await bench.objects.use("t", made.id)
    assert used.expires_at == 1060.0
    assert used.lease(bench.clock.now).ttl == 1.0
    bench.clock.now = 1060.0
    assert await bench.status("t", made.id) == 410


async def test_a_pin_without_an_end_has_none() -> None:
    bench = Bench()
    made = structs.replace(bench.made(ttl=None), pin="soft")
    await bench.objects.keep(made, HELD)
    bench.clock.now = 1e12
    assert await bench.status("t", made.id) == 200
    assert await bench.objects.sweep() == []


async def test_a_use_outlives_a_restart_once_it_was_written_down() -> None:
    bench = Bench()
    made = await bench.keep(ttl=60.0)
    bench.clock.now += 50
    await bench.objects.use("t", made.id)
    await bench.objects.write_uses()
    bench.objects = bench.fresh()
    bench.clock.now += 59
    assert await bench.status("t", made.id) == 200
    assert (await bench.objects.content(made)) == HELD


async def test_a_use_is_written_once() -> None:
    bench = Bench()
    made = await bench.keep()
    bench.clock.now += 1
    await bench.objects.use("t", made.id)
    versions = set()
    for _ in range(3):
        await bench.objects.write_uses()
        record = await bench.store.get(OBJECTS, "t", made.id)
        assert record is not None
        versions.add(record.version)
    assert len(versions) == 1


async def test_a_much_used_object_keeps_its_content() -> None:
    """The store forgets by itself: what an object is made of has to last as long as the object."""
    bench = Bench()
    made = await bench.keep(ttl=3600.0)
    for _ in range(60):
        bench.clock.now += 3000.0
        await bench.objects.use("t", made.id)
        await bench.objects.write_uses()
    assert bench.clock.now - 1000.0 > GONE_FOR + 3600.0


async def test_what_is_over_is_told_once_and_remembered_for_a_while() -> None:
    bench = Bench()
    made = await bench.keep(ttl=60.0)
    assert await bench.objects.sweep() == []
    bench.clock.now += 60
    assert [ended.id for ended in await bench.objects.sweep()] == [made.id]
    assert await bench.objects.sweep() == []
    assert await bench.store.get(CONTENTS, "t", made.id) is None
    bench.clock.now += GONE_FOR - 1
    assert await bench.status("t", made.id) == 410
    bench.clock.now += 2
    assert await bench.status("t", made.id) == 404


async def test_another_tenant_s_object_is_as_unknown_as_none() -> None:
    bench = Bench()
    made = await bench.keep("t", name="n")
    messages = []
    for object_id in (made.id, "cache_" + "0" * 32):
        with pytest.raises(ApiError) as refused:
            await bench.objects.live("u", object_id)
        messages.append((refused.value.status, refused.value.message.replace(object_id, "ID")))
    assert messages[0] == messages[1]
    assert await bench.objects.all("u") == []
    async with bench.objects.making("u", "n") as found:
        assert found is None


async def test_a_name_stands_for_the_object_that_has_it_now() -> None:
    bench = Bench()
    first = await bench.keep("t", name="n")
    assert (await bench.objects.find("t", "n")).id == first.id
    used, _ = await bench.objects.use("t", "n")
    assert used.id == first.id
    await bench.objects.write_uses()
    await bench.objects.remove(first)
    assert await bench.status("t", "n") == 404
    second = await bench.keep("t", name="n")
    assert (await bench.objects.find("t", "n")).id == second.id
    assert await bench.status("u", "n") == 404


async def test_a_flush_of_a_tenant_ends_its_objects_at_once() -> None:
    bench = Bench()
    mine, other = await bench.keep("t", ttl=None), await bench.keep("u")
    bench.generations["t"] = 1
    bench.objects.flushed("t")
    assert (await bench.status("t", mine.id), await bench.status("u", other.id)) == (410, 200)
    await bench.objects.sweep()
    assert await bench.store.get(CONTENTS, "t", mine.id) is None
    bench.objects = bench.fresh()
    assert (await bench.status("t", mine.id), await bench.status("u", other.id)) == (410, 200)


async def test_the_owners_of_objects_are_known_after_a_restart() -> None:
    bench = Bench()
    for tenant in ("t", "u", "t"):
        await bench.keep(tenant)
    bench.objects = bench.fresh()
    assert await bench.objects.owners() == ["t", "u"]


async def test_one_name_is_one_object_however_many_make_it_at_once() -> None:
    bench = Bench()
    seen: list[str | None] = []

    async def make() -> None:
        async with bench.objects.making("t", "n") as found:
            seen.append(None if found is None else found.id)
            await asyncio.sleep(0)
            if found is None:
                await bench.objects.keep(bench.made(name="n"), HELD)

    await asyncio.gather(*(make() for _ in range(8)))
    (only,) = await bench.objects.all("t")
    assert sorted(seen, key=str) == sorted([None, *[only.id] * 7], key=str)


async def test_a_name_is_free_again_once_its_object_is_gone() -> None:
    bench = Bench()
    for _ in range(3):
        async with bench.objects.making("t", "n") as found:
            assert found is None
            await bench.objects.keep(bench.made(name="n", ttl=60), HELD)
        bench.clock.now += 60


async def test_a_tenant_has_so_many_and_others_have_theirs() -> None:
    bench = Bench(most=3)
    for _ in range(3):
        await bench.keep("t")
    with pytest.raises(ApiError) as refused:
        await bench.keep("t")
    assert (refused.value.status, refused.value.code) == (409, "too_many_caches")
    await bench.keep("u")
    bench.clock.now += 60  # those are over
    await bench.keep("t")


async def test_creations_under_way_count() -> None:
    bench = Bench(most=2)
    async with bench.objects.making("t", None), bench.objects.making("t", None):
        with pytest.raises(ApiError):
            await bench.keep("t")
    await bench.keep("t")


async def test_those_that_ended_do_not_pile_up() -> None:
    bench = Bench(most=2)
    for _ in range(20):
        await bench.keep("t", ttl=1.0)
        bench.clock.now += 1
        await bench.objects.sweep()
    assert len(await bench.objects.all("t")) <= 4


async def test_a_change_and_a_use_at_once_lose_neither() -> None:
    bench = Bench()
    made = await bench.keep(ttl=60)
    bench.clock.now += 10
    await bench.objects.use("t", made.id)
    await asyncio.gather(
        bench.objects.change("t", made.id, lambda found: structs.replace(found, tag="a")),
        bench.objects.change("t", made.id, lambda found: structs.replace(found, priority=7)),
        bench.objects.write_uses(),
    )
    found = await bench.objects.find("t", made.id)
    assert (found.tag, found.priority, found.last_used_at) == ("a", 7, 1010.0)


async def test_what_has_ended_is_not_changed_back() -> None:
    bench = Bench()
    made = await bench.keep()
    await bench.objects.end(made, "flushed")
    with pytest.raises(ApiError) as refused:
        await bench.objects.change("t", made.id, lambda found: found)
    assert refused.value.status == 410
    await bench.objects.end(made, "expired")
    assert (await bench.objects.find("t", made.id)).ended == "flushed"


@given(st.lists(st.sampled_from(["use", "wait", "sweep", "restart", "late"]), max_size=30))
def test_it_is_never_over_before_its_time_nor_after_it(steps: list[str]) -> None:
    """Whatever happens in which order; a restart may forget uses since the last sweep, and no others."""

    async def play() -> None:
        bench = Bench()
        made = await bench.keep(ttl=10.0)
        noted = last = bench.clock.now
        for step in steps:
            alive = await bench.status("t", made.id) == 200
            assert alive == (bench.clock.now < last + 10.0)
            match step:
                case "use" if alive:
                    await bench.objects.use("t", made.id)
                    last = bench.clock.now
                case "wait":
                    bench.clock.now += 3.0
                case "late":
                    bench.clock.now += 9.5
                case "sweep" if alive:
                    await bench.objects.write_uses()
                    await bench.objects.sweep()
                    noted = last
                case "restart":
                    bench.objects = bench.fresh()
                    last = noted

    asyncio.run(play())


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[FileStore]:
    store = FileStore(tmp_path / "store")
    await store.open()
    yield store
    await store.close()


async def test_objects_in_files(files: FileStore) -> None:
    bench = Bench(store=files)
    bench.clock.now = 0.0
    made = structs.replace(bench.made(name="weird/../name"), expires_at=None, ttl=None, pin="hard")
    await bench.objects.keep(made, HELD)
    bench.objects = bench.fresh()
    assert (await bench.objects.live("t", made.id)).pin == "hard"
    assert await bench.objects.content(made) == HELD
    assert (await bench.objects.find("t", "weird/../name")).id == made.id
    assert await bench.status("t", "x" * 512) == 404
    await bench.objects.remove(made)
    assert await bench.status("t", made.id) == 404


def test_ids_say_nothing() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(each) == len("cache_") + 32 for each in ids)
