"""An environment with a fault, at a step counted over all its copies in the process: once, or from then on.

What kind and when is said by the class's attributes, which the environment variables FAULT, FAULT_AT and FAULT_LASTS set.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any, ClassVar

import gymnasium
import numpy as np
from tasks import Drift


class Faulty(Drift):
    """`tasks.Drift`, which in some kinds of fault asks a process of its own at every step whether it may go on."""

    kind: ClassVar[str] = os.environ.get("FAULT", "")
    at: ClassVar[int] = int(os.environ.get("FAULT_AT", "0"))
    lasts: ClassVar[bool] = bool(os.environ.get("FAULT_LASTS"))
    count: ClassVar[int] = 0
    times: ClassVar[int] = 0
    """How often it has happened."""
    began: ClassVar[float] = 0.0
    durations: ClassVar[list[float]] = []
    """How long each fault was, until the environments were closed."""
    children: ClassVar[list[subprocess.Popen]] = []

    @classmethod
    def plan(cls, kind: str, at: int, *, lasts: bool = False) -> None:
        cls.kind, cls.at, cls.lasts, cls.count, cls.times, cls.durations = kind, at, lasts, 0, 0, []

    def __init__(self) -> None:
        self.child = None
        if self.kind.startswith("its process"):
            self.child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            self.children.append(self.child)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        if self.kind.startswith("reset") and self.due(Faulty.count >= self.at):
            if self.kind == "reset raises":
                raise OSError("the simulator has no licence left")
            observation = observation * np.nan
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Faulty.count += 1
        if not self.kind.startswith("reset") and self.due(Faulty.count == self.at):
            self.fail()
        if self.child is not None:
            self.ask(self.child)
        return super().step(action)

    def due(self, now: bool) -> bool:
        """Whether the fault happens now."""
        if not (now or (self.lasts and Faulty.count >= self.at)) or (Faulty.times and not self.lasts):
            return False
        Faulty.times, Faulty.began = Faulty.times + 1, time.monotonic()
        return True

    def fail(self) -> None:
        reading, _ = os.pipe()
        match self.kind:
            case "raises":
                raise RuntimeError("the gearbox is gone")
            case "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "leaves":
                os._exit(3)
            case "sleeps":
                time.sleep(1000)
            case "waits for a pipe":
                os.read(reading, 1)
            case "spins":
                while True:
                    pass
            case "tries again and again":
                while True:
                    with suppress(Exception):
                        time.sleep(1000)
            case "its process dies":
                assert self.child is not None
                self.child.kill()
                self.child.wait()
            case "its process hangs":
                assert self.child is not None
                self.child.send_signal(signal.SIGSTOP)
            case "compiled":  # other threads may run
                hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
            case "compiled, alone":  # they may not
                sum(range(10**13))

    def ask(self, child: subprocess.Popen) -> None:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(b"may I?\n")
        if not child.stdout.readline():
            raise EOFError("its process is gone")

    def close(self) -> None:
        if len(self.durations) < Faulty.times:
            self.durations.append(time.monotonic() - Faulty.began)
        if self.child is not None:
            self.child.kill()
            self.child.communicate()


gymnasium.register("Faulty-v0", Faulty, max_episode_steps=20)
