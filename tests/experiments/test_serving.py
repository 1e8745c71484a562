"""A served agent answers as `agent.predict`, and whatever is malformed, too large or too much is refused alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import cli, trained
from sockets import Client

import rpsp
from rpsp.errors import UsageError
from rpsp.experiments.agents import TrainedAgent
from rpsp.experiments.serving.service import Limits, Service, is_loopback
from rpsp.experiments.serving.sessions import Bucket


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("served") / "run", 2, "gru16").directory


@pytest.fixture(scope="module")
def agent(run: Path) -> TrainedAgent:
    return rpsp.load(run)


@contextlib.asynccontextmanager
async def served(agent: TrainedAgent, token: str | None = None, **limits: Any) -> AsyncIterator[int]:
    service = Service(agent, {}, token, Limits(**limits))
    server = await service.start("127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await service.stop(server)


def with_service(agent: TrainedAgent, talk: Callable[[int], Coroutine[Any, Any, Any]], **given: Any) -> Any:
    async def everything() -> Any:
        async with asyncio.timeout(60), served(agent, **given) as port:
            return await talk(port)

    return asyncio.run(everything())


def episodes(agent: TrainedAgent, count: int, steps: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, steps, *agent.spaces["observation"].shape))  # pyright: ignore


def predicted(agent: TrainedAgent, observations: np.ndarray, starts: set[int] = frozenset({0})) -> list[Any]:
    state, actions = None, []
    for step, observation in enumerate(observations):
        action, state = agent.predict(observation, state, step in starts)
        actions.append(action)
    return actions


def test_sessions_at_the_same_time_act_as_predict(agent: TrainedAgent) -> None:
    given = episodes(agent, 30, 12)

    async def by_socket(port: int, observations: np.ndarray) -> list[Any]:
        client = await Client.to(port)
        await client.upgrade()
        found = [(await client.act(o.tolist(), start=step == 7))["action"] for step, o in enumerate(observations)]
        client.close()
        return found

    async def by_http(port: int, observations: np.ndarray) -> list[Any]:
        client = await Client.to(port)
        status, begun = await client.ask("POST", "/sessions")
        assert status == 201
        path, found = f"/sessions/{begun['session']}", []
        for step, o in enumerate(observations):
            status, content = await client.ask("POST", path, {"observation": o.tolist(), "start": step == 7})
            assert status == 200
            found.append(content["action"])
        assert (await client.ask("DELETE", path))[0] == 204
        assert (await client.ask("POST", path, {"observation": given[0, 0].tolist()}))[0] == 404
        client.close()
        return found

    async def talk(port: int) -> Any:
        ways = [by_socket(port, o) for o in given[:20]] + [by_http(port, o) for o in given[20:]]
        return await asyncio.gather(*ways)

    found = with_service(agent, talk)
    expected = [predicted(agent, observations, {0, 7}) for observations in given]
    np.testing.assert_array_equal(found, expected)  # one compiled program
    assert np.ptp(np.array(expected)) > 0.01


def test_what_is_served_is_described(agent: TrainedAgent) -> None:
    async def talk(port: int) -> Any:
        client = await Client.to(port)
        return await client.ask("GET", "/")

    status, content = with_service(agent, talk, sessions=7)
    assert status == 200 and content["checkpoint"] == 2 and content["most"] == 7 and content["sessions"] == 0
    assert len(content["observation"]["low"]) == agent.spaces["observation"].shape[0]  # pyright: ignore


HEAD = b"Host: localhost\r\n"
MALFORMED = {
    "no HTTP": (b"hello\r\n\r\n", 400),
    "another version": (b"GET / HTTP/3\r\n" + HEAD + b"\r\n", 400),
    "bytes that are no text": (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
    "a field without colon": (b"GET / HTTP/1.1\r\nHost\r\n\r\n", 400),
    "two lengths": (b"POST /sessions HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    "a negative length": (b"POST /sessions HTTP/1.1\r\n" + HEAD + b"Content-Length: -1\r\n\r\n", 400),
    "chunks": (b"POST /sessions HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n", 400),
    "a long head": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n", 431),
    "a large body": (b"POST /sessions HTTP/1.1\r\n" + HEAD + b"Content-Length: 99999999\r\n\r\n", 413),
    "another host": (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 403),
    "a web page": (b"GET / HTTP/1.1\r\n" + HEAD + b"Origin: https://evil.example\r\n\r\n", 403),
    "no WebSocket": (b"GET /ws HTTP/1.1\r\n" + HEAD + b"\r\n", 400),
    "an old WebSocket": (
        b"GET /ws HTTP/1.1\r\n"
        + HEAD
        + b"Upgrade: websocket\r\nSec-WebSocket-Version: 8\r\nSec-WebSocket-Key: x\r\n\r\n",
        400,
    ),
}
MESSAGES = {
    "no JSON": b"hello",
    "deep": b"[" * 1000,
    "no object": b"[1]",
    "no observation": b"{}",
    "an unknown name": b'{"observation": [0, 0], "reset": true}',
    "no boolean": b'{"observation": [0, 0], "start": 1}',
    "too few numbers": b'{"observation": [0]}',
    "text": b'{"observation": ["a", "b"]}',
    "not finite": b'{"observation": [NaN, 1e999]}',
    "ragged": b'{"observation": [[0], [0, 1]]}',
    "a huge number": b'{"observation": [' + b"9" * 900 + b", 0]}",
}
FRAMES: dict[str, tuple[dict[str, Any], int]] = {
    "not masked": ({"kind": 1, "data": b"{}", "masked": 0}, 1002),
    "reserved bits": ({"kind": 1, "data": b"{}", "first": 0xF0}, 1002),
    "an unknown kind": ({"kind": 5, "data": b""}, 1002),
    "a part of a message": ({"kind": 1, "data": b"{", "first": 0}, 1003),
    "bytes": ({"kind": 2, "data": b"{}"}, 1003),
    "too large": ({"kind": 1, "data": b" " * 70_000}, 1009),
    "a long ping": ({"kind": 9, "data": b" " * 126}, 1002),
    "the end": ({"kind": 8, "data": b""}, 1000),
}


def test_what_is_malformed_or_too_large_is_refused_alone(agent: TrainedAgent) -> None:
    """While all of it arrives, a session goes on and gets the right actions."""
    given = episodes(agent, 1, 400)[0]

    async def talk(port: int) -> Any:
        ending = asyncio.Event()

        async def steady() -> list[Any]:
            client, found = await Client.to(port), []
            await client.upgrade()
            for observation in given:
                found.append((await client.act(observation.tolist()))["action"])
                if ending.is_set():
                    break
                await asyncio.sleep(0.001)
            return found

        going = asyncio.create_task(steady())
        for what, (data, status) in MALFORMED.items():
            client = await Client.to(port)
            assert (await client.send(data))[0] == status, what
            assert await client.reader.read() == b"", f"{what}: the connection is closed"
        client = await Client.to(port)
        session = (await client.ask("POST", "/sessions"))[1]["session"]
        for what, data in MESSAGES.items():
            status, content = await client.ask("POST", f"/sessions/{session}", data)
            assert status == 400 and set(content) == {"error"} and "\n" not in content["error"], what
        assert (await client.ask("POST", f"/sessions/{session}", {"observation": [0, 0]}, Content_Type="text/plain"))[
            0
        ] == 415
        assert (await client.ask("POST", f"/sessions/{session}", {"observation": given[0].tolist()}))[0] == 200
        for method, path, status in (("PUT", "/", 405), ("GET", "/sessions", 405), ("GET", "/etc/passwd", 404)):
            assert (await client.ask(method, path))[0] == status
        for what, (frame, code) in FRAMES.items():
            client = await Client.to(port)
            await client.upgrade()
            client.frame(**frame)
            kind, body = await client.answer()
            assert (kind, int.from_bytes(body[:2])) == (8, code), what
            assert await client.reader.read() == b"", f"{what}: the connection is closed"
        client = await Client.to(port)
        await client.upgrade()
        for data in [*MESSAGES.values()][:10]:
            client.frame(1, data)
            assert "error" in json.loads((await client.answer())[1])
        assert (await client.answer())[0] == 8, "ten mistakes are enough"
        ending.set()
        return await going

    found = with_service(agent, talk)
    assert len(found) >= 3
    np.testing.assert_array_equal(found, predicted(agent, given[: len(found)]))


def test_a_flood_is_refused_and_nobody_else_suffers(agent: TrainedAgent) -> None:
    observation = episodes(agent, 1, 1)[0, 0].tolist()

    async def talk(port: int) -> Any:
        quiet = await Client.to(port)
        await quiet.upgrade()
        flooding = await Client.to(port)
        await flooding.upgrade()
        for _ in range(1000):
            flooding.frame(1, json.dumps({"observation": observation}).encode())
        many = [await Client.to(port) for _ in range(60)]
        assert "action" in await quiet.act(observation)
        answers = []
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                answers.append(await flooding.answer())
        waiting = [asyncio.create_task(client.reader.read(100)) for client in many]
        told, silent = await asyncio.wait(waiting, timeout=0.5)
        for task in silent:
            task.cancel()
        refused = [task for task in told if b"503" in task.result()]
        assert "action" in await quiet.act(observation)
        return answers, refused

    answers, refused = with_service(agent, talk, rate=100.0, sessions=5, arrivals=10.0)
    assert len(answers) < 100 and answers[-1][0] == 8 and int.from_bytes(answers[-1][1][:2]) == 1008
    assert len(refused) >= 20


def test_sessions_are_bounded_and_idle_ones_give_way(agent: TrainedAgent) -> None:
    async def talk(port: int) -> Any:
        client = await Client.to(port)
        first = (await client.ask("POST", "/sessions"))[1]["session"]
        assert (await client.ask("POST", "/sessions"))[0] == 201
        full = await client.ask("POST", "/sessions")
        await asyncio.sleep(1.1)
        client = await Client.to(port)
        again = await client.ask("POST", "/sessions")
        return full, again, await client.ask("POST", f"/sessions/{first}", {"observation": [0, 0]})

    full, again, gone = with_service(agent, talk, sessions=2, idle=1.0)
    assert full[0] == 503 and "there are 2 already" in full[1]["error"]
    assert again[0] == 201 and gone[0] == 404


def test_a_token_is_needed_if_one_is_given(agent: TrainedAgent) -> None:
    async def talk(port: int) -> Any:
        found = []
        for given in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer secret", "Origin": "x", "Host": "y"},
        ):
            client = await Client.to(port)
            found.append((await client.ask("GET", "/", **given))[0])
        await (await Client.to(port)).upgrade(Authorization="Bearer secret")
        return found

    assert with_service(agent, talk, token="secret") == [401, 401, 200]
    assert [is_loopback(h) for h in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "::", "example.org")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip


def test_a_bucket_lets_through_its_rate() -> None:
    now = [0.0]
    bucket = Bucket(10, 3, lambda: now[0])
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    now[0] = 0.1
    assert [bucket.take() for _ in range(2)] == [True, False]
    now[0] = 9.0
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


@pytest.mark.slow
def test_the_command_serves_until_it_is_stopped(run: Path, tmp_path: Path) -> None:
    code = f"import tasks; from rpsp.cli import main; main(['serve', {str(run)!r}, '--port', '0', '--json', '--quiet'])"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    env.pop("RPSP_TOKEN", None)
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, encoding="utf8") as process:
        timer = threading.Timer(120, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            assert "token" not in found

            async def talk() -> Any:
                return await (await Client.to(found["port"])).ask("GET", "/")

            assert asyncio.run(talk())[1]["agent"] == "run"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            timer.cancel()
            process.kill()


@pytest.mark.parametrize("flags", [("--sessions", "0"), ("--rate", "0"), ("--idle", "nan"), ("--host", "192.0.2.1")])
def test_settings_out_of_range_are_refused(flags: tuple[str, str], run: Path, capsys: Any) -> None:
    assert cli("serve", str(run), "--port", "0", "--quiet", *flags) == 2
    assert capsys.readouterr().err.startswith(
        "rpsp: " + (flags[0][2:] if flags[0] != "--host" else "port: 192.0.2.1:0")
    )
    with pytest.raises(UsageError, match="sessions: 0 is not between"):
        Limits(sessions=0)
