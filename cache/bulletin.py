"""What the servers on one Redis tell each other: notes in a stream, which every server reads to the end, its own left out.

A note is a hint: the truth is in the store. Whoever has missed some, since it was away or since Redis has lost them, is told
to *reload*. Notes may be heard twice.

    hw:{@}:bulletin   the stream; the oldest go, and all of it after a day without a note
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.exceptions import RedisClusterException, RedisError

from .redis_address import RedisAddress
from .redis_client import RedisClient
from .redis_link import RedisLink, Script
from .store import StoreUnavailable

KEY = "hw:{@}:bulletin"
MOST_NOTES = 10_000
LASTS = 86_400_000
"""Milliseconds after the last note."""
BLOCK = 1.0
"""Seconds that Redis lets the reader wait for a note before it says that there is none."""
PATIENCE = 1.0
"""Seconds that this may be late, or a connection take."""
RETRY = 0.5
MOST_UNTOLD = 1000
"""Notes that wait to be posted by `tell`."""
BEGINNING = "0-0"

_POST = Script(
    """
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'none' and kind ~= 'stream' then redis.call('DEL', KEYS[1]) end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'from', ARGV[3], 'topic', ARGV[4], 'body', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
)

Hear = Callable[[bytes], None]


class Bulletin:
    """`follow` before `run`. Neither what hears nor what reloads may raise or wait, whatever is in a note."""

    def __init__(self, link: RedisLink) -> None:
        self.up = False
        """Whether notes arrive."""
        self._link = link
        self._me = secrets.token_hex(8).encode()
        self._hear: dict[bytes, Hear] = {}
        self._reload: list[Callable[[], None]] = []
        self._last = ""
        self._untold: deque[tuple[str, bytes]] = deque(maxlen=MOST_UNTOLD)
        self._news = asyncio.Event()

    def follow(self, topic: str, hear: Hear) -> None:
        """`hear` is given the body of each note on `topic`, from other servers."""
        self._hear[topic.encode()] = hear

    def when_missed(self, reload: Callable[[], None]) -> None:
        """Called when notes may have been missed, and once at the beginning, before the first."""
        self._reload.append(reload)

    async def post(self, topic: str, body: bytes) -> None:
        """Raises StoreUnavailable if it is not known to have been posted."""
        await self._link.run_script(_POST, (KEY,), MOST_NOTES, LASTS, self._me, topic, body, about=KEY)

    def tell(self, topic: str, body: bytes) -> None:
        """Post it when that can be done. Of too many that wait the oldest are left out."""
        self._untold.append((topic, body))
        self._news.set()

    async def run(self) -> None:
        """Until cancelled: read, reconnect, read on from where it was; and post what is to be told."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell_all())
            group.create_task(self._read_all())

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _tell_all(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._untold:
                topic, body = self._untold[0]
                try:
                    await self.post(topic, body)
                except StoreUnavailable:
                    await asyncio.sleep(RETRY)
                    continue
                with contextlib.suppress(IndexError):
                    self._untold.popleft()

    async def _read_all(self) -> None:
        while True:
            reader = _Reader(self._link.address)
            try:
                await self._begin(reader)
                while True:
                    await self._read(reader)
            except (RedisError, RedisClusterException, OSError):
                self.up = False  # the link tells the operator
                await asyncio.sleep(RETRY)
            finally:
                self.up = False
                await reader.close()

    async def _begin(self, reader: _Reader) -> None:
        newest = await reader.newest()
        if not self._last or _is_before(newest, self._last):
            self._last = newest
        self.up = True
        self._missed()

    async def _read(self, reader: _Reader) -> None:
        notes = await reader.after(self._last)
        for note, fields in notes:
            self._last = note.decode()
            hear = self._hear.get(fields.get(b"topic", b""))
            if hear is not None and fields.get(b"from") != self._me:
                hear(fields.get(b"body", b""))
        if not notes and _is_before(await reader.newest(), self._last):
            self._last = BEGINNING
            self._missed()

    def _missed(self) -> None:
        for reload in self._reload:
            reload()


class _Reader:
    """A connection of its own, which waits for notes. No command is ever cancelled: who is asked to stop closes it."""

    def __init__(self, address: RedisAddress) -> None:
        self._client = RedisClient(address, timeout=BLOCK + PATIENCE, connections=1)
        self._asked: asyncio.Task[Any] | None = None

    async def newest(self) -> str:
        entries = await self._ask("XREVRANGE", KEY, "+", "-", "COUNT", 1)
        return entries[0][0].decode() if entries else BEGINNING

    async def after(self, last: str) -> Sequence[tuple[bytes, Mapping[bytes, bytes]]]:
        """Notes as soon as there are any, none after a while."""
        milliseconds = int(BLOCK * 1000)
        reply = await self._ask("XREAD", "COUNT", 100, "BLOCK", milliseconds, "STREAMS", KEY, last)
        return reply[KEY.encode()] if reply else ()

    async def close(self) -> None:
        with contextlib.suppress(RedisError, RedisClusterException, OSError):
            await self._client.close()
        if self._asked is not None:
            await asyncio.wait((self._asked,))
            self._asked.exception()  # there is one: its connection was closed

    async def _ask(self, *command: str | int) -> Any:
        self._asked = asyncio.create_task(self._client.execute(*command))
        await asyncio.wait((self._asked,))
        return self._asked.result()


def _is_before(one: str, other: str) -> bool:
    return _place(one) < _place(other)


def _place(note: str) -> tuple[int, int]:
    milliseconds, _, number = note.partition("-")
    return int(milliseconds), int(number)
