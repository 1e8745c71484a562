"""Collecting whole episodes: (agent, vector environment) → episodes.

The seed of an episode and the noise of its actions are derived from (seed, iteration, number of the episode, step), so they
depend neither on threads nor on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from gymnasium.vector import VectorEnv
from jaxtyping import Float

from rpsp.algorithms.policies import Agent
from rpsp.data import trees
from rpsp.data.episodes import Episode
from rpsp.data.scaling import OneHot, Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter
from rpsp.training.acting import Lockstep, View, _encoder, _Noise, _seed_sequence, lockstep
from rpsp.training.actions import ActionSymbols, _name, action_units
from rpsp.training.frames import Part, Tally
from rpsp.training.interleaved import Interleaved
from rpsp.training.stepping import play

EXPLORING, ACTING = 0, 1  # streams of seeds: exploration never repeats an iteration's


def explore(
    envs: VectorEnv,
    *,
    seed: int,
    episodes: int | None = None,
    samples: int | None = None,
    min_length: int = 1,
    max_tries: int | None = None,
    drop_raising: bool = True,
    pink_noise: float = 0.0,
) -> list[Episode]:
    """Record episodes of random actions: standard normal and clipped, or uniformly random if actions are discrete.

    Observations are in the environment's own units, to fit a `Scaling` to. Actions are scaled so that [−1, 1] is their
    range. Symbols (of Discrete spaces) are one column. An episode that failed or is shorter than `min_length` is
    discarded, and another one is started.

    Args:
        envs: the environments; all rows are used.
        seed: the root of all randomness.
        episodes: number of episodes. Give either this or `samples`.
        samples: minimum number of steps of all episodes together.
        min_length: minimum number of steps of an episode.
        max_tries: maximum number of episodes to start. Default: 100 for each episode wanted, or for each `min_length`
            samples.
        drop_raising: whether an episode in which an environment of `rpsp.make` raises an exception counts as failed. If
            False, the exception ends the exploration.
        pink_noise: if it is above 0, the noise of every second episode is pink.

    Returns:
        The episodes, in the order in which they were started.

    Raises:
        UsageError: if `max_tries` episodes are not enough.
        EnvironmentFailure: if an environment raises an exception that is not dropped, or does so too often.
        DivergedError: if too many episodes fail for another reason.
    """
    name, wanted = _one_of_two(episodes, samples)
    nothing = _no_states(envs)
    if max_tries is None:
        max_tries = 100 * (wanted if episodes is not None else -(-wanted // max(1, min_length)))
    units = action_units(envs)
    noise = _Noise(
        units,
        envs.num_envs,
        lambda row, number: _seed_sequence(seed, EXPLORING, number, 1),
        # Half of them, because the fit of a filter needs fast changes of actions as well.
        lambda row, number: float(pink_noise > 0 and number % 2 == 1),
    )

    def act(view: View) -> tuple[np.ndarray, np.ndarray]:
        return units.random(noise.at(view)), nothing

    def more(tally: Tally) -> int:
        missing = _missing(tally, wanted, episodes is not None, envs.num_envs)
        if missing > 0 and tally.started >= max_tries:
            raise UsageError(
                f"min_length={min_length}: of {tally.started} random episodes of {_name(envs)} only {tally.kept} were "
                f"that long, and {wanted} {name} are wanted; ask for shorter windows (a smaller future), for fewer {name}, "
                "or for a method without windows (fm2, gru32)."
            )
        return min(missing, max_tries - tally.started)

    part = Part(
        range(envs.num_envs),
        keep=lambda span: len(span) >= min_length and not span.failed,
        more=more,
        seed_of=lambda number: _seed_sequence(seed, EXPLORING, number, 0),
        where=f"the exploration of seed {seed}",
    )
    with _raising_episodes_dropped(envs, drop_raising):
        (played,) = play(envs, act, units, [part], encode=np.copy)
    found = played.episodes()
    return [_as_symbols(episode) for episode in found] if isinstance(units, ActionSymbols) else found


@dataclass(frozen=True, eq=False)
class Collected:
    """The episodes of one batch, in the order in which they were started."""

    episodes: list[Episode]
    """In scaled units: `actions` as executed (clipped), `drawn_actions` as drawn by the policy."""
    dropped: int
    """Number of episodes left out because their simulation failed or raised an exception."""
    states: list[Float[np.ndarray, "_ q"]] | None = None
    """The pre-states q_t that the agent acted on, if they are kept."""

    @property
    def returns(self) -> Float[np.ndarray, " episode"]:
        """The undiscounted return of every episode."""
        return np.array([episode.rewards.sum() for episode in self.episodes if episode.rewards is not None])

    @property
    def samples(self) -> int:
        """Total number of steps."""
        return sum(map(len, self.episodes))

    @property
    def stats(self) -> dict[str, float | int]:
        """Metrics for the log."""
        return {
            "mean_return": float(self.returns.mean()),
            "std_return": float(self.returns.std()),
            "mean_length": self.samples / len(self.episodes),
            "episodes": len(self.episodes),
            "samples": self.samples,
            "dropped_episodes": self.dropped,
        }


def collect(
    agent: Agent,
    envs: VectorEnv,
    *,
    scaling: Scaling | OneHot,
    samples: int | None = None,
    episodes: int | None = None,
    seed: int,
    iteration: int,
    deterministic: bool = False,
    keep_states: bool = False,
    drop_raising: bool = True,
    learner: Interleaved | None = None,
    pink_noise: float = 0.0,
) -> Collected:
    """Collect whole episodes of an agent.

    Args:
        agent: the agent.
        envs: the environments; all rows are used.
        scaling: scaling of the observations.
        samples: no episode is started once finished and running episodes have this many steps together. Give either
            this or `episodes`.
        episodes: number of episodes.
        seed: the seed of the run.
        iteration: the iteration of the run. Together with `seed` it determines all random numbers.
        deterministic: whether to take the most probable action instead of sampling.
        keep_states: whether to keep the pre-states of the agent.
        drop_raising: as in `explore`.
        learner: the agent, if it learns while episodes are in progress; it samples its actions.
        pink_noise: fraction of the variance of the actions' noise that is pink.

    Returns:
        The episodes, in the order in which they were started.

    Raises:
        EnvironmentFailure: if an environment raises an exception that is not dropped, or does so too often.
        DivergedError: if too many episodes fail for another reason.
    """
    return _collect(
        lockstep(agent, deterministic) if learner is None else learner,
        agent.filter,
        envs,
        encode=_encoder([scaling], envs.num_envs),
        samples=samples,
        episodes=episodes,
        seeds=[seed],
        iteration=iteration,
        keep_states=keep_states,
        drop_raising=drop_raising,
        pink_noise=[pink_noise],
    )[0]


def collect_together(
    agents: Agent,
    envs: VectorEnv,
    *,
    scalings: Sequence[Scaling | OneHot],
    samples: int | None = None,
    episodes: int | None = None,
    seeds: Sequence[int],
    iteration: int,
    deterministic: bool = False,
    drop_raising: bool = True,
    learner: Interleaved | None = None,
    pink_noise: Sequence[float] = (),
) -> list[Collected]:
    """Collect whole episodes of several agents in one rollout, each with its own seed and scaling.

    Args:
        agents: the agents, stacked along a first axis.
        envs: the environments. Each agent gets the same number of rows.
        scalings: scaling of each agent's observations.
        samples: as in `collect`, for each agent.
        episodes: as in `collect`, for each agent.
        seeds: the seed of each agent's run.
        iteration: the iteration of the runs.
        deterministic: whether to take the most probable actions instead of sampling.
        drop_raising: as in `explore`.
        learner: the agents, if they learn while episodes are in progress.
        pink_noise: as in `collect`, of each agent. Default: 0.

    Returns:
        The episodes of each agent, with pre-states. Up to rounding they are the same as those of `collect`.
    """
    count = len(seeds)
    return _collect(
        lockstep(agents, deterministic, count) if learner is None else learner,
        trees.take(agents.filter, 0),
        envs,
        encode=_encoder(scalings, envs.num_envs // count),
        samples=samples,
        episodes=episodes,
        seeds=seeds,
        iteration=iteration,
        keep_states=True,
        drop_raising=drop_raising,
        pink_noise=pink_noise or [0.0] * count,
    )


def _collect(
    acting: Lockstep | Interleaved,
    filter: AbstractFilter,
    envs: VectorEnv,
    *,
    encode: Callable[[np.ndarray], np.ndarray],
    samples: int | None,
    episodes: int | None,
    seeds: Sequence[int],
    iteration: int,
    keep_states: bool,
    drop_raising: bool,
    pink_noise: Sequence[float],
) -> list[Collected]:
    """Collect episodes of as many agents as there are seeds; `filter` is that of any of them."""
    wanted = _one_of_two(episodes, samples)[1]
    units, each = action_units(envs), envs.num_envs // len(seeds)
    noise = _Noise(
        units,
        envs.num_envs,
        lambda row, number: _seed_sequence(seeds[row // each], ACTING, iteration, 0, number),
        lambda row, number: pink_noise[row // each],
    )
    q = np.broadcast_to(np.asarray(filter.init(), np.float32), (envs.num_envs, filter.size))
    nothing = _no_states(envs)
    act_all, watch = (acting.act, acting.watch) if isinstance(acting, Interleaved) else (acting, None)

    def act(view: View) -> tuple[np.ndarray, np.ndarray]:
        nonlocal q
        q, drawn = act_all(q, view.executed, view.seen, view.starts, noise.at(view))
        return drawn, q if keep_states else nothing

    def part(i: int, seed: int) -> Part:
        return Part(
            range(i * each, (i + 1) * each),
            keep=lambda span: not span.failed,
            more=lambda tally: _missing(tally, wanted, episodes is not None, each),
            seed_of=lambda number: _seed_sequence(seed, ACTING, iteration, 1, number),
            where=f"iteration {iteration} of seed {seed}",
        )

    with _raising_episodes_dropped(envs, drop_raising):
        played = play(envs, act, units, [part(i, seed) for i, seed in enumerate(seeds)], encode=encode, watch=watch)
    if isinstance(acting, Interleaved):
        acting.flush()
    return [Collected(p.episodes(), p.tally.dropped, p.states() if keep_states else None) for p in played]


@contextmanager
def _raising_episodes_dropped(envs: VectorEnv, wanted: bool) -> Iterator[None]:
    """Let an exception in a step end that row's episode in this context, if the environments support it."""
    switch = getattr(envs.unwrapped, "end_raising_episodes", None)
    if switch is None or not wanted:
        yield
        return
    switch(True)
    try:
        yield
    finally:
        switch(False)


def _one_of_two(episodes: int | None, samples: int | None) -> tuple[str, int]:
    """Return which of the two is given, and its value."""
    if (episodes is None) == (samples is None):
        raise UsageError(f"episodes={episodes} and samples={samples}: give one of them, and only one.")
    name, wanted = ("episodes", episodes) if episodes is not None else ("samples", samples)
    assert wanted is not None
    if wanted < 1:
        raise UsageError(f"{name}={wanted}: must be at least 1.")
    return name, wanted


def _missing(tally: Tally, wanted: int, whole_episodes: bool, rows: int) -> int:
    """Return the number of episodes that may be started now."""
    if whole_episodes:
        return wanted - tally.kept - tally.running
    return 0 if tally.samples >= wanted else rows


def _as_symbols(episode: Episode) -> Episode:
    """Convert one-hot actions to one column of symbols."""
    actions = episode.actions.argmax(axis=1)[:, None].astype(np.float64)
    return replace(episode, actions=actions, drawn_actions=None)


def _no_states(envs: VectorEnv) -> Float[np.ndarray, "row 0"]:
    """Return an array without columns, for rollouts that keep no pre-states."""
    return np.empty((envs.num_envs, 0), np.float32)
