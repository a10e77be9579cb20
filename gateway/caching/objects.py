"""Cache objects: prompts that a client gave a name and a lifetime. Each is an entry of the engine's with the object's id.

An object outlives the pages it stands for: an engine that was started again knows nothing of it until somebody warms it.
What an object says of itself is kept apart from what it is made of, which is as long as a prompt.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal
from weakref import WeakValueDictionary

import msgspec
from msgspec import structs

from cache.lease import DEFAULT_PRIORITY, Lease, Pin, Tier
from cache.store import Conflict, Record, Store

from ..errors import ApiError
from .generations import Generations

OBJECTS = "cache-objects"
CONTENTS = "cache-contents"
"""Kinds of records in the store, both by tenant and id."""
OWNERS = "cache-owners"
_SERVER = ""
"""One record for each tenant that has objects, the server's own."""

GONE_FOR = 24 * 3600.0
"""Seconds for which an object that has ended still answers 410 and says why, rather than 404."""

LATE = 3600.0
"""Seconds for which a request may still be under way that began with an object before that ended."""

Ending = Literal["expired", "flushed"]
Clock = Callable[[], float]


class Content(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an object is made of: messages, with the tools and variables they are rendered with, or a text, or token ids."""

    messages: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    variables: dict[str, Any] = {}
    text: str | None = None
    ids: list[int] | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A content and the token ids it came to."""

    content: Content
    prompt: list[int]


class CacheObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of an object without asking the engine. Times are seconds of the wall clock, `ttl` is seconds.

    With a `ttl` every use puts `expires_at` off; without one it is fixed, or None where a pin has no end. `salt` and `key`
    are the `cache_salt` and `prompt_cache_key` it was made with: they are part of where requests find it. `digest` is equal
    for equal contents. A flush of the tenant ends its `generation`. The store has its content until `content_until`. `ended` says why it can no longer be used.
    """

    id: str
    tenant: str
    name: str | None = None
    model: str
    created_at: float
    updated_at: float
    last_used_at: float
    expires_at: float | None
    ttl: float | None = None
    pin: Pin = "none"
    priority: int = DEFAULT_PRIORITY
    tag: str = ""
    lowest: Tier = "disk"
    salt: str | None = None
    key: str | None = None
    digest: bytes
    tokens: int
    generation: int = 0
    content_until: float | None = None
    ended: Ending | None = None

    def used(self, now: float) -> CacheObject:
        """After a use or a renewal at `now`. A fixed end stays where it is."""
        end = self.expires_at if self.ttl is None else now + self.ttl
        return structs.replace(self, last_used_at=now, expires_at=end)

    def lease(self, now: float) -> Lease:
        """What the engine is to promise from `now` on."""
        left = 0.0 if self.expires_at is None else max(self.expires_at - now, 0.0)
        return Lease(
            ttl=left if self.ttl is None else self.ttl, pin=self.pin, priority=self.priority, tag=self.tag
        )

    def ending(self, now: float) -> Ending | None:
        """Why it cannot be used any more; None if it can."""
        if self.ended is None and self.expires_at is not None and now >= self.expires_at:
            return "expired"
        return self.ended


_ID = re.compile("cache_[0-9a-f]{32}")


def is_id(name: str) -> bool:
    """Whether it is spelled like one: no object is called so."""
    return _ID.fullmatch(name) is not None


def new_id() -> str:
    """Says nothing of tenant, content or time."""
    return f"cache_{secrets.token_hex(16)}"


class CacheObjects:
    """The objects of all tenants, in a store. `most` bounds how many a tenant may have at once.

    Uses are remembered here and written by `write_uses`, so that a request never waits for a disk because of them: a
    server that is killed forgets the latest.
    """

    def __init__(
        self, store: Store, generations: Generations, *, most: int, clock: Clock = time.time
    ) -> None:
        """`generations` are those of the tenants' namespaces."""
        self.clock = clock
        self.generation = generations.of
        self.changed: Callable[[str, str], None] = lambda tenant, object_id: None
        """Told of every object that was changed, ended or removed here: its tenant and id."""
        self._generations = generations
        self._owners: set[str] = set()
        """Tenants that are written down to have objects."""
        self._store = store
        self._most = most
        self._used: dict[tuple[str, str], float] = {}
        self._ends: dict[tuple[str, str], float] = {}
        """When objects that this process knows of end: those the engine may have entries of."""
        self._ended: dict[str, float] = {}
        """When objects ended or were removed here lately, by id, the first first."""
        self._making: Counter[str] = Counter()
        self._names: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """Locks for as long as somebody holds or awaits them."""
        self._flushed: set[str] = set()
        """Tenants whose objects of an old generation are still to be cleared away."""

    # -- finding -------------------------------------------------------------------------------------------------------

    async def find(self, tenant: str, object_id: str, *, param: str = "id") -> CacheObject:
        """An object by its id, ended or not, or one that can be used by its name. Raises ApiError 404: another tenant's is as
        unknown as one that never was."""
        if is_id(object_id):
            record = await self._store.get(OBJECTS, tenant, object_id)
            found = None if record is None else await self._decode(record)
        else:
            found = await self.named(tenant, object_id)
        if found is None:
            raise not_found(object_id, param)
        return found

    async def live(self, tenant: str, object_id: str, *, param: str = "id") -> CacheObject:
        """One that can be used. Raises ApiError 404, or 410 when its time is over or it was flushed."""
        found = await self.find(tenant, object_id, param=param)
        self._check_live(found, param)
        return found

    async def use(self, tenant: str, object_id: str, *, param: str = "cache.id") -> tuple[CacheObject, Held]:
        """An object for a request that is to begin with it, and what it is made of. Its lifetime begins anew.

        Raises ApiError 404 or 410, never anything silent.
        """
        found = await self.live(tenant, object_id, param=param)
        held = await self.content(found, param=param)
        now = self.clock()
        used = found.used(now)
        self._used[tenant, found.id] = now
        self._note_end(used)
        return used, held

    async def content(self, found: CacheObject, *, param: str = "id") -> Held:
        """What an object is made of. Raises ApiError 404 if it was deleted meanwhile."""
        record = await self._store.get(CONTENTS, found.tenant, found.id)
        if record is None:
            raise not_found(found.id, param)
        return msgspec.msgpack.decode(record.value, type=Held)

    async def all(self, tenant: str) -> list[CacheObject]:
        """All that are remembered, also those that have ended, the oldest first."""
        found = [await self._decode(record) for record in await self._store.list(OBJECTS, tenant)]
        return sorted(found, key=lambda each: (each.created_at, each.id))

    async def owners(self) -> list[str]:
        """All tenants that ever had an object."""
        return [record.name for record in await self._store.list(OWNERS, _SERVER)]

    async def named(self, tenant: str, name: str) -> CacheObject | None:
        """The one object of this name that can be used."""
        now = self.clock()
        for each in await self.all(tenant):
            if each.name == name and each.ending(now) is None:
                return each
        return None

    # -- changing ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def making(self, tenant: str, name: str | None) -> AsyncIterator[CacheObject | None]:
        """Room for one more object, and the one that has its name already: nobody else makes one of this name meanwhile.

        Raises ApiError 409 when the tenant has as many as it may have.
        """
        self._making[tenant] += 1
        try:
            async with self._alone(tenant, name):
                found = None if name is None else await self.named(tenant, name)
                if found is None:
                    await self._make_room(tenant)
                yield found
        finally:
            self._making[tenant] -= 1
            if not self._making[tenant]:
                del self._making[tenant]

    async def keep(self, made: CacheObject, held: Held) -> None:
        """Store a new object, or an old one made anew. The content first: an object without one would be a lie."""
        if made.tenant not in self._owners:
            await self._store.put(OWNERS, _SERVER, made.tenant, b"")
            self._owners.add(made.tenant)
        await self._put(await self._with_content(made, held))

    async def change(
        self, tenant: str, object_id: str, change: Callable[[CacheObject], CacheObject]
    ) -> CacheObject:
        """An object after `change`, which may be asked more than once. Raises ApiError 404 or 410, or what it raises."""

        def apply(found: CacheObject) -> CacheObject:
            self._check_live(found, "id")
            return structs.replace(change(found), updated_at=self.clock())

        changed = await self._rewrite(tenant, object_id, apply)
        if changed is None:
            raise not_found(object_id, "id")
        self.changed(tenant, object_id)
        return changed

    async def end(self, found: CacheObject, ending: Ending) -> None:
        """From here on it answers 410. What it was made of is forgotten. Nothing if it is gone, or has ended already."""
        await self._rewrite(
            found.tenant,
            found.id,
            lambda latest: latest if latest.ended is not None else structs.replace(latest, ended=ending),
        )
        await self._store.delete(CONTENTS, found.tenant, found.id)
        self._forget(found)
        self.changed(found.tenant, found.id)
        await asyncio.sleep(
            0
        )  # a store in memory never waits: many of these would keep the loop from all others

    def flushed(self, tenant: str) -> None:
        """The tenant's generation has ended, and with it all of its objects: at once, however many they are."""
        self._flushed.add(tenant)

    async def remove(self, found: CacheObject) -> None:
        """From here on it answers 404."""
        await self._store.delete(OBJECTS, found.tenant, found.id)
        await self._store.delete(CONTENTS, found.tenant, found.id)
        self._forget(found)
        self.changed(found.tenant, found.id)

    def ended_lately(self, object_id: str) -> bool:
        return object_id in self._ended

    async def write_uses(self) -> None:
        """Write down which were used since the last time, and when."""
        for (tenant, object_id), when in list(self._used.items()):
            await self._rewrite(tenant, object_id, lambda found: found)  # a use is part of what is read
            if self._used.get((tenant, object_id)) == when:
                del self._used[tenant, object_id]

    async def sweep(self) -> list[CacheObject]:
        """End what is over; those that ended now."""
        while self._flushed:
            for each in await self.all(self._flushed.pop()):
                if each.ended == "flushed":
                    await self.end(each, "flushed")
        now = self.clock()
        for object_id in [each for each, when in self._ended.items() if now - when > LATE]:
            del self._ended[object_id]
        ended: list[CacheObject] = []
        for tenant, object_id in [key for key, end in self._ends.items() if end <= now]:
            record = await self._store.get(OBJECTS, tenant, object_id)
            found = None if record is None else await self._decode(record)
            if found is None:
                self._ends.pop((tenant, object_id), None)
            elif found.ending(now) is None:
                self._note_end(found)
            else:
                await self.end(found, "expired")
                ended.append(found)
        return ended

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _decode(self, record: Record) -> CacheObject:
        found = msgspec.msgpack.decode(record.value, type=CacheObject)
        await self._generations.settled(found.tenant)
        if found.ended is None and self._generations.has_ended(found.tenant, found.generation):
            return structs.replace(found, ended="flushed")
        used = self._used.get((found.tenant, found.id), 0.0)
        return found.used(used) if used > found.last_used_at else found

    def _check_live(self, found: CacheObject, param: str) -> None:
        ending = found.ending(self.clock())
        if ending is not None:
            raise gone(found.id, ending, param)

    async def _rewrite(
        self, tenant: str, object_id: str, change: Callable[[CacheObject], CacheObject]
    ) -> CacheObject | None:
        """Read, change and write, again if somebody else was faster. None if there is no such object."""
        while (record := await self._store.get(OBJECTS, tenant, object_id)) is not None:
            changed = await self._with_content(change(await self._decode(record)))
            try:
                await self._put(changed, expected=record.version)
            except Conflict:
                continue
            return changed
        return None

    async def _with_content(self, made: CacheObject, held: Held | None = None) -> CacheObject:
        """The object, once the store has its content for as long: `held`, or what is there already."""
        ttl = self._kept_for(made)
        if held is not None:
            value = msgspec.msgpack.encode(held)
        else:
            record = None if _lasts(made) else await self._store.get(CONTENTS, made.tenant, made.id)
            if record is None:
                return made
            value = record.value
        await self._store.put(CONTENTS, made.tenant, made.id, value, ttl=ttl)
        return structs.replace(made, content_until=None if ttl is None else self.clock() + ttl)

    async def _put(self, made: CacheObject, *, expected: str | None = None) -> None:
        await self._store.put(
            OBJECTS,
            made.tenant,
            made.id,
            msgspec.msgpack.encode(made),
            ttl=self._kept_for(made),
            expected=expected,
        )
        self._note_end(made)

    def _kept_for(self, made: CacheObject) -> float | None:
        """Seconds a store has to keep it: to its end, and then for as long as it is worth a word."""
        if made.ended is not None:
            return GONE_FOR
        return None if made.expires_at is None else max(made.expires_at - self.clock(), 0.0) + GONE_FOR

    def _note_end(self, made: CacheObject) -> None:
        if made.ended is None:
            self._ended.pop(made.id, None)  # it was made anew
        if made.expires_at is None or made.ended is not None:
            self._ends.pop((made.tenant, made.id), None)
        else:
            self._ends[made.tenant, made.id] = made.expires_at

    def _forget(self, found: CacheObject) -> None:
        self._ended[found.id] = self.clock()
        self._ends.pop((found.tenant, found.id), None)
        self._used.pop((found.tenant, found.id), None)

    @asynccontextmanager
    async def _alone(self, tenant: str, name: str | None) -> AsyncIterator[None]:
        if name is None:
            yield
            return
        lock = self._names.setdefault((tenant, name), asyncio.Lock())
        async with lock:
            yield

    async def _make_room(self, tenant: str) -> None:
        now = self.clock()
        found = await self.all(tenant)
        live = sum(each.ending(now) is None for each in found)
        if live + self._making[tenant] > self._most:
            raise ApiError(
                409,
                f"There are {live} cache objects already, the most that one tenant may have.",
                code="too_many_caches",
            )
        ended = [each for each in found if each.ending(now) is not None]
        for each in ended[: max(0, len(ended) - self._most)]:
            await self.remove(each)


def _lasts(made: CacheObject) -> bool:
    """Whether the store has the content for at least as long as the object."""
    if made.expires_at is None or made.content_until is None:
        return made.expires_at is None and made.content_until is None
    return made.expires_at <= made.content_until


def not_found(object_id: str, param: str) -> ApiError:
    return ApiError(404, f"There is no cache '{object_id[:64]}'.", param=param, code="cache_not_found")


def gone(object_id: str, ending: Ending, param: str) -> ApiError:
    why = "its time is over" if ending == "expired" else "it was flushed"
    return ApiError(410, f"The cache '{object_id[:64]}' is gone: {why}.", param=param, code="cache_gone")
