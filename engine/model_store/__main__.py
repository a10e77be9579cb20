"""The child process of a fetch: one Job from standard input, messages as JSON lines to standard output."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import IO

import msgspec

from ..errors import ModelError
from .fetch import fetch
from .store import ModelStore
from .worker import Done, Failed, Job, Message


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, so that what is half done is removed
    messages = _private_stdout()
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)

    def send(message: Message) -> None:
        messages.write(msgspec.json.encode(message) + b"\n")
        messages.flush()  # a parent that is gone ends us here, with the import undone

    try:
        fetch(ModelStore(Path(job.root)), job.ref, send, offline=job.offline)
    except ModelError as error:
        send(Failed(str(error)))
        return 1
    send(Done())
    return 0


def _private_stdout() -> IO[bytes]:
    """Standard output for our messages alone: what a library prints goes to standard error."""
    messages = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return messages


if __name__ == "__main__":
    sys.exit(main())
