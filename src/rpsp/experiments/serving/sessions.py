"""Sessions of a served agent: their states, and one compiled call for all that ask at the same time."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rpsp.data.scaling import OneHot
from rpsp.errors import UsageError
from rpsp.experiments.agents import ActingState, TrainedAgent

SIZES = 1, 4, 16, 64, 256
"""Numbers of rows for which the agent is compiled. Fewer sessions are filled up."""


@dataclass(eq=False)
class Session:
    """The state of one controlled system."""

    name: str
    state: ActingState | None = None
    """One row. None before the first observation."""
    used: float = field(default_factory=time.monotonic)
    """When it was last used."""
    busy: bool = False
    """Whether an observation of it waits for its action."""
    steps: int = 0


class Full(UsageError):
    """Error: there are as many sessions as allowed."""


class Sessions:
    """All sessions of a service.

    Sessions that ask within the same turn of the event loop are answered by one call of the agent. An action is that of
    `agent.predict` for the session's observations, up to the rounding of another number of rows.

    Args:
        agent: the agent.
        most: maximum number of sessions.
        idle: seconds after which an unused session is removed when another one needs its place.
    """

    def __init__(self, agent: TrainedAgent, most: int, idle: float):
        self.agent, self.most, self.idle = agent, most, idle
        self.known: dict[str, Session] = {}
        self._waiting: list[tuple[Session, np.ndarray, bool, asyncio.Future[Any]]] = []
        self._shape = () if isinstance(agent.scaling, OneHot) else agent.scaling.mean.shape

    def warm_up(self) -> None:
        """Compile the agent for every number of rows."""
        for rows in SIZES:
            if rows <= max(4, 2 * self.most):
                self.agent.predict(np.full((rows, *self._shape), self.agent.first, np.float64))

    def open(self) -> Session:
        """Begin a session. Raises `Full` if there are as many as allowed, and none of them is idle."""
        if len(self.known) >= self.most:
            oldest = min(self.known.values(), key=lambda session: session.used)
            if time.monotonic() - oldest.used < self.idle:
                raise Full(f"sessions: there are {self.most} already; end one first (DELETE).")
            self.close(oldest.name)
        session = Session(secrets.token_urlsafe(16))
        self.known[session.name] = session
        return session

    def close(self, name: str) -> bool:
        """End a session. Returns whether there was one."""
        return self.known.pop(name, None) is not None

    async def act(self, session: Session, observation: Any, start: bool) -> Any:
        """Return the action of a session for an observation, as JSON.

        Args:
            session: the session.
            observation: one observation.
            start: whether a new episode starts.

        Raises:
            UsageError: if the observation is invalid, or the session waits for an action already.
        """
        if session.busy:
            raise UsageError("session: it waits for the action of an earlier observation; send one after the other.")
        readings = self._checked(observation)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._answer)
        self._waiting.append((session, readings, start or session.state is None, answer))
        session.busy, session.used = True, time.monotonic()
        return await answer

    def _checked(self, observation: Any) -> np.ndarray:
        """Return an observation as an array. One session must not fail because of another's observation."""
        try:
            readings = np.asarray(observation, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError("observation: is not an array of numbers.") from error
        if readings.shape != self._shape:
            raise UsageError(f"observation: has shape {list(readings.shape)}, not {list(self._shape)}.")
        missing = self.agent.agent.filter.accepts_gaps
        if np.isinf(readings).any() or (np.isnan(readings).any() and not missing):
            raise UsageError(
                "observation: contains null, NaN or infinite values; repeat the last finite one instead"
                + (", or give null for a reading that is missing." if missing else ".")
            )
        if isinstance(self.agent.scaling, OneHot) and not (
            readings == round(float(readings)) and 0 <= readings - self.agent.first < self.agent.scaling.size
        ):
            raise UsageError(
                f"observation: {float(readings):g} is not one of the {self.agent.scaling.size} symbols from "
                f"{self.agent.first}."
            )
        return readings

    def _answer(self) -> None:
        """Answer all sessions that wait."""
        waiting, self._waiting = self._waiting, []
        for first in range(0, len(waiting), SIZES[-1]):
            self._answer_some(waiting[first : first + SIZES[-1]])

    def _answer_some(self, waiting: list[tuple[Session, np.ndarray, bool, asyncio.Future[Any]]]) -> None:
        for session, *_ in waiting:
            session.busy = False
        try:
            actions, states = self._predicted(waiting)
        except Exception as error:  # a user's filter may raise anything; the service goes on
            for *_, answer in waiting:
                if not answer.done():
                    answer.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
            return
        for row, (session, _, _, answer) in enumerate(waiting):
            session.state = ActingState(*(part[row : row + 1] for part in states))
            session.steps += 1
            if not answer.done():  # its connection is gone
                answer.set_result(actions[row])

    def _predicted(self, waiting: list[tuple[Session, np.ndarray, bool, Any]]) -> tuple[list[Any], ActingState]:
        """Return the actions of all that wait, and their new states."""
        count, rows = len(waiting), next(size for size in SIZES if size >= len(waiting))
        readings = np.stack([readings for _, readings, _, _ in waiting])
        starts = np.array([start for _, _, start, _ in waiting])
        states = [session.state for session, *_ in waiting]
        known = next((state for state in states if state is not None), None)
        if known is None:
            actions, state = self.agent.predict(_filled(readings, rows), None)
        else:
            parts = [state if state is not None else known for state in states]  # those that start use nothing of it
            joined = ActingState(*(_filled(np.concatenate(part), rows) for part in zip(*parts, strict=True)))
            actions, state = self.agent.predict(_filled(readings, rows), joined, _filled(starts, rows))
        return np.asarray(actions)[:count].tolist(), state


def _filled(rows: np.ndarray, count: int) -> np.ndarray:
    """Return the rows, and the last of them again up to a number of rows."""
    return rows if len(rows) == count else np.concatenate([rows, np.repeat(rows[-1:], count - len(rows), axis=0)])


Clock = Callable[[], float]


class Bucket:
    """Limits a rate: `take` is allowed `rate` times a second on average, and `burst` times at once."""

    def __init__(self, rate: float, burst: float, clock: Clock = time.monotonic):
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left, self._at = burst, clock()

    def take(self) -> bool:
        """Return whether another one is allowed."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
