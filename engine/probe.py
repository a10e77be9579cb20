"""Looks at the machine with torch, prints a Machine as JSON and ends: a process of its own, so that nobody else loads torch."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import msgspec
import torch

from .machine import Machine
from .native.build import BuildError, build
from .native.kernels import NativeLibrary
from .native.prebuilt import prebuilt


def probe() -> Machine:
    return Machine(torch=str(torch.__version__), device=_device(), native_error=_native_error())


def _device() -> str:
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return f"{torch.cuda.get_device_name()}, {free >> 20} of {total >> 20} MiB free"
    return f"CPU, {len(os.sched_getaffinity(0))} cores ({torch.backends.cpu.get_cpu_capability()})"


def _native_error() -> str | None:
    """Built afresh unless they came built, so that a compiler that has gone since the first run is noticed."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            NativeLibrary(prebuilt() or build(Path(scratch)), threads=1)
        except (BuildError, OSError) as error:
            return str(error)
    return None


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(probe()))
