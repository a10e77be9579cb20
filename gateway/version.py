"""What the server says of itself."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("headwater")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0+unknown"


VERSION = _installed()
"""Read once: looking it up touches the disk."""

SERVER = "headwater"
"""The `Server` header of every response: a name, and no version for strangers."""
