"""The threads that work on long texts, so that the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS = 2
"""Tokenising lets go of the interpreter, so two can be at it; more would only make the loop wait longer for its turn."""

T = TypeVar("T")


class TextThreads:
    """Made at start, and ended by `close`."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="text")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
