"""Keeps an engine process going: starts it, watches it, buries it, starts it again or gives up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from .child import Child, describe_exit
from .client import EngineHealth, EngineStatus
from .config import STOP_SECONDS, EngineConfig
from .errors import ChannelError, EngineUnavailable, StartError
from .heartbeat import INTERVAL, Beat, Vitals, Watchdog
from .request import EngineInfo, Shutdown, StartFailed, ToClient, ToEngine
from .restarts import RestartPolicy, Restarts

log = logging.getLogger(__name__)

DIED = "the engine process died"
SOONEST_RETRY = 1.0
LATEST_RETRY = 60.0


class Supervisor:
    """One task of one event loop; it alone starts and ends children.

    `on_message` gets what an engine says, its first and last words excepted. `on_down` is called as soon as an engine
    is lost or told to end, with what its clients should hear. `on_blame` follows if what the engine was computing may
    have been what ended it.
    """

    def __init__(
        self,
        config: EngineConfig,
        watchdog: Watchdog,
        restarts: RestartPolicy,
        *,
        on_message: Callable[[ToClient], None],
        on_down: Callable[[str], None],
        on_blame: Callable[[], None],
    ) -> None:
        self._config = config
        self._watchdog = watchdog
        self._restarts = Restarts(restarts)
        self._on_message = on_message
        self._on_down = on_down
        self._on_blame = on_blame
        self._status: EngineStatus = "starting"
        self._detail = "not started"
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._life: _Life | None = None
        self._retry_at = 0.0
        self.info: EngineInfo | None = None
        """Of the engine that was ready last."""

    def start(self) -> None:
        """Begin; the engine is not ready yet."""
        self._task = asyncio.create_task(self._supervise(), name="engine supervisor")

    async def ready(self) -> EngineInfo:
        """Wait until requests are taken. Raises StartError if that will not happen any more."""
        while self._status in ("starting", "restarting", "unresponsive"):
            await self._changed.wait()
        if self._status != "ready" or self.info is None:
            raise StartError(self._detail)
        return self.info

    async def stop(self) -> None:
        """End the engine. Leaves no process, socket or directory. Idempotent."""
        self._become("stopped", "it was told to")
        self._stopping.set()
        if self._task is not None:
            await self._task

    def reconfigure(self, config: EngineConfig) -> None:
        """What the next engine is started with."""
        self._config = config

    @property
    def health(self) -> EngineHealth:
        life = self._life
        return EngineHealth(
            status=self._status,
            detail=self._detail,
            heartbeat_age=0.0 if life is None else life.vitals.age(time.monotonic()),
            pid=None if life is None else life.child.pid,
            restarts=self._restarts.total,
        )

    def check_ready(self) -> EngineInfo:
        """What requests are checked against. Raises EngineUnavailable unless they are taken now."""
        if self._status == "ready" and self.info is not None:
            return self.info
        soonest = LATEST_RETRY if self._status in ("failed", "stopped") else SOONEST_RETRY
        raise EngineUnavailable(
            f"the engine is {self._status}: {self._detail}",
            retry_after=max(soonest, self._retry_at - time.monotonic()),
        )

    def send(self, message: ToEngine) -> bool:
        """False if the engine is gone or too far behind in reading. Raises ChannelError for an overlong frame."""
        return self._life is not None and self._life.child.send(message)

    # ---- what the child says -----------------------------------------------------------------------------------------

    def _receive(self, message: ToClient) -> None:
        match message:
            case EngineInfo():
                self._begin_to_serve(message)
            case StartFailed():
                if self._life is not None:
                    self._life.start_failed = message
            case _:
                self._on_message(message)

    def _begin_to_serve(self, info: EngineInfo) -> None:
        if self._life is not None and not self._life.child.died.done():
            self.info = info
            self._life.vitals.ready(time.monotonic())
            self._become("ready", f"ready after {info.load_seconds:.2f} s of loading")

    def _feel(self, beat: Beat) -> None:
        if self._life is not None:
            self._life.vitals.beat(beat, time.monotonic())

    # ---- life and death ----------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        try:
            while not self._stopping.is_set():
                death = await self._live_once()
                if death is None:
                    return
                delay = self._delay_after(death)
                if delay is None:
                    self._become("failed", self._why_given_up(death))
                    return
                self._retry_at = time.monotonic() + delay + SOONEST_RETRY
                self._become("restarting", death.reason)
                await self._pause(delay)
        except Exception:
            log.exception("the supervisor of the engine ended")
            self._become("failed", "the supervisor of the engine ended by a bug; see the log")

    def _delay_after(self, death: _Death) -> float | None:
        """Seconds until the next start; None for no more. What has served once may do so again as it is configured."""
        if death.at_start and self.info is not None:
            return self._restarts.refused()
        return None if death.permanent else self._restarts.crashed(time.monotonic())

    def _why_given_up(self, death: _Death) -> str:
        if death.permanent:
            return death.reason
        return f"given up after {self._restarts.total} crashes; the last: {death.reason}"

    async def _live_once(self) -> _Death | None:
        """One child from spawn to burial, and why it ended; None if we are stopping."""
        vitals = Vitals(self._watchdog, time.monotonic())
        try:
            child = await Child.spawn(self._config, on_message=self._receive, on_beat=self._feel)
        except (OSError, ChannelError, StartError) as error:
            return _Death(
                f"cannot start the engine process: {error}",
                at_start=True,
                permanent=isinstance(error, StartError),
            )
        log.info("engine process %d started", child.pid)
        self._life = life = _Life(child, vitals)
        try:
            lost = await self._watch(life)
            if lost is None:
                self._on_down("the engine is shutting down")
                await self._ask_to_end(child)
                return None
            # Taken up, and logged, when more is known; but from here on nobody must count on this engine.
            self._status, self._detail = "restarting", lost
            await child.last_words()
            self._on_down(DIED)
        finally:
            self._life = None
            returncode = await child.bury()
        return self._inquest(life, lost, returncode)

    async def _watch(self, life: _Life) -> str | None:
        """Until the child dies or must be killed, and why; None when we are to stop."""
        child, vitals = life.child, life.vitals
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while True:
                await asyncio.wait(
                    (child.died, stopping), timeout=INTERVAL, return_when=asyncio.FIRST_COMPLETED
                )
                if stopping.done():
                    return None
                if life.start_failed is not None:
                    return life.start_failed.message
                if child.died.done():
                    return DIED
                child.read_beats()  # if our own loop was late, they are there unread
                now = time.monotonic()
                lost = vitals.lost(now)
                if lost is not None:
                    return lost
                self._judge_lateness(vitals, now)
        finally:
            stopping.cancel()

    def _judge_lateness(self, vitals: Vitals, now: float) -> None:
        late = vitals.late(now)
        if late and self._status == "ready":
            self._become("unresponsive", f"no heartbeat for {vitals.age(now):.1f} s")
        elif not late and self._status == "unresponsive":
            self._become("ready", "the heartbeat is back")

    def _inquest(self, life: _Life, lost: str, returncode: int) -> _Death:
        if life.start_failed is not None:
            return _Death(lost, at_start=True, permanent=life.start_failed.permanent)
        if lost is not DIED:
            if life.vitals.stuck:
                self._on_blame()
            return _Death(lost)
        if (
            returncode != -signal.SIGKILL
        ):  # which nothing inside a process sends: it says nothing about the requests
            self._on_blame()
        return _Death(f"{DIED} ({describe_exit(returncode)})")

    async def _ask_to_end(self, child: Child) -> None:
        if child.send(Shutdown()):
            writing = STOP_SECONDS if self._config.cache_dir is not None else 0.0
            await asyncio.wait((child.died,), timeout=self._watchdog.stop_timeout + writing)

    async def _pause(self, delay: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay)

    def _become(self, status: EngineStatus, detail: str) -> None:
        if self._status == "stopped":
            return  # for good
        level = logging.INFO if status in ("ready", "stopped") else logging.ERROR
        log.log(level, "engine %s: %s", status, detail)
        self._status, self._detail = status, detail
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(slots=True)
class _Life:
    child: Child
    vitals: Vitals
    start_failed: StartFailed | None = None


@dataclass(frozen=True, slots=True)
class _Death:
    """Of an engine process. `at_start`: it was refused, and nothing crashed. `permanent`: another start would end the same
    way, as far as the engine can tell."""

    reason: str
    at_start: bool = False
    permanent: bool = False
