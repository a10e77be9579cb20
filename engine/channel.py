"""Frames between a client and an engine: msgpack of known types over a ZeroMQ PAIR socket.

The client binds an `ipc://` socket (mode 0600) in a directory of its own (mode 0700), the engine connects. A PAIR has one
peer: who connects second is turned away. A frame is one of the tagged structs of `ToEngine` or `ToClient`; one that does
not decode is dropped, counted and logged once. Nothing here evaluates or unpickles what it reads.

Neither side ever waits for the other to read: `send` answers False once `MAX_FRAMES_IN_FLIGHT` frames are unread, and
the sender decides (the engine stops stepping, the client refuses a request).
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import zmq

from .errors import ChannelError, StartError
from .request import ToClient, ToEngine

log = logging.getLogger(__name__)

MAX_FRAME = 64 * 2**20
"""Bytes. The largest honest frame is the top-20 log-probabilities of a 128k prompt, about 36 MiB."""

MAX_FRAMES_IN_FLIGHT = 1024
"""Each socket's share: as many again may lie in the peer's socket."""

MAX_SOCKET_PATH = 107
"""Bytes in a Unix socket's address on Linux (unix(7): 108 with the closing zero)."""

# What decoding strange bytes can raise: msgspec's own errors, text that is not UTF-8, nesting without end.
_UNDECODABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)

Sent = TypeVar("Sent", ToEngine, ToClient)
Received = TypeVar("Received", ToEngine, ToClient)


class Channel(Generic[Sent, Received]):
    """One end. For one thread. Only `wait` and `wait_writable` wait."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Received], *, linger: float) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Received] = decoder
        self._linger = linger
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
        self._socket.set_hwm(MAX_FRAMES_IN_FLIGHT)
        self.dropped = 0
        """Frames received that were none of ours."""

    @staticmethod
    def bind(path: Path) -> Channel[ToEngine, ToClient]:
        """The client's end, at a path in a directory that only this user can enter.

        Raises StartError if the path will never do, else ChannelError.
        """
        if len(bytes(path)) > MAX_SOCKET_PATH:
            raise StartError(
                f"{path} is too long for a Unix socket ({MAX_SOCKET_PATH} bytes): set TMPDIR to a shorter path"
            )
        channel = Channel[ToEngine, ToClient](msgspec.msgpack.Decoder(ToClient), linger=0)
        try:
            channel._socket.bind(f"ipc://{path}")
        except zmq.ZMQError as error:
            channel.close()
            raise ChannelError(f"cannot listen on {path}: {error}") from error
        path.chmod(0o600)
        return channel

    @staticmethod
    def connect(path: Path) -> Channel[ToClient, ToEngine]:
        """The engine's end. What was sent just before `close` still has a second to leave."""
        channel = Channel[ToClient, ToEngine](msgspec.msgpack.Decoder(ToEngine), linger=1.0)
        channel._socket.connect(f"ipc://{path}")
        return channel

    def fileno(self) -> int:
        """Becomes readable when the socket's state changes, once for each change: read until `receive` gives None."""
        return self._socket.fileno()

    def send(self, message: Sent) -> bool:
        """Queue a frame; False if the peer is too far behind, or not there yet on the side that binds.

        Raises ChannelError if the frame would be too large.
        """
        frame = self._encoder.encode(message)
        if len(frame) > MAX_FRAME:
            raise ChannelError(f"a frame of {len(frame)} bytes is larger than {MAX_FRAME}")
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Received | None:
        """The next message, or None if there is none now."""
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            try:
                message: Received = self._decoder.decode(frame)
                return message
            except _UNDECODABLE as error:
                self._drop(frame, error)

    def wait(self, timeout: float | None, other: int | None = None) -> None:
        """Until something can be received, the file `other` is readable or `timeout` seconds (None: for ever) have passed."""
        self._poll(timeout, zmq.POLLIN, other)

    def wait_writable(self, timeout: float | None) -> None:
        """The same for sending."""
        self._poll(timeout, zmq.POLLOUT)

    def _poll(self, timeout: float | None, event: int, other: int | None = None) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, event)
        if other is not None:
            poller.register(other, zmq.POLLIN)
        poller.poll(None if timeout is None else max(0, math.ceil(timeout * 1000)))

    def close(self) -> None:
        self._context.destroy(linger=int(self._linger * 1000))

    def _drop(self, frame: bytes, error: Exception) -> None:
        self.dropped += 1
        if self.dropped == 1:
            log.warning(
                "dropped a frame of %d bytes that is none of ours (%s); further ones are only counted",
                len(frame),
                error,
            )
