"""Libraries that were compiled beforehand, for machines without a compiler: one for each generation of CPUs.

usage: python -m engine.native.prebuilt     compiles them into this package, where an engine on any machine finds them
"""

from __future__ import annotations

import hashlib
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from .build import SOURCE, build

DIRECTORY = Path(__file__).with_name("libraries")
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Level:
    """`flags` for the compiler; `needs` is what /proc/cpuinfo lists on CPUs that can run the result."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

LEVELS = (
    Level("x86-64-v4-bf16", ("-march=x86-64-v4", "-mavx512bf16"), _V4 | {"avx512_bf16"}),
    Level("x86-64-v4", ("-march=x86-64-v4",), _V4),
    Level("x86-64-v3", ("-march=x86-64-v3",), _V3),
)
"""Best first; the levels of the x86-64 psABI, and the one instruction beyond them that the kernels have a use for."""


def prebuilt(directory: Path = DIRECTORY, cpuinfo: Path = _CPUINFO) -> Path | None:
    """The best library for this CPU that `directory` has, None if there is none."""
    if not directory.is_dir():
        return None
    features = _features(cpuinfo)
    paths = (directory / _file_name(level) for level in LEVELS if level.needs <= features)
    return next((path for path in paths if path.is_file()), None)


def build_all(directory: Path = DIRECTORY) -> list[Path]:
    """Compile every level. Raises BuildError."""
    made = []
    for level in LEVELS:
        library = build(directory, machine_flags=level.flags)
        made.append(library.replace(directory / _file_name(level)))
    return made


def _file_name(level: Level) -> str:
    """Says which source it was made of, too: one that is older than the source is not found."""
    return f"{level.name}-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"


def _features(cpuinfo: Path) -> Set[str]:
    for line in cpuinfo.read_text().splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


if __name__ == "__main__":
    for path in build_all():
        print(path)
