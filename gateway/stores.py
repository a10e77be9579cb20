"""Where what outlives a request is kept: chosen by the operator's options, opened, and closed after everybody."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cache.bulletin import Bulletin
from cache.file_store import FileStore
from cache.memory_store import MemoryStore
from cache.namespace import load_secret
from cache.redis_address import RedisAddress
from cache.redis_link import RedisLink
from cache.redis_store import RedisStore
from cache.store import Store, StoreError, StoreUnavailable
from engine.errors import StartError

from .caching.generations import KIND, Generations, LocalGenerations, SharedGenerations
from .caching.namespaces import Namespaces
from .caching.objects import CONTENTS, OBJECTS, OWNERS
from .config import StoreOptions
from .faulty_store import FaultyStore, split
from .log import faults
from .sessions.metrics import StoreLatency
from .sessions.sessions import Sessions
from .tenants import Tenants

DAY = 86400.0

LASTING = (KIND, OBJECTS, CONTENTS, OWNERS)
"""Kinds that no memory bound drops: their number has bounds of its own."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The store and what stands before it. `link` is the way to Redis, if there is one, `faulty` what makes the store fail in
    tests."""

    store: Store
    namespaces: Namespaces
    sessions: Sessions
    link: RedisLink | None = None
    bulletin: Bulletin | None = None
    latency: StoreLatency = field(default_factory=StoreLatency)
    faulty: FaultyStore | None = None

    @classmethod
    def of_this_process(cls, tenants: Tenants) -> Stores:
        """In memory without a bound, for as long as clients may ask."""
        store = MemoryStore()
        return cls(store, Namespaces.of_this_process(tenants), Sessions(store, ttl=DAY))

    def degraded(self) -> list[str]:
        """What is missing while everything else goes on."""
        return ["redis"] if self.link is not None and (self.link.is_open or self.sessions.late) else []


@asynccontextmanager
async def open_stores(
    options: StoreOptions, cache_dir: Path | None, tenants: Tenants, failpoints: tuple[str, ...] | None
) -> AsyncIterator[Stores]:
    """In Redis, in the directory, or in memory. `failpoints` None: not in test mode. Raises StartError for what the operator
    has to change; a Redis that is not there is none of that."""
    latency = StoreLatency()
    store, link = await _open(options, cache_dir, latency)
    try:
        faulty = None
        if failpoints is not None:
            store = faulty = FaultyStore(store)
            for spec in split(failpoints)[0]:
                faulty.set(spec)
        bulletin = None if link is None else Bulletin(link)
        generations = await _generations(store, bulletin)
        if cache_dir is None:
            namespaces = Namespaces.of_this_process(tenants, generations)
        else:
            secret = await asyncio.to_thread(load_secret, cache_dir)
            namespaces = Namespaces(secret, generations, tenants)
        most_bytes = 0 if link is None else options.session_bytes
        sessions = Sessions(store, bulletin, ttl=options.session_ttl, most_bytes=most_bytes)
        yield Stores(store, namespaces, sessions, link, bulletin, latency, faulty)
    except (StoreError, OSError) as error:
        raise StartError(f"the cache directory cannot be used: {error}") from None
    finally:
        await store.close()


async def _open(
    options: StoreOptions, cache_dir: Path | None, latency: StoreLatency
) -> tuple[Store, RedisLink | None]:
    if options.redis is not None:
        link = RedisLink(
            await asyncio.to_thread(redis_address, options), tell=faults.warning, took=latency.observe
        )
        await link.begin()
        return RedisStore(link), link
    if cache_dir is None:
        return MemoryStore(most_bytes=options.session_bytes, lasting=LASTING), None
    store = FileStore(cache_dir / "records")
    try:
        await asyncio.to_thread(load_secret, cache_dir)  # makes the directory, for its owner only
        await store.open()
    except (StoreError, OSError) as error:
        raise StartError(f"the cache directory cannot be used: {error}") from None
    return store, None


async def _generations(store: Store, bulletin: Bulletin | None) -> Generations:
    if bulletin is None:
        return await LocalGenerations.load(store)
    generations = SharedGenerations(store, bulletin)
    with contextlib.suppress(StoreUnavailable):  # they settle when it is there
        await generations.load()
    return generations


def redis_address(options: StoreOptions) -> RedisAddress:
    """With the password of the file. Blocks. Raises StartError."""
    assert options.redis is not None
    password = None
    if options.redis_password_file is not None:
        try:
            password = options.redis_password_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"the password of Redis cannot be read: {error}") from None
    return RedisAddress.parse(options.redis, password=password)
