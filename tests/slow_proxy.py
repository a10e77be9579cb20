"""A TCP proxy on a thread of its own, which can be slow and can be pointed elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class SlowProxy:
    """`delay` is in seconds, for every piece of what the server says; `target` a port of loopback, for connections that come
    after it is set. `cut` ends those there are."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay = 0.0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self._run(self._cut())

    def close(self) -> None:
        self._server.close()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _cut(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self.target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, there, delayed=False))
                group.create_task(self._pass(back, writer, delayed=True))
        except (OSError, asyncio.CancelledError, ExceptionGroup):
            pass  # whoever hears nothing any more will notice
        finally:
            for end in (writer, there):
                if end is not None:
                    end.close()
            self._connections.discard(task)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, delayed: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if delayed and self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        raise ConnectionResetError
