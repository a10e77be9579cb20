"""Names of what is kept: in the order of time, and nobody can guess one."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable

_TIME_BITS, _RANDOM_BITS = 48, 80


def new_id(prefix: str, clock: Callable[[], float] = time.time, *, joint: str = "_") -> str:
    """`prefix_` (or with another `joint`) and 32 hex digits: milliseconds of the wall clock, then chance. Sorted by name is sorted by time."""
    milliseconds = int(clock() * 1000) & ((1 << _TIME_BITS) - 1)
    return f"{prefix}{joint}{(milliseconds << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS):032x}"


def is_id(prefix: str, text: str, joint: str = "_") -> bool:
    """Whether it can be one of ours: anything else need not be looked for."""
    return re.fullmatch(f"{re.escape(prefix + joint)}[0-9a-f]{{32}}", text) is not None
