"""What an engine would find on this machine, as told by `python -m engine.probe` (light: loads no torch)."""

from __future__ import annotations

import msgspec


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`device` is for people. `native_error` is one line, None if the C kernels were built and loaded."""

    torch: str
    device: str
    native_error: str | None
