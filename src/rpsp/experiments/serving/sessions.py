"""Sessions of a served agent: their states, and the actions for their observations."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rpsp.errors import UsageError
from rpsp.experiments.agents import ActingState, TrainedAgent


@dataclass(eq=False)
class Session:
    """The state of one controlled system."""

    name: str
    state: ActingState | None = None
    """One row. None before the first observation."""
    used: float = field(default_factory=time.monotonic)
    """When it was last used."""


class Full(UsageError):
    """Error: there are as many sessions as allowed."""


class Sessions:
    """All sessions of a service.

    Every observation is a call of `agent.predict` for one row. Its actions are therefore the same to the last bit, however
    many sessions there are. A call for all rows that wait would be faster, but programs for other numbers of rows round
    otherwise, and a filter can make large differences of small ones.

    Args:
        agent: the agent.
        most: maximum number of sessions.
        idle: seconds after which an unused session is removed when another one needs its place.
    """

    def __init__(self, agent: TrainedAgent, most: int, idle: float):
        self.agent, self.most, self.idle = agent, most, idle
        self.known: dict[str, Session] = {}

    def warm_up(self) -> None:
        """Compile the agent."""
        space = self.agent.spaces["observation"]
        self.agent.predict(np.full(space.shape or (), self.agent.first, np.float64))

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

    def act(self, session: Session, observation: Any, start: bool) -> Any:
        """Return the action of a session for an observation, as JSON.

        Args:
            session: the session.
            observation: one observation. None: a reading that is missing.
            start: whether a new episode starts.

        Raises:
            UsageError: if the observation is invalid.
            RuntimeError: if the agent cannot act; the session keeps its state.
        """
        session.used = time.monotonic()
        readings = self._checked(observation)
        try:
            action, session.state = self.agent.predict(readings, session.state, start or session.state is None)
        except UsageError:
            raise
        except Exception as error:  # a user's filter may raise anything; the service goes on
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        return np.asarray(action).tolist()

    def _checked(self, observation: Any) -> np.ndarray:
        """Return an observation as an array of one row's shape."""
        try:
            readings = np.asarray(observation, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError("observation: is not an array of numbers.") from error
        shape = self.agent.spaces["observation"].shape or ()
        if readings.shape != shape:
            raise UsageError(f"observation: has shape {list(readings.shape)}, not {list(shape)}.")
        return readings


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
