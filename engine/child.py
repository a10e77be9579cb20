"""One engine process from spawn to grave, seen from its parent.

The child gets all it needs through its standard input, whose other end the parent keeps open: when that closes, by
whatever death of the parent, the child ends. Its standard output and error are the parent's standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .channel import Channel
from .config import EngineConfig
from .heartbeat import Beat, BeatReader
from .private_directory import PrivateDirectory
from .request import ToClient, ToEngine

LENGTH = struct.Struct("<I")  # before the spec on standard input
FRAMES_PER_TURN = 32
"""Handled before the event loop gets its turn again."""
SOCKET_NAME = "engine.sock"
_STDERR = 2
_PACKAGES = Path(__file__).resolve().parent.parent


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a child reads from its standard input: a length (LENGTH), then this in msgpack."""

    config: EngineConfig
    socket: str
    heartbeat_fd: int
    parent_pid: int


class Child:
    """Owned by one event loop. Messages and beats are handed to the callbacks given to `spawn` as they arrive."""

    def __init__(
        self, parts: _Parts, on_message: Callable[[ToClient], None], on_beat: Callable[[Beat], None]
    ) -> None:
        self._parts = parts
        self._channel = parts.channel
        self._beats = parts.beats
        self._on_message = on_message
        self._on_beat = on_beat
        self._buried = False
        self._loop = asyncio.get_running_loop()
        self.pid = parts.process.pid
        self.died: asyncio.Future[None] = self._loop.create_future()
        """Done as soon as the heartbeat's pipe closes, which the kernel does however a process ends."""
        self._loop.add_reader(self._channel.fileno(), self._drain)
        self._loop.add_reader(self._beats.fileno(), self.read_beats)

    @classmethod
    async def spawn(
        cls, config: EngineConfig, *, on_message: Callable[[ToClient], None], on_beat: Callable[[Beat], None]
    ) -> Child:
        """Raises StartError, ChannelError or OSError, and then leaves nothing behind. Must not be cancelled."""
        return cls(await asyncio.to_thread(_start, config), on_message, on_beat)

    def send(self, message: ToEngine) -> bool:
        """False if the engine is too far behind in reading. Raises ChannelError for an overlong frame."""
        sent = self._channel.send(message)
        # Sending may swallow the one wake-up that an arriving frame causes: look for it afterwards.
        self._loop.call_soon(self._drain)
        return sent

    def read_beats(self) -> None:
        try:
            beat = self._beats.read()
        except EOFError:
            self._loop.remove_reader(self._beats.fileno())
            if not self.died.done():
                self.died.set_result(None)
            return
        if beat is not None:
            self._on_beat(beat)

    async def last_words(self) -> None:
        """Take in what a dead engine had sent: who was in its batch, whose answer was complete.

        The socket's own thread may still be reading that.
        """
        await asyncio.sleep(0.01)
        self._drain()

    async def bury(self) -> int:
        """Kill what still lives and free everything. The exit code, or minus the number of the signal that killed it."""
        self._buried = True
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_reader(self._beats.fileno())
        return await asyncio.to_thread(self._parts.close)

    def _drain(self) -> None:
        for _ in range(FRAMES_PER_TURN):
            message = None if self._buried else self._channel.receive()
            if message is None:
                return
            self._on_message(message)
        self._loop.call_soon(self._drain)


@dataclass(frozen=True, slots=True)
class _Parts:
    directory: PrivateDirectory
    channel: Channel[ToEngine, ToClient]
    process: subprocess.Popen[bytes]
    lifeline: int
    beats: BeatReader

    def close(self) -> int:
        self.process.kill()
        returncode = self.process.wait()
        os.close(self.lifeline)
        self.channel.close()
        self.beats.close()
        self.directory.close()
        return returncode


def _start(config: EngineConfig) -> _Parts:
    # Runs on the event loop's default executor. PR_SET_PDEATHSIG in the child is about the *thread* that started it, not
    # the process: those threads end with the event loop and not before.
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
        directory = PrivateDirectory()
        undo.callback(directory.close)
        channel = Channel.bind(directory.path / SOCKET_NAME)
        undo.callback(channel.close)
        beats_out, beats_in = os.pipe()
        undo.callback(os.close, beats_out)
        theirs.callback(os.close, beats_in)
        spec_out, lifeline = os.pipe()
        undo.callback(os.close, lifeline)
        theirs.callback(os.close, spec_out)
        spec = ChildSpec(
            config=_with_absolute_paths(config),
            socket=str(directory.path / SOCKET_NAME),
            heartbeat_fd=beats_in,
            parent_pid=os.getpid(),
        )
        encoded = msgspec.msgpack.encode(spec)
        os.write(lifeline, LENGTH.pack(len(encoded)) + encoded)  # fits a pipe, so there is no one to wait for
        process = subprocess.Popen(
            [sys.executable, "-m", "engine"],
            # `-m` looks in the working directory first: let it find this very package, and no stray file of a user's.
            cwd=_PACKAGES,
            stdin=spec_out,
            stdout=_STDERR,
            pass_fds=(beats_in,),
        )
        undo.pop_all()
    return _Parts(directory, channel, process, lifeline, BeatReader(beats_out))


def _with_absolute_paths(config: EngineConfig) -> EngineConfig:
    return msgspec.structs.replace(
        config,
        model_dir=_absolute(config.model_dir),
        native_cache=_absolute(config.native_cache),
        cache_dir=_absolute(config.cache_dir),
    )


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def describe_exit(returncode: int) -> str:
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"
