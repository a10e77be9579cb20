"""The C source to a shared library, by the system's compiler, once for each source, set of flags and kind of CPU."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.c")
NATIVE_FLAGS = ("-march=native",)

_FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-pthread", "-shared", "-fPIC")
_COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT = 120.0  # seconds


class BuildError(Exception):
    """The library cannot be made here; the message is one line. Whoever asked for it goes on without."""


class NoPlace(BuildError):
    """The directory cannot be written to: another may do."""


def build(directory: Path, *, machine_flags: tuple[str, ...] = NATIVE_FLAGS) -> Path:
    """The path of the library in `directory`, compiled if it is not there yet. Appears whole or not at all."""
    flags = (*_FLAGS, *machine_flags)
    target = directory / f"{_digest(flags)}.so"
    try:
        if target.is_file():
            return target
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as scratch:
            made = Path(scratch) / target.name
            _compile(flags, made)
            made.replace(target)
    except OSError as error:
        raise NoPlace(f"{directory}: {error.strerror}") from error
    return target


def _digest(flags: tuple[str, ...]) -> str:
    """A library for another CPU may hold instructions that this one lacks, so the CPU's features are part of the name."""
    features = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith(("flags", "Features"))
    ]
    parts = [SOURCE.read_bytes(), "\0".join(flags).encode(), "".join(features[:1]).encode()]
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


def _compile(flags: tuple[str, ...], target: Path) -> None:
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise BuildError(f"no C compiler found (looked for {', '.join(_COMPILERS)})")
    command = [compiler, *flags, str(SOURCE), "-o", str(target), "-lm"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )  # fixed words
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{compiler} did not run: {error}") from error
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
        raise BuildError(f"{compiler} failed: {first}")
