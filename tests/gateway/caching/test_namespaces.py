"""Namespaces: what narrows, what separates, and that a flush is an end that lasts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.file_store import FileStore
from cache.memory_store import MemoryStore
from cache.store import StoreError
from gateway.caching.generations import LocalGenerations
from gateway.caching.namespaces import Namespaces
from gateway.tenants import Tenants

SECRET = b"s" * 32
ISOLATING = Tenants.parse("tenants: {iso: {prompt_cache_key: isolate}, iso2: {prompt_cache_key: isolate}}")

Tenant = st.sampled_from(["a", "b", "ab", "iso", "iso2"])
Word = st.none() | st.sampled_from(["", "a", "b", "ab", "iso"])


Asked = st.tuples(Tenant, Word, Word)


@given(Asked, Asked)
def test_two_requests_share_only_within_tenant_and_salt_and_an_isolated_key(
    one: tuple[str, str | None, str | None], two: tuple[str, str | None, str | None]
) -> None:
    namespaces = Namespaces(SECRET, LocalGenerations(MemoryStore()), ISOLATING)
    counted = slice(None) if one[0].startswith("iso") else slice(2)
    digests = {namespaces.of(tenant, salt=salt, key=key) for tenant, salt, key in (one, two)}
    assert (len(digests) == 1) == (one[counted] == two[counted])


@given(Tenant, Word, Tenant, Word)
def test_a_group_is_one_tenants_key(tenant: str, key: str | None, tenant_2: str, key_2: str | None) -> None:
    namespaces = Namespaces(SECRET, LocalGenerations(MemoryStore()), ISOLATING)
    alike = key == key_2 and (tenant == tenant_2 or key is None)
    assert (namespaces.group(tenant, key) == namespaces.group(tenant_2, key_2)) == alike
    assert (namespaces.group(tenant, key) == b"") == (key is None)


@given(
    Tenant,
    st.frozensets(st.sampled_from(["a", "b", "ab"])),
    Tenant,
    st.frozensets(st.sampled_from(["a", "b", "ab"])),
)
def test_a_kind_of_tools_is_one_tenants_set(
    tenant: str, names: frozenset[str], tenant_2: str, names_2: frozenset[str]
) -> None:
    namespaces = Namespaces(SECRET, LocalGenerations(MemoryStore()), ISOLATING)
    kinds = {namespaces.tools(tenant, names), namespaces.tools(tenant_2, names_2)}
    assert (len(kinds) == 1) == ((tenant, names) == (tenant_2, names_2))
    assert all(0 < kind < 1 << 64 for kind in kinds)


async def test_a_flush_ends_what_a_tenant_had_and_nobody_elses() -> None:
    namespaces = Namespaces.of_this_process()
    before = {name: namespaces.of(name) for name in ("a", "b")}
    salted = namespaces.of("a", salt="x")
    assert await namespaces.flush("a")
    assert namespaces.generation("a") == 1
    assert namespaces.of("a") != before["a"]
    assert namespaces.of("a", salt="x") != salted
    assert namespaces.of("b") == before["b"]
    assert await namespaces.flush("a")
    assert namespaces.generation("a") == 2


async def test_a_flush_holds_before_it_is_written_down() -> None:
    namespaces = Namespaces.of_this_process()
    before = namespaces.of("a")
    flush = asyncio.create_task(namespaces.flush("a"))
    await asyncio.sleep(0)
    assert namespaces.of("a") != before
    await flush


async def test_a_restart_does_not_bring_back_what_was_flushed(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.open()
    first = Namespaces(SECRET, await LocalGenerations.load(store), Tenants())
    old, other = first.of("a"), first.of("b")
    await first.flush("a")
    new = first.of("a")
    await store.close()

    store = FileStore(tmp_path)
    await store.open()
    second = Namespaces(SECRET, await LocalGenerations.load(store), Tenants())
    assert (second.of("a"), second.of("b")) == (new, other)
    assert second.of("a") != old
    await store.close()


async def test_a_flush_that_cannot_be_written_down_says_so_and_holds_for_now(tmp_path: Path) -> None:
    class Full(MemoryStore):
        async def put(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            raise StoreError("No space left on device")

    namespaces = Namespaces(SECRET, LocalGenerations(Full()), Tenants())
    before = namespaces.of("a")
    with pytest.raises(StoreError):
        await namespaces.flush("a")
    assert namespaces.of("a") != before


def test_two_processes_share_nothing() -> None:
    assert Namespaces.of_this_process().of("a") != Namespaces.of_this_process().of("a")
