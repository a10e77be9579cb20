"""Fetching happens in a child process; this is the parent's end: start it, pass its progress on, raise its error.

The child (`python -m engine.model_store`) reads one Job from its standard input and writes one JSON line for each
message to its standard output.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Literal

import msgspec

from ..errors import ModelError

Stage = Literal["waiting", "downloading", "hashing", "importing"]


class Progress(msgspec.Struct, frozen=True, tag="progress", forbid_unknown_fields=True):
    """`done` of `total` bytes of a stage; a total of 0 is not known (yet). `waiting`: another process fetches the model."""

    stage: Stage
    done: int = 0
    total: int = 0


class Failed(msgspec.Struct, frozen=True, tag="failed", forbid_unknown_fields=True):
    message: str


class Done(msgspec.Struct, frozen=True, tag="done", forbid_unknown_fields=True):
    pass


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    root: str
    ref: str | None
    offline: bool


Message = Progress | Failed | Done
ProgressCallback = Callable[[Progress], None]


def run_fetch(root: Path, ref: str | None, progress: ProgressCallback, *, offline: bool) -> None:
    """Fetch `ref` into the store at `root`. Raises ModelError; the child has ended either way."""
    # Files, not pipes, where we do not read or write step by step: a full pipe that nobody reads would stop both.
    with tempfile.TemporaryFile() as job, tempfile.TemporaryFile() as complaints:
        job.write(msgspec.json.encode(Job(str(root), ref, offline)))
        job.seek(0)
        command = [sys.executable, "-m", "engine.model_store"]
        with subprocess.Popen(command, stdin=job, stdout=subprocess.PIPE, stderr=complaints) as child:
            try:
                finished = _follow(child.stdout or (), progress)
            finally:
                child.terminate()  # nothing happens to one that has ended
                child.wait()  # it removes what is half done
        if not finished:
            raise ModelError(f"fetching the model stopped unexpectedly: {_last_line(complaints)}")


def _follow(lines: Iterable[bytes], progress: ProgressCallback) -> bool:
    """Whether the child said that it is done. Raises ModelError if it said that it failed."""
    for line in lines:
        message = msgspec.json.decode(line, type=Message)
        if isinstance(message, Failed):
            raise ModelError(message.message)
        if isinstance(message, Done):
            return True
        progress(message)
    return False


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it was killed"
