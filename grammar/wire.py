"""What crosses between a compiler and its worker processes: msgpack frames of known types over a Unix socket.

A frame is its length (LENGTH) and one tagged struct. Nothing here evaluates or unpickles what it reads; both ends are
ours and of the same version, so whatever does not decode is a bug and ends the worker.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Generic, Literal, TypeVar

import msgspec

from .spec import BackendName, Grammar
from .vocabulary import Vocabulary

LENGTH = struct.Struct("<I")

RefusalKind = Literal["bad_grammar", "bad_schema", "too_complex", "broken"]
"""`broken`: a bug of ours or of an engine."""


# ---- compiler to template --------------------------------------------------------------------------------------------


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """`backends` is the module that makes them (see `shelf`)."""

    vocabulary: Vocabulary
    parent_pid: int
    backends: str


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Load these backends, if they are not, so that workers have them from birth."""

    names: tuple[BackendName, ...]


class Hire(msgspec.Struct, frozen=True, tag="hire"):
    """Fork a worker that serves the socket sent along. It may take `memory` bytes more than it is born with."""

    memory: int


class Bury(msgspec.Struct, frozen=True, tag="bury"):
    """Wait for a worker that is dead or dying. Until then its process id is nobody else's."""

    pid: int


ToTemplate = Begin | Load | Hire | Bury

# ---- template to compiler --------------------------------------------------------------------------------------------


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """To Begin and Load: what workers are born with from here on, and why it is not all that was asked for."""

    names: tuple[BackendName, ...]
    failure: str | None = None


class Hired(msgspec.Struct, frozen=True, tag="hired"):
    pid: int


class Buried(msgspec.Struct, frozen=True, tag="buried"):
    """`returncode` as subprocess has it: minus the number of the signal that ended it."""

    returncode: int


FromTemplate = Loaded | Hired | Buried

# ---- compiler to worker and back -------------------------------------------------------------------------------------


class Try(msgspec.Struct, frozen=True, tag="try"):
    """Compile a grammar and follow it a few steps. `seconds` of CPU are the most it may ever take, whoever still waits;
    no mask may take `mask_seconds`."""

    grammar: Grammar
    seconds: float
    mask_seconds: float


class Passed(msgspec.Struct, frozen=True, tag="passed"):
    """`exported` is what the backend's `load` wants; compiling took `seconds`. `spent`: this worker has grown too large,
    and ends."""

    backend: BackendName
    exported: bytes
    seconds: float
    spent: bool = False


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    kind: RefusalKind
    message: str
    path: str = ""
    keyword: str | None = None
    spent: bool = False


class Missing(msgspec.Struct, frozen=True, tag="missing"):
    """The grammar needs a backend that this worker was born without."""

    name: BackendName


FromWorker = Passed | Refused | Missing

Sent = TypeVar("Sent", ToTemplate, FromTemplate, Try, FromWorker)
Received = TypeVar("Received", ToTemplate, FromTemplate, Try, FromWorker)


class Wire(Generic[Sent, Received]):
    """One end. For one thread. Both `send` and `receive` wait; EOFError and OSError mean that the other end is gone."""

    def __init__(self, end: socket.socket, decoder: msgspec.msgpack.Decoder[Received]) -> None:
        self._socket = end
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Received] = decoder

    def send(
        self, message: Sent, seconds: float | None = None, *, attach: socket.socket | None = None
    ) -> None:
        """`attach` goes along: the receiver has an end of its own then. Raises TimeoutError if the other end does not
        read for `seconds`; the frame is then in pieces."""
        body = self._encoder.encode(message)
        head = LENGTH.pack(len(body))
        self._socket.settimeout(seconds)
        if attach is None:
            self._socket.sendall(head)
        else:
            # Four bytes always fit the buffer of a socket on which nothing else is under way.
            socket.send_fds(self._socket, [head], [attach.fileno()])
        self._socket.sendall(body)

    def receive(self, seconds: float | None = None) -> Received:
        """The next message. Raises TimeoutError after `seconds`; the rest of a frame that has begun is then lost."""
        return self.receive_attached(seconds)[0]

    def receive_attached(self, seconds: float | None = None) -> tuple[Received, socket.socket | None]:
        """The same with what was sent along."""
        deadline = None if seconds is None else time.monotonic() + seconds
        attached: list[socket.socket] = []
        (length,) = LENGTH.unpack(self._read(LENGTH.size, deadline, attached))
        message = self._decoder.decode(self._read(length, deadline, attached))
        return message, attached[0] if attached else None

    def is_open(self) -> bool:
        """Whether the other end is still there, which has nothing to say unasked."""
        self._socket.settimeout(0)
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        self._socket.close()

    def _read(self, count: int, deadline: float | None, attached: list[socket.socket]) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._socket.settimeout(None if deadline is None else max(deadline - time.monotonic(), 1e-6))
            chunk, descriptors, _, _ = socket.recv_fds(self._socket, min(count - len(data), 1 << 20), 1)
            if not chunk:
                raise EOFError
            attached += [socket.socket(fileno=descriptor) for descriptor in descriptors]
            data += chunk
        return bytes(data)
