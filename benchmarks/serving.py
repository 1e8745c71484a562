"""Latency of `rpsp serve`: sessions of WebSockets that send an observation at a fixed rate, beside `agent.predict`.

    python -m benchmarks.serving --sessions 100 --rate 20 --seconds 20

The service runs in a process of its own, on the first core, the clients in this one, on the last. A latency is the time
from sending an observation to receiving its action. Observations are Gaussian, with the mean and the scale of those of
the exploration. All actions are compared with those of `agent.predict` for each session alone. Before, one session sends
as fast as it gets answers, and finally all of them do. Latencies need two quiet cores; the load average of the machine is
listed with them. With `--out`, the figures are written to a file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rpsp

METHOD = "rpsi-trpo"


class Session:
    """A client with one WebSocket. Frames are written by hand, so that the client costs little."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader, self.writer = reader, writer
        self.latencies: list[float] = []
        self.actions: list[Any] = []

    @classmethod
    async def begun(cls, port: int) -> Session:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        writer.write(head.encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        return cls(reader, writer)

    async def act(self, message: bytes) -> None:
        began = time.perf_counter()
        size = len(message)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2)
        self.writer.write(b"\x81" + length + bytes(4) + message)  # a mask of zeros changes nothing
        _, size = await self.reader.readexactly(2)
        if size == 126:
            size = int.from_bytes(await self.reader.readexactly(2))
        answer = await self.reader.readexactly(size)
        self.latencies.append(time.perf_counter() - began)
        self.actions.append(json.loads(answer)["action"])


async def regular(sessions: list[Session], messages: list[list[bytes]], rate: float) -> None:
    """Every session sends a message every 1 / rate seconds, each at a time of its own."""

    async def one(number: int) -> None:
        start = time.perf_counter() + number / len(sessions) / rate
        for step, message in enumerate(messages[number]):
            await asyncio.sleep(max(0.0, start + step / rate - time.perf_counter()))
            await sessions[number].act(message)

    await asyncio.gather(*map(one, range(len(sessions))))


async def at_once(sessions: list[Session], messages: list[list[bytes]]) -> float:
    """Every session sends the next message when it has its answer. Returns answers per second."""

    async def one(number: int) -> None:
        for message in messages[number]:
            await sessions[number].act(message)

    began = time.perf_counter()
    await asyncio.gather(*map(one, range(len(sessions))))
    return sum(map(len, messages)) / (time.perf_counter() - began)


def milliseconds(sessions: list[Session]) -> dict[str, float]:
    found = 1000 * np.concatenate([session.latencies for session in sessions])
    return {f"p{q}": round(float(np.percentile(found, q)), 3) for q in (50, 95, 99)} | {"most": round(found.max(), 3)}


def cpu_seconds(process: int) -> float:
    """The CPU time of a process. Other work disturbs it less than latencies."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(agent: Any, port: int, process: int, count: int, rate: float, seconds: float) -> dict[str, Any]:
    steps = int(rate * seconds)
    size = agent.spaces["observation"].shape[0]
    given = agent.scaling.decode(np.random.default_rng(0).normal(size=(count, steps, size)))
    messages = [[json.dumps({"observation": o.tolist()}).encode() for o in one] for one in given]
    results: dict[str, Any] = {"sessions": count, "rate": rate, "seconds": seconds}

    alone = [await Session.begun(port)]
    await at_once(alone, [messages[0][:500]])
    alone[0].latencies.clear()
    results["one session, at once"] = {
        "per_second": round(await at_once(alone, [messages[0] * 3])),
        **milliseconds(alone),
    }

    several = [await Session.begun(port) for _ in range(count)]
    before = cpu_seconds(process)
    await regular(several, messages, rate)
    results["all sessions, at the rate"] = milliseconds(several)
    results["CPU time of the service per answer, µs"] = round(
        1e6 * (cpu_seconds(process) - before) / (count * steps), 1
    )
    half = np.ptp([agent.spaces["action"].low, agent.spaces["action"].high], axis=0) / 2
    largest = 0.0
    for session, observations in zip(several, given, strict=True):
        state = None
        for observation, found in zip(observations, session.actions, strict=True):
            action, state = agent.predict(observation, state, state is None)
            largest = max(largest, float(np.max(np.abs(action - found) / half)))
    results["largest difference of an action from agent.predict, of half its range"] = largest

    several = [await Session.begun(port) for _ in range(count)]
    speed = await at_once(several, [one[:200] for one in messages])
    results["all sessions, at once"] = {"per_second": round(speed), **milliseconds(several)}
    return results


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--env", default="Hopper-v5")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        run = rpsp.train(given.env, METHOD, observe="positions", iterations=1, out=out, verbose=False, threads=1)
        agent = rpsp.load(run.directory)
        cores = sorted(os.sched_getaffinity(0))
        words = ["serve", str(run.directory), "--port=0", "--json", "--quiet", "--rate=1e5"]
        code = f"import os; os.sched_setaffinity(0, [{cores[0]}]); from rpsp.cli import main; main({words!r})"
        command = [sys.executable, "-c", code]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf8")
        try:
            assert process.stdout is not None
            port = json.loads(process.stdout.readline())["port"]
            os.sched_setaffinity(0, cores[-1:])
            results = asyncio.run(measure(agent, port, process.pid, given.sessions, given.rate, given.seconds))
        finally:
            process.terminate()
            process.wait()
    results |= {"env": given.env, "method": METHOD, "load": round(os.getloadavg()[0], 1)}
    print(json.dumps(results, indent=2))
    if given.out is not None:
        given.out.write_text(json.dumps(results, indent=2) + "\n")
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
