"""The recording of a rollout: one frame per lockstep, and the spans of frames and rows in which episodes lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from rpsp.data.episodes import Episode


class Frame(NamedTuple):
    """One lockstep: what the rows observed before it, what they did and what followed."""

    seen: Float[np.ndarray, "row obs"]
    """The observations before the step."""
    drawn: Float[np.ndarray, "row act"]
    """The actions as drawn by the policy."""
    executed: Float[np.ndarray, "row act"]
    """The actions as executed (clipped)."""
    observations: Float[np.ndarray, "row obs"]
    """The observations after the step."""
    rewards: Float[np.ndarray, " row"]
    states: Float[np.ndarray, "row q"]
    """The pre-states of the agent. Without columns if they are not kept."""


@dataclass
class Span:
    """The place of an episode in the frames: row `row`, from frame `first` to before frame `last`."""

    number: int
    row: int
    first: int
    last: int
    terminated: bool = False
    failed: bool = False

    def __len__(self) -> int:
        return self.last - self.first


@dataclass
class Tally:
    """Counts of episodes and steps of a part of a rollout."""

    started: int = 0
    """Number of episodes started."""
    kept: int = 0
    """Number of finished episodes that are kept."""
    dropped: int = 0
    """Number of finished episodes that are not kept."""
    running: int = 0
    """Number of episodes in progress."""
    failed: int = 0
    """Number of dropped episodes that failed."""
    raised: int = 0
    """Number of failed episodes in which the environment raised an exception."""
    what: str = ""
    """Description of the last exception."""
    undecided: int = 0
    """Number of failed episodes in which the agent's action was NaN or infinite."""
    samples: int = 0
    """Number of steps of the episodes that are kept or in progress."""


@dataclass
class Part:
    """Rows of a rollout that fill one batch together, and their progress."""

    rows: range
    keep: Callable[[Span], bool]
    """Whether to keep a finished episode."""
    more: Callable[[Tally], int]
    """The number of episodes that may be started now."""
    seed_of: Callable[[int], np.random.SeedSequence]
    """The seed of an episode by its number."""
    where: str
    """Description of the part, for messages."""
    tally: Tally = field(default_factory=Tally)
    kept: list[Span] = field(default_factory=list)


class Played(NamedTuple):
    """All frames of a rollout, stacked by time, and the episodes of one of its parts."""

    frames: Frame
    spans: list[Span]
    tally: Tally

    def episodes(self) -> list[Episode]:
        """Return the episodes, in the order in which they were started."""
        return [self._cut(span) for span in self.spans]

    def states(self) -> list[Float[np.ndarray, "_ q"]]:
        """Return the pre-states of each episode."""
        return [self.frames.states[span.first : span.last, span.row] for span in self.spans]

    def _cut(self, span: Span) -> Episode:
        here = (slice(span.first, span.last), span.row)
        return Episode(
            observations=np.concatenate([self.frames.seen[span.first, span.row][None], self.frames.observations[here]]),
            actions=self.frames.executed[here],
            rewards=self.frames.rewards[here],
            drawn_actions=self.frames.drawn[here],
            terminated=span.terminated,
            truncated=not span.terminated,
        )
