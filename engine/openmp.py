"""How OpenMP's threads wait for each other, settled before torch brings its runtime in.

libgomp's threads spin for milliseconds before they sleep. That is harmless while every thread has a core to itself. On a
machine that also runs the gateway and its clients it is not: a thread that spins keeps the very thread it waits for off
the core, at each of the hundreds of joins of a step.
"""

from __future__ import annotations

import os

_TURNS = (
    "4000"  # some 50 microseconds: longer than the gap between two kernels, far shorter than a time slice
)


def shorten_spinning() -> None:
    """Takes effect if torch is not loaded yet; an operator's own setting stays."""
    os.environ.setdefault("GOMP_SPINCOUNT", _TURNS)
