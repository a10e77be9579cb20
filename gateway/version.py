"""The server's own version, read once: looking it up touches the disk."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("headwater")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0+unknown"


VERSION = _installed()
