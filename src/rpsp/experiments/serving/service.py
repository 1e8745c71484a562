"""A trained agent as a service: connections, routes, and limits of rates.

GET    /               what is served
POST   /sessions       begin a session
POST   /sessions/NAME  {"observation": [...], "start": false}: the action for an observation
DELETE /sessions/NAME  end a session
GET    /ws             a WebSocket that is a session: the same messages, one after the other
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from rpsp.errors import UsageError
from rpsp.experiments.agents import TrainedAgent
from rpsp.experiments.serving.protocol import (
    CLOSE,
    MAX_HEAD,
    PING,
    PONG,
    TEXT,
    Closed,
    Refused,
    Request,
    closing,
    frame,
    read_frame,
    read_request,
    response,
    switching,
)
from rpsp.experiments.serving.sessions import Bucket, Full, Sessions
from rpsp.experiments.spaces import describe_space

HEAD_SECONDS = 10.0
"""Time in which a request must arrive after its first byte, and a response be taken."""
LINGER_SECONDS, MOST_LINGERING = 1.0, 64
"""Time and number of blocks of `MAX_HEAD` bytes for which a refused connection is read before it is closed."""
NAMES = "localhost", "127.0.0.1", "[::1]"
"""Names of this machine that a request may give as Host. Others come from a browser that was led here by a web page."""
MOST_MISTAKES = 10
"""Number of invalid messages after which a WebSocket is closed."""
ON_FRAME = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class Limits:
    """What a service allows."""

    sessions: int = 256
    """Sessions at the same time."""
    idle: float = 600.0
    """Seconds after which an unused session gives its place to a new one, and an idle connection is closed."""
    rate: float = 2000.0
    """Requests of a connection per second. Up to a tenth as many may come at once."""
    arrivals: float = 200.0
    """New connections per second. Up to as many as there are sessions, or this number, may come at once."""

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("sessions", "idle", "rate", "arrivals"):
            if not 1 <= getattr(self, name) <= 1e6:
                raise UsageError(f"{name}: {getattr(self, name)} is not between 1 and a million.")

    @property
    def connections(self) -> int:
        """Connections at the same time."""
        return 2 * self.sessions + 16


def is_loopback(host: str) -> bool:
    """Return whether an address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Service:
    """The service of one agent.

    Args:
        agent: the agent.
        about: what `GET /` says of it in addition.
        token: the token that requests must give as `Authorization: Bearer TOKEN`. None: none, and requests of web pages
            are refused.
        limits: what is allowed.
    """

    def __init__(self, agent: TrainedAgent, about: dict[str, Any], token: str | None, limits: Limits):
        self.sessions = Sessions(agent, limits.sessions, limits.idle)
        self.limits, self._token = limits, token
        self._spaces = {name: describe_space(space) for name, space in agent.spaces.items()}
        self._about = {"rpsp": version("rpsp"), "checkpoint": agent.checkpoint, **about}
        size = 1 if np.ndim(agent.spaces["observation"].sample()) == 0 else agent.spaces["observation"].shape[0]  # pyright: ignore[reportOptionalSubscript]
        self.largest = 1024 + 32 * int(size)
        """Maximum size of a message in bytes."""
        self._connections: set[asyncio.Task[Any]] = set()
        self._arrivals = Bucket(limits.arrivals, max(limits.arrivals, limits.sessions))

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Compile the agent and listen. Port 0: any free one.

        Raises:
            UsageError: if the address cannot be used.
        """
        self.sessions.warm_up()
        try:
            return await asyncio.start_server(self._connected, host, port, limit=MAX_HEAD, backlog=512)
        except OSError as error:
            raise UsageError(
                f"port: {host}:{port} cannot be used ({error.strerror}); choose another --port."
            ) from error

    async def stop(self, server: asyncio.Server) -> None:
        """Close all connections and stop listening."""
        server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, one after the other."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= self.limits.connections or not self._arrivals.take():
            writer.write(response(503, {"error": "there are too many connections; try again later."}, close=True))
            writer.close()
            return
        self._connections.add(task)
        with suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await self._converse(reader, writer)
        except Refused as refusal:
            writer.write(response(refusal.status, {"error": str(refusal)}, close=True))
            await _linger(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):  # it is gone, or does nothing
            pass
        except asyncio.CancelledError:  # the service ends; asyncio would log it
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bucket = Bucket(self.limits.rate, max(1.0, self.limits.rate / 10))
        waiting = HEAD_SECONDS
        while True:
            async with asyncio.timeout(waiting):
                request = await read_request(reader, self.largest)
            if request is None:
                return
            if not bucket.take():
                raise Refused(429, f"more than {self.limits.rate:g} requests a second came.")
            self._check_origin(request)
            async with asyncio.timeout(HEAD_SECONDS):
                body = await reader.readexactly(request.length)
            if request.path == "/ws":
                await self._socket(request, reader, writer, bucket)
                return
            status, content = self._routed(request, body)
            last = request.headers.get("connection", "").lower() == "close"
            writer.write(response(status, content, close=last))
            async with asyncio.timeout(HEAD_SECONDS):
                await writer.drain()
            if last:
                return
            waiting = self.limits.idle

    def _check_origin(self, request: Request) -> None:
        """Refuse a request without the token. Without a token, refuse those that a web page can make."""
        if self._token is not None:
            given = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
                raise Refused(401, "give the token, as Authorization: Bearer TOKEN.")
            return
        name = request.headers.get("host", "")
        if name.rpartition(":")[0] not in NAMES and name not in NAMES:
            raise Refused(403, "the Host of the request is not this machine.")
        if "origin" in request.headers:
            raise Refused(403, "requests of web pages are refused; start the service with a token to allow them.")

    def _routed(self, request: Request, body: bytes) -> tuple[int, Any]:
        """Return the status and the content that answer a request."""
        method, path = request.method, request.path
        if path == "/":
            return (200, self.description()) if method == "GET" else _wrong(method)
        if path == "/sessions":
            if method != "POST":
                return _wrong(method)
            try:
                return 201, {"session": self.sessions.open().name}
            except Full as error:
                return 503, {"error": str(error)}
        name = path.removeprefix("/sessions/")
        session = self.sessions.known.get(name) if name != path else None
        if session is None:
            return 404, {"error": "there is no such session; begin one (POST /sessions)."}
        if method == "DELETE":
            self.sessions.close(name)
            return 204, None
        if method != "POST":
            return _wrong(method)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return 415, {"error": "Content-Type is not application/json."}
        try:
            return 200, {"action": self.sessions.act(session, *_message(body))}
        except UsageError as error:
            return 400, {"error": str(error)}
        except RuntimeError as error:
            return 500, {"error": str(error)}

    async def _socket(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bucket: Bucket
    ) -> None:
        """Serve a WebSocket: a session that ends with the connection."""
        if request.method != "GET" or request.length:
            raise Refused(400, "this address takes WebSockets.")
        answer = switching(request.headers)
        try:
            session = self.sessions.open()
        except Full as error:
            raise Refused(503, str(error)) from error
        mistakes = 0
        try:
            writer.write(answer)
            while True:
                async with asyncio.timeout(self.limits.idle):
                    kind, data = await read_frame(reader, self.largest)
                if not bucket.take():
                    raise Closed(1008, f"more than {self.limits.rate:g} messages a second came")
                if kind == CLOSE:
                    raise Closed(1000)
                if kind == PING:
                    writer.write(frame(PONG, data))
                elif kind == TEXT:
                    try:
                        content = {"action": self.sessions.act(session, *_message(data))}
                    except (UsageError, RuntimeError) as error:
                        mistakes += 1
                        content = {"error": str(error)}
                    writer.write(frame(TEXT, ON_FRAME(content).encode()))
                    if mistakes >= MOST_MISTAKES:
                        raise Closed(1008, "too many messages were invalid")
                elif kind != PONG:
                    raise Closed(1003, "send text")
                async with asyncio.timeout(HEAD_SECONDS):
                    await writer.drain()
        except Closed as reason:
            writer.write(closing(reason.code, str(reason)))
            await _linger(reader, writer)
        finally:
            self.sessions.close(session.name)

    def description(self) -> dict[str, Any]:
        """Return what is served, and how many sessions there are."""
        return {**self._about, **self._spaces, "sessions": len(self.sessions.known), "most": self.limits.sessions}


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the other side read what was sent last. Closing at once, with data unread, would discard it."""
    with suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(LINGER_SECONDS):
            for _ in range(MOST_LINGERING):
                if not await reader.read(MAX_HEAD):
                    return


def _wrong(method: str) -> tuple[int, Any]:
    return 405, {"error": f"this address does not take {method[:20]}."}


def _message(data: bytes) -> tuple[Any, bool]:
    """Return the observation of a message, and whether an episode starts. Raises `UsageError` if it is malformed."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError('message: is not JSON; send {"observation": [...]}.') from error
    if not isinstance(content, dict) or "observation" not in content or not set(content) <= {"observation", "start"}:
        raise UsageError('message: send {"observation": [...]}, and "start": true when an episode starts.')
    if not isinstance(start := content.get("start", False), bool):
        raise UsageError("start: is neither true nor false.")
    return content["observation"], start


async def serve(service: Service, host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        service: the service.
        host: the address to listen at.
        port: the port. 0: any free one.
        ready: called with the port when the service listens.
    """
    server = await service.start(host, port)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, ValueError, RuntimeError):  # Windows, or not the main thread
            loop.add_signal_handler(number, stopped.set)
    try:
        ready(server.sockets[0].getsockname()[1])
        await stopped.wait()
    finally:
        await service.stop(server)
