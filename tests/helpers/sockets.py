"""A small client of `rpsp serve`, written beside the service's own code: HTTP, WebSockets, and whatever is neither."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int):
        self.reader, self.writer, self.port = reader, writer, port

    @classmethod
    async def to(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port), port)

    def close(self) -> None:
        self.writer.close()

    async def ask(self, method: str, path: str, content: Any = None, **headers: str) -> tuple[int, Any]:
        body = b"" if content is None else content if isinstance(content, bytes) else json.dumps(content).encode()
        known = {"Host": f"127.0.0.1:{self.port}", "Content-Type": "application/json", "Content-Length": str(len(body))}
        known |= {name.replace("_", "-"): value for name, value in headers.items()}
        fields = "".join(f"{name}: {value}\r\n" for name, value in known.items())
        return await self.send(f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode() + body)

    async def send(self, data: bytes) -> tuple[int, Any]:
        """Send bytes, and return the status and the content of the response."""
        self.writer.write(data)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("Content-Length"))
        body = await self.reader.readexactly(length)
        return int(head.split()[1]), json.loads(body) if body else None

    async def upgrade(self, **headers: str) -> None:
        known = {
            "Host": f"127.0.0.1:{self.port}", "Upgrade": "websocket", "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }  # fmt: skip
        fields = "".join(f"{name}: {value}\r\n" for name, value in (known | headers).items())
        self.writer.write(f"GET /ws HTTP/1.1\r\n{fields}\r\n".encode())
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        # The key and its answer are those of RFC 6455, section 1.3.
        assert head.startswith("HTTP/1.1 101") and "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head, head

    async def act(self, observation: Any, **more: Any) -> Any:
        """Send an observation by WebSocket, and return what comes back."""
        self.frame(1, json.dumps({"observation": observation, **more}).encode())
        kind, data = await self.answer()
        return json.loads(data) if kind == 1 else (kind, int.from_bytes(data[:2]))

    def frame(self, kind: int, data: bytes, first: int = 0x80, masked: int = 0x80) -> None:
        mask, size = os.urandom(4), len(data)
        length = bytes([masked | size]) if size < 126 else bytes([masked | 127]) + size.to_bytes(8)
        if 126 <= size < 1 << 16:
            length = bytes([masked | 126]) + size.to_bytes(2)
        body = bytes(b ^ mask[i % 4] for i, b in enumerate(data)) if masked else data
        self.writer.write(bytes([first | kind]) + length + (mask if masked else b"") + body)

    async def answer(self) -> tuple[int, bytes]:
        first, second = await self.reader.readexactly(2)
        size = second & 127
        if size == 126:
            size = int.from_bytes(await self.reader.readexactly(2))
        return first & 15, await self.reader.readexactly(size)
