"""Signs of life of an engine process, through a pipe: what it does, and since when.

A thread of the engine writes a `Beat` four times a second whatever the engine's loop is doing, so a long step does not
look frozen; a stopped process beats no more; a dead one closes the pipe. The client's side judges in `Vitals`.
"""

from __future__ import annotations

import enum
import os
import struct
import threading
import time
from dataclasses import dataclass

INTERVAL = 0.25
"""Seconds between two beats."""

_BEAT = struct.Struct("<QBd")  # steps done, phase, seconds in this phase
_READ = _BEAT.size * 4096


class Phase(enum.IntEnum):
    STARTING = 0
    IDLE = 1
    RECEIVING = 2
    PLANNING = 3
    RUNNING = 4
    COMMITTING = 5
    SENDING = 6


class Progress:
    """Where an engine's loop is. Written by the loop, read by the heartbeat: single attributes, so no lock."""

    __slots__ = ("phase", "since", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.phase = Phase.STARTING
        self.since = time.monotonic()

    def enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            self.phase = phase
            self.since = time.monotonic()


@dataclass(frozen=True, slots=True)
class Beat:
    steps: int
    phase: Phase
    seconds: float


def start_heartbeat(fd: int, progress: Progress) -> threading.Thread:
    """Write beats to `fd` from a daemon thread until nobody reads them any more."""
    os.set_blocking(fd, False)
    os.set_inheritable(fd, False)  # a child of ours that outlives us must not keep the pipe open
    thread = threading.Thread(target=_beat, args=(fd, progress), name="heartbeat", daemon=True)
    thread.start()
    return thread


def _beat(fd: int, progress: Progress) -> None:
    while True:
        beat = _BEAT.pack(progress.steps, progress.phase, time.monotonic() - progress.since)
        try:
            os.write(fd, beat)
        except BlockingIOError:
            pass  # the reader sleeps; it has enough unread beats to wake up to
        except BrokenPipeError:
            return
        time.sleep(INTERVAL)


class BeatReader:
    """The reading end of the pipe, which it owns. Never blocks."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._partial = b""

    def fileno(self) -> int:
        return self._fd

    def read(self) -> Beat | None:
        """The newest unread beat, None if there is none. Raises EOFError once the writer is gone."""
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return None
        if not data:
            raise EOFError
        data = self._partial + data
        whole = len(data) - len(data) % _BEAT.size
        self._partial = data[whole:]
        if not whole:
            return None
        steps, phase, seconds = _BEAT.unpack_from(data, whole - _BEAT.size)
        return Beat(steps, Phase(phase), seconds)

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchdog:
    """When an engine counts as lost. Seconds."""

    start_timeout: float = 600.0
    """From spawn to ready. Beats are not judged before: importing and loading may hold the interpreter for long."""
    late_after: float = 2.0
    """Without a beat: not ready any more, nothing ended yet."""
    frozen_after: float = 3.5
    """Without a beat: killed."""
    stuck_after: float = 60.0
    """With work at hand and beats arriving, but no step done: killed."""
    stop_timeout: float = 2.0
    """For an engine asked to end; then it is killed."""


class Vitals:
    """Judges one engine by its beats. Times are the caller's monotonic clock.

    Only time that the caller itself was awake counts: if it was stopped together with the engine (a suspended
    terminal job, a blocked event loop), the engine gets its chance to beat again first.
    """

    def __init__(self, watchdog: Watchdog, now: float) -> None:
        self._watchdog = watchdog
        self._started = now
        self._ready = False
        self._checked = now
        self._last_beat = now
        self._beat = Beat(0, Phase.STARTING, 0.0)
        self._progressed = now
        self.stuck = False
        """Lost while it still gave signs of life: its own work holds it."""

    def ready(self, now: float) -> None:
        self._ready = True
        self._last_beat = self._progressed = now

    def beat(self, beat: Beat, now: float) -> None:
        self._last_beat = now
        if beat.steps != self._beat.steps or beat.phase is Phase.IDLE:
            self._progressed = now
        self._beat = beat

    def age(self, now: float) -> float:
        """Seconds since the last beat."""
        return now - self._last_beat

    def late(self, now: float) -> bool:
        return self._ready and self.age(now) > self._watchdog.late_after

    def lost(self, now: float) -> str | None:
        """Why this engine must be killed, None while it need not. To be asked every `INTERVAL`."""
        slept = now - self._checked - INTERVAL
        self._checked = now
        if slept > self._watchdog.late_after / 2:
            self._last_beat = min(now, self._last_beat + slept)
            self._progressed = min(now, self._progressed + slept)
        if not self._ready:
            waited = now - self._started
            return f"not ready after {waited:.0f} s" if waited > self._watchdog.start_timeout else None
        if self.age(now) > self._watchdog.frozen_after:
            return f"no heartbeat for {self.age(now):.1f} s"
        idle_for = now - self._progressed
        self.stuck = idle_for > self._watchdog.stuck_after
        if not self.stuck:
            return None
        beat = self._beat
        return f"no step done for {idle_for:.0f} s ({beat.phase.name.lower()} for {beat.seconds:.0f} s)"
