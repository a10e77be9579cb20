"""A client that speaks bytes, for what well-behaved clients never do."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass

import orjson

from tests.gateway.live import Gateway


@dataclass
class RawClient:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls, gateway: Gateway, *, receive_buffer: int | None = None) -> RawClient:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(sock, (gateway.host, gateway.port))
        return cls(*await asyncio.open_connection(sock=sock, limit=4096))

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, path: str, body: object) -> None:
        data = orjson.dumps(body)
        self.write(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), len(data), data)
        )

    async def head(self) -> bytes:
        """The headers of the next response."""
        return await self.reader.readuntil(b"\r\n\r\n")

    def leave(self, *, reset: bool) -> None:
        """Close with a FIN, or with a RST."""
        if reset:
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()
