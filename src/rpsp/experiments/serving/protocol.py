"""HTTP/1.1 requests and WebSocket frames as bytes, within limits (RFC 9112 and RFC 6455, as far as the service needs)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_HEAD = 8192
"""Maximum size of the head of a request in bytes."""
REASONS = {
    200: "OK", 201: "Created", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden",
    404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout", 413: "Content Too Large",
    415: "Unsupported Media Type", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
"""Kinds of WebSocket frames."""


class Refused(Exception):
    """A request that is refused with an HTTP status."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


class Request(NamedTuple):
    """A request, without its body."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Header fields by their name in small letters."""
    length: int
    """Size of the body in bytes."""


async def read_request(reader: asyncio.StreamReader, most: int) -> Request | None:
    """Read the head of the next request of a connection.

    Args:
        reader: the connection. Its limit must be `MAX_HEAD`.
        most: maximum size of a body in bytes.

    Returns:
        The request, or None if the connection was closed.

    Raises:
        Refused: if it is malformed or too large.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise Refused(400, "the request ends before its head does.") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise Refused(431, f"the head of the request has more than {MAX_HEAD} bytes.") from error
    try:
        first, *lines = head[:-4].decode("ascii").split("\r\n")
        method, path, version = first.split(" ")
    except ValueError as error:  # also UnicodeDecodeError
        raise Refused(400, "this is not an HTTP request.") from error
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise Refused(400, "this is not a request of HTTP/1.1.")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or name in headers:
            raise Refused(400, "a header field is malformed or repeated.")
        headers[name] = value.strip()
    if "transfer-encoding" in headers:
        raise Refused(400, "give the body with Content-Length.")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal() and len(length) < 12):
        raise Refused(400, "Content-Length is not a number.")
    if int(length) > most:
        raise Refused(413, f"the body has {length} bytes, more than {most}.")
    return Request(method, path.partition("?")[0], headers, int(length))


def response(status: int, content: Any, *, close: bool = False) -> bytes:
    """Return a response with a JSON body."""
    body = b"" if status == 204 else json.dumps(content).encode()
    closing = "Connection: close\r\n" if close else ""
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n{closing}\r\n"
    )
    return head.encode() + body


# ---------------------------------------------------------------------------------------------------------------------
# WebSocket
# ---------------------------------------------------------------------------------------------------------------------


def switching(headers: Mapping[str, str]) -> bytes:
    """Return the response that turns a connection into a WebSocket. Raises `Refused` if the request is no such one."""
    key = headers.get("sec-websocket-key", "")
    if headers.get("upgrade", "").lower() != "websocket" or headers.get("sec-websocket-version") != "13" or not key:
        raise Refused(400, "this address takes WebSockets of version 13.")
    accepted = base64.b64encode(hashlib.sha1(key.encode() + GUID, usedforsecurity=False).digest()).decode()
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accepted}\r\n\r\n"
    ).encode()


class Closed(Exception):
    """A WebSocket that must be closed, with the code that says why."""

    def __init__(self, code: int, sentence: str = ""):
        super().__init__(sentence)
        self.code = code


async def read_frame(reader: asyncio.StreamReader, most: int) -> tuple[int, bytes]:
    """Read a frame of a client: its kind and its content.

    Raises:
        Closed: if it is malformed, too large or a part of a message.
        asyncio.IncompleteReadError: if the connection was closed.
    """
    first, second = await reader.readexactly(2)
    kind, length = first & 15, second & 127
    if first & 0x70 or not second & 0x80 or kind not in (TEXT, BINARY, CLOSE, PING, PONG):
        raise Closed(1002, "the frame is malformed")
    if not first & 0x80:
        raise Closed(1003, "send every message as one frame")
    if length > 125:
        if kind >= CLOSE:
            raise Closed(1002, "the frame is malformed")
        length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8))
    if length > most:
        raise Closed(1009, f"the message has {length} bytes, more than {most}")
    mask = await reader.readexactly(4)
    return kind, _masked(await reader.readexactly(length), mask)


def _masked(data: bytes, mask: bytes) -> bytes:
    """Return data XOR mask, repeated."""
    count = len(data)
    repeated = (mask * (count // 4 + 1))[:count]
    return (int.from_bytes(data) ^ int.from_bytes(repeated)).to_bytes(count)


def frame(kind: int, data: bytes) -> bytes:
    """Return a frame of a server."""
    head, size = bytes([0x80 | kind]), len(data)
    if size < 126:
        return head + bytes([size]) + data
    if size < 1 << 16:
        return head + b"\x7e" + size.to_bytes(2) + data
    return head + b"\x7f" + size.to_bytes(8) + data


def closing(code: int, sentence: str = "") -> bytes:
    """Return the frame that closes a WebSocket."""
    return frame(CLOSE, code.to_bytes(2) + sentence.encode()[:123])
