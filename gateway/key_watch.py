"""The key file as a running server sees it: new and revoked keys count within two seconds, without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from .file_stamp import Stamp, stamp
from .key_store import KeyStore, KeyStoreError, StoredKey
from .log import faults

INTERVAL = 1.0
"""Seconds between two looks at the file; with the reading a change counts within two."""


class KeyWatch:
    """Looks at the file from a thread, never from the event loop: a file system may take its time.

    A file that is gone holds no keys. One that cannot be read leaves the keys as they were, and says so in the log: whoever
    writes it by this program replaces it as a whole, so nobody is locked out by a half-written one. It is tried again at every
    look, because what was wrong with it need not have been its content.
    """

    def __init__(self, store: KeyStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._keys: dict[bytes, StoredKey] = {}
        self._seen: Stamp | None = None

    def find(self, digest: bytes) -> StoredKey | None:
        """The key of this digest, if it may be used now."""
        key = self._keys.get(digest)
        return key if key is not None and key.status(self._clock()) == "active" else None

    @property
    def active(self) -> int:
        now = self._clock()
        return sum(key.status(now) == "active" for key in self._keys.values())

    async def context(self, _: web.Application) -> AsyncIterator[None]:
        """Reads the file, then watches it. Raises KeyStoreError if it cannot be read at start."""
        await asyncio.to_thread(self._load)
        watcher = asyncio.create_task(self._watch(), name="key watch")
        try:
            yield
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    async def _watch(self) -> None:
        complaint = ""
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await asyncio.to_thread(self._look)
                complaint = ""
            except KeyStoreError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    faults.error("%s: the keys stay as they were", error)

    def _look(self) -> None:
        if stamp(self._store.path) != self._seen:
            self._load()

    def _load(self) -> None:
        seen = stamp(self._store.path)
        self._keys = {bytes.fromhex(key.digest): key for key in self._store.read()}
        self._seen = seen
