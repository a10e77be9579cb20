"""One Redis as this process reaches it: nobody waits for it long, and while it does not answer nobody waits at all.

Every command runs in a task of its own that nobody cancels: the reply to a command that was given up would be the first
thing that the next one reads on its connection. Who asks waits at most `TIMEOUT`, and does not ask twice. After three
failures in a row, or when it turns out to be a replica, the *breaker* opens: commands fail at once, and a probe looks once a
second whether to close it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterError,
    MaxConnectionsError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
)
from redis.exceptions import (
    ConnectionError as LostConnection,
)
from redis.exceptions import (
    TimeoutError as NoReply,
)

from .redis_address import RedisAddress
from .redis_client import RedisClient
from .store import StoreError, StoreUnavailable

T = TypeVar("T")

TIMEOUT = 0.2
"""Seconds that somebody waits for a reply."""
CONNECTIONS = 16
"""Commands that are under way at once."""
PLACE_TIMEOUT = 0.1
"""Seconds that a command waits to be one of them."""
FAILURES = 3
"""In a row, until the breaker opens."""
PROBE_INTERVAL = 1.0
TELL_INTERVAL = 60.0
"""Seconds in which a kind of trouble is told of once."""
PROBE = "hw:{@}:probe"

Fault = Literal[
    "timeout",
    "connection",
    "loading",
    "refused",
    "readonly",
    "limit",
    "cluster",
    "busy",
    "full",
    "denied",
    "damaged",
]
"""What is counted: no reply in time · no connection, or lost · the server reads its data · it does not let us in · a replica
was asked to write · it has too many clients · it is a Cluster without all slots · more than `CONNECTIONS` here · out of
memory · it does not do that now · what is there is not ours."""
_ANSWERS: frozenset[Fault] = frozenset({"busy", "full", "denied", "damaged"})
"""With these the server answers all the same: other commands may well succeed."""

Argument = bytes | str | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """Lua that runs in one piece. It may touch the keys that it is given and no others."""

    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


@dataclass(slots=True)
class LinkCounts:
    faults: Counter[Fault] = field(default_factory=Counter)
    opened: int = 0
    """Times the breaker opened."""


def _nobody(_: Any) -> None:
    """For those who do not want to know."""


class RedisLink:
    """`tell` is given a line for the operator now and then, `took` the seconds that each reply took."""

    def __init__(
        self,
        address: RedisAddress,
        *,
        timeout: float = TIMEOUT,
        tell: Callable[[str], None] = _nobody,
        took: Callable[[float], None] = _nobody,
    ) -> None:
        self.address = address
        self.counts = LinkCounts()
        self._timeout = timeout
        self._tell = tell
        self._took = took
        self._redis = RedisClient(address, timeout=timeout, connections=CONNECTIONS)
        self._places = asyncio.Semaphore(CONNECTIONS)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failures = 0
        self._probe: asyncio.Task[None] | None = None
        self._told: dict[Fault, float] = {}

    @property
    def is_open(self) -> bool:
        """Whether the breaker is: commands fail at once."""
        return self._probe is not None

    async def begin(self) -> None:
        """Find out whether it is there. If not, nobody has to wait for that."""
        error = await self._try_writing()
        if error is not None:
            self._open(f"{self.address}: {error}")

    async def run(self, *command: Argument, about: str = "") -> Any:
        """The reply to a command. `about` is what it is about, for the operator.

        Raises StoreUnavailable, also when it is not known whether it was carried out, or StoreError if the server will not do
        it now or later.
        """
        return await self._ask(lambda: self._redis.execute(*command), about)

    async def run_script(
        self, script: Script, keys: Sequence[str], *arguments: Argument, about: str = ""
    ) -> Any:
        """The same for a script. All keys are of one slot."""

        async def ask() -> Any:
            given = (len(keys), *keys, *arguments)
            try:
                return await self._redis.execute("EVALSHA", script.sha, *given)
            except NoScriptError:
                return await self._redis.execute("EVAL", script.source, *given)

        return await self._ask(ask, about)

    def damaged(self, about: str, why: str) -> StoreError:
        """Counts it; the error to raise."""
        return self._fault("damaged", why, about)

    async def close(self) -> None:
        """After everything that was begun."""
        if self._probe is not None:
            self._probe.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._probe
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._redis.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _ask(self, work: Callable[[], Awaitable[T]], about: str) -> T:
        if self.is_open:
            raise StoreUnavailable(f"{self.address} does not answer", retry_after=PROBE_INTERVAL)
        began = time.monotonic()
        task = asyncio.create_task(self._carry_out(work, about, began + self._timeout))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        await asyncio.wait((task,), timeout=self._timeout)
        if not task.done():
            raise self._fault("timeout", f"no reply within {self._timeout:g} s", about)
        return task.result()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have left

    async def _carry_out(self, work: Callable[[], Awaitable[T]], about: str, until: float) -> T:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PLACE_TIMEOUT):
                await self._places.acquire()
        except TimeoutError:
            raise self._fault("busy", f"{CONNECTIONS} commands are under way", about) from None
        try:
            reply = await work()
        except Exception as error:  # noqa: BLE001 - a server that talks nonsense must not look like a bug of ours
            fault = _fault_of(error)
            if fault == "readonly":
                await self._redis.look_again()
            if time.monotonic() > until:  # counted by who waited
                raise StoreUnavailable(str(error)) from None
            raise self._fault(fault, str(error) or type(error).__name__, about) from None
        finally:
            self._places.release()
        if time.monotonic() <= until:
            self._failures = 0
            self._took(time.monotonic() - began)
        return reply

    def _fault(self, fault: Fault, why: str, about: str) -> StoreError:
        """Count it, and perhaps tell; the error to raise."""
        self.counts.faults[fault] += 1
        message = f"{self.address}: {why}" + (f" ({about})" if about else "")
        if fault in _ANSWERS:
            self._tell_once(fault, message)
            return StoreError(message) if fault == "damaged" else StoreUnavailable(message)
        # a replica answers, but what it says is old: nobody is to ask it
        self._failures = FAILURES if fault == "readonly" else self._failures + 1
        if self._failures >= FAILURES and not self.is_open:
            self._open(message)
        return StoreUnavailable(message, retry_after=PROBE_INTERVAL)

    def _tell_once(self, fault: Fault, message: str) -> None:
        now = time.monotonic()
        if now - self._told.get(fault, -TELL_INTERVAL) >= TELL_INTERVAL:
            self._told[fault] = now
            self._tell(message)

    def _open(self, message: str) -> None:
        self.counts.opened += 1
        self._tell(f"{message}: not asked again before it answers a probe (every {PROBE_INTERVAL:g} s)")
        self._probe = asyncio.create_task(self._watch(), name="redis probe")

    async def _watch(self) -> None:
        """Until it can be written to: then the breaker is closed."""
        began = time.monotonic()
        while True:
            await asyncio.sleep(PROBE_INTERVAL)
            if await self._try_writing() is None:
                break
        self._failures, self._probe = 0, None
        self._tell(f"{self.address} answers again after {time.monotonic() - began:.1f} s")

    async def _try_writing(self) -> BaseException | None:
        """Why it cannot be written to; not for want of memory, with which it can be read at least."""
        task = asyncio.create_task(self._redis.execute("SET", PROBE, 1, "PX", 1000))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        await asyncio.wait((task,))
        error = task.exception()
        if error is None or (fault := _fault_of(error)) in _ANSWERS:
            return None
        self.counts.faults[fault] += 1
        if fault == "readonly":
            await self._redis.look_again()
        return error


_FAULTS: tuple[tuple[type[BaseException], Fault], ...] = (
    (BusyLoadingError, "loading"),
    (AuthenticationError, "refused"),
    (NoPermissionError, "refused"),
    (ReadOnlyError, "readonly"),
    (OutOfMemoryError, "full"),
    (MaxConnectionsError, "limit"),
    (ClusterError, "cluster"),
    (RedisClusterException, "cluster"),
    (NoReply, "timeout"),
    (LostConnection, "connection"),
)
"""The first that fits."""


def _fault_of(error: BaseException) -> Fault:
    if "max number of clients" in str(error):
        return "limit"
    for kind, fault in _FAULTS:
        if isinstance(error, kind):
            return fault
    if isinstance(error, ResponseError):
        return "damaged" if str(error).startswith("WRONGTYPE") else "denied"
    return "connection"
