"""How long a cached prefix is asked to last, as clients write it."""

from __future__ import annotations

import re

from ..errors import InvalidRequest

NAMED = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "12h": 43_200.0, "24h": 86_400.0}
LONGEST = 30 * 86_400
"""Seconds; a promise for longer is a pin."""

_SECONDS = re.compile(r"[1-9][0-9]{0,7}s")


def read_ttl(text: str, *, param: str) -> float:
    """Seconds. Raises InvalidRequest."""
    if text in NAMED:
        return NAMED[text]
    seconds = int(text[:-1]) if _SECONDS.fullmatch(text) else 0
    if not 1 <= seconds <= LONGEST:
        raise InvalidRequest(
            f"Invalid '{param}': expected one of {', '.join(NAMED)}, or seconds such as '90s' (up to {LONGEST}s).",
            param=param,
        )
    return float(seconds)


def spell_ttl(seconds: float) -> str:
    """The same in writing."""
    for name, value in NAMED.items():
        if value == seconds:
            return name
    return f"{seconds:g}s" if seconds < 1e6 else f"{round(seconds)}s"
