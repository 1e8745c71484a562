"""Acting: (agent, vector environment) → episodes. The only Python loop over time.

All rows of a vector environment advance in lockstep. A row whose episode has ended starts another or, when no more are
wanted, waits. Whether more are wanted is decided after the whole lockstep, and every episode that was started is
finished: to stop at the first row that fills a batch would prefer short episodes.

The seed of an episode and the noise of its actions derive from (seed, iteration, number of the episode, step), so they
depend neither on threads nor on the other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from jaxtyping import Float

from rpsp import sentinel
from rpsp.algorithms.policies import Agent
from rpsp.data.episodes import Episode
from rpsp.data.scaling import OneHot, Scaling
from rpsp.errors import FAILED_SHARE, DivergedError, EnvironmentFailure, RpspError, UsageError
from rpsp.filters.base import AbstractFilter
from rpsp.training.acting import Lockstep, View, _encoder, _Noise, _seed_sequence, lockstep
from rpsp.training.actions import ActionRange, ActionSymbols, _name, action_units

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
) -> list[Episode]:
    """Episodes of standard normal actions, clipped; of uniformly random ones where actions are discrete.

    Give either how many `episodes` there shall be, or how many `samples` (steps) at least. Observations are the
    environment's own, to fit a `Scaling` to; actions are scaled so that [−1, 1] is their range. Symbols (of Discrete
    spaces) come as one column. An episode shorter than `min_length` steps is drawn again, as is one that failed, at most
    `max_tries` in all (unless given, 100 for each episode wanted, or for each `min_length` samples). An episode in which
    an environment of `rpsp.make` raises has failed; with `drop_raising=False` the exception ends the exploration instead.
    """
    name, wanted = _one_of_two(episodes, samples)
    nothing = _no_states(envs)
    if max_tries is None:
        max_tries = 100 * (wanted if episodes is not None else -(-wanted // max(1, min_length)))
    units = action_units(envs)
    noise = _Noise(units, envs.num_envs, lambda row, number: _seed_sequence(seed, EXPLORING, number, 1))

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
        (record,) = _play(envs, act, units, [part], encode=np.copy)
    found = record.episodes()
    return [_as_symbols(episode) for episode in found] if isinstance(units, ActionSymbols) else found


@dataclass(frozen=True, eq=False)
class Collected:
    """The episodes of one batch, in the order they were started, and what happened on the way."""

    episodes: list[Episode]
    """In scaled units: `actions` as executed (clipped), `drawn` as the policy drew them."""
    dropped: int
    """Episodes left out because their simulation failed or raised."""
    states: list[Float[np.ndarray, "_ q"]] | None = None
    """The pre-states q_t that the agent acted on, if they were asked for."""

    @property
    def returns(self) -> Float[np.ndarray, " episode"]:
        """The undiscounted return of every episode."""
        return np.array([episode.rewards.sum() for episode in self.episodes if episode.rewards is not None])

    @property
    def samples(self) -> int:
        """Steps in all."""
        return sum(map(len, self.episodes))

    @property
    def stats(self) -> dict[str, float | int]:
        """What a log wants to know."""
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
) -> Collected:
    """Whole episodes of an agent: at least `samples` steps of them, or so many `episodes`.

    No episode is started once finished and running ones have `samples` steps together. `scaling` is what observations
    are encoded by. A `deterministic` agent does the most probable action. `drop_raising` is as in `explore`.
    """
    return _collect(
        lockstep(agent, deterministic),
        agent.filter,
        envs,
        encode=_encoder([scaling], envs.num_envs),
        samples=samples,
        episodes=episodes,
        seeds=[seed],
        iteration=iteration,
        keep_states=keep_states,
        drop_raising=drop_raising,
    )[0]


def collect_together(
    agents: Agent,
    envs: VectorEnv,
    *,
    scalings: Sequence[Scaling | OneHot],
    samples: int,
    seeds: Sequence[int],
    iteration: int,
    drop_raising: bool = True,
) -> list[Collected]:
    """What `collect` gives each of several agents, in one rollout; `agents` are stacked along a first axis.

    Each agent has as many rows of `envs` as the others, and a seed and units of its own.
    """
    count = len(seeds)
    return _collect(
        lockstep(agents, False, count),
        jax.tree.map(lambda x: x[0], agents.filter),
        envs,
        encode=_encoder(scalings, envs.num_envs // count),
        samples=samples,
        episodes=None,
        seeds=seeds,
        iteration=iteration,
        keep_states=True,
        drop_raising=drop_raising,
    )


def _collect(
    act_all: Lockstep,
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
) -> list[Collected]:
    """One rollout of as many agents as there are seeds; `filter` is that of any of them."""
    wanted = _one_of_two(episodes, samples)[1]
    units, each = action_units(envs), envs.num_envs // len(seeds)
    noise = _Noise(
        units, envs.num_envs, lambda row, number: _seed_sequence(seeds[row // each], ACTING, iteration, 0, number)
    )
    q = np.broadcast_to(np.asarray(filter.init(), np.float32), (envs.num_envs, filter.size))
    nothing = _no_states(envs)

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
        records = _play(envs, act, units, [part(i, seed) for i, seed in enumerate(seeds)], encode=encode)
    return [Collected(r.episodes(), r.tally.dropped, r.states() if keep_states else None) for r in records]


@contextmanager
def _raising_episodes_dropped(envs: VectorEnv, wanted: bool) -> Iterator[None]:
    """Within this context an exception in a step ends that row's episode, where the environments can do so."""
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
    """Which of the two is given, and how many."""
    if (episodes is None) == (samples is None):
        raise UsageError(f"episodes={episodes} and samples={samples}: give one of them, and only one.")
    name, wanted = ("episodes", episodes) if episodes is not None else ("samples", samples)
    assert wanted is not None
    if wanted < 1:
        raise UsageError(f"{name}={wanted}: must be at least 1.")
    return name, wanted


def _missing(tally: Tally, wanted: int, whole_episodes: bool, rows: int) -> int:
    """How many episodes may be started now."""
    if whole_episodes:
        return wanted - tally.kept - tally.running
    return 0 if tally.samples >= wanted else rows


def _as_symbols(episode: Episode) -> Episode:
    """One-hot actions as one column of symbols."""
    actions = episode.actions.argmax(axis=1)[:, None].astype(np.float64)
    return replace(episode, actions=actions, drawn_actions=None)


class Frame(NamedTuple):
    """What came of a lockstep."""

    seen: Float[np.ndarray, "row obs"]
    drawn: Float[np.ndarray, "row act"]
    executed: Float[np.ndarray, "row act"]
    observations: Float[np.ndarray, "row obs"]
    rewards: Float[np.ndarray, " row"]
    states: Float[np.ndarray, "row q"]
    """The pre-states acted on; no columns where nobody asked."""


@dataclass
class Span:
    """Where an episode lies in the frames: row `row`, from frame `first` to before frame `last`."""

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
    """How far a rollout has come."""

    started: int = 0
    """Episodes, as are all but the last."""
    kept: int = 0
    dropped: int = 0
    running: int = 0
    failed: int = 0
    """Of those dropped."""
    raised: int = 0
    """Of those that failed: the environment raised."""
    what: str = ""
    """What it raised the last time."""
    undecided: int = 0
    """Of those that failed: the agent's action was not finite."""
    samples: int = 0
    """Steps of the episodes that are kept or running."""


@dataclass
class Part:
    """Rows of a rollout that fill one batch, and how far they have come."""

    rows: range
    keep: Callable[[Span], bool]
    """Which of the episodes that ended are wanted."""
    more: Callable[[Tally], int]
    """How many episodes may be started now."""
    seed_of: Callable[[int], np.random.SeedSequence]
    """The seed of an episode by its number."""
    where: str
    """What this is, for messages."""
    tally: Tally = field(default_factory=Tally)
    kept: list[Span] = field(default_factory=list)


class Record(NamedTuple):
    """All frames of a rollout, stacked by time, and where in them the episodes lie."""

    frames: Frame
    spans: list[Span]
    tally: Tally

    def episodes(self) -> list[Episode]:
        return [self._cut(span) for span in self.spans]

    def states(self) -> list[Float[np.ndarray, "_ q"]]:
        """The pre-states of each episode."""
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


def _play(
    envs: VectorEnv,
    act: Callable[[View], tuple[np.ndarray, np.ndarray]],
    units: ActionRange | ActionSymbols,
    parts: Sequence[Part],
    *,
    encode: Callable[[np.ndarray], np.ndarray],
) -> list[Record]:
    """Step all rows until no episode runs and no part wants more; a record for each part.

    `act` gives the actions (and the states they came from); `encode` the units of observations. Whether more episodes are
    started is decided after a whole lockstep. An action that is not finite never reaches an environment: its episode has
    failed. Environments that reset themselves are stepped without their autoreset.
    """
    if envs.metadata.get("autoreset_mode") != AutoresetMode.DISABLED:
        # Imported here because it imports MuJoCo, which a saved agent can be loaded without.
        from rpsp.envs.make import without_autoreset

        envs = without_autoreset(envs)
    frames: list[Frame] = []
    part_of = [part for part in parts for _ in part.rows]
    where = ", ".join(part.where for part in parts)
    sentinel.note_place(f"{_name(envs)}, {where}")
    in_row: list[Span | None] = [None] * envs.num_envs
    rows, as_rows = envs.num_envs, _table(envs)
    running, nowhere = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    numbers = np.zeros(rows, np.int64)
    executed = np.zeros((rows, units.size), np.float32)
    seen = np.zeros(0)
    while True:
        now = len(frames)
        starts = np.zeros(rows, np.bool_)
        begin: list[int] = []
        for part in parts:
            if part.tally.running < len(part.rows) and (wanted := part.more(part.tally)) > 0:
                for row in [row for row in part.rows if not running[row]][:wanted]:
                    in_row[row] = Span(part.tally.started, row, now, now)
                    numbers[row] = part.tally.started
                    running[row] = starts[row] = True
                    part.tally.started += 1
                    part.tally.running += 1
                    begin.append(row)
        if begin:
            seeds = {row: part_of[row].seed_of(int(numbers[row])) for row in begin}
            seen = encode(as_rows(_reset(envs, seeds, where, all_rows=now == 0)))
        elif not any(part.tally.running for part in parts):
            sentinel.note_place("")
            # As np.stack, in a third of the time.
            stacked = Frame(*(np.concatenate(each).reshape(now, *each[0].shape) for each in zip(*frames, strict=True)))
            return [_finished(part, stacked, envs) for part in parts]
        view = View(now, begin, running, starts, seen, executed, numbers)
        drawn, states = act(view)
        undecided = nowhere
        if not math.isfinite(np.add.reduce(drawn, axis=None)):  # of a sum, to look at one number a lockstep
            undecided = ~np.isfinite(drawn.sum(axis=1))
            drawn = np.where(undecided[:, None], np.float32(0), drawn)
        executed = units.clip(drawn)
        actions = units.decode(executed)
        sentinel.note_step(now + 1)
        try:
            readings, rewards, terminated, truncated, infos = envs.step(actions)
        except (Exception, SystemExit) as error:
            _blame(error, envs, where, f"step {now + 1}")
        observations = encode(as_rows(readings))
        frames.append(Frame(seen, drawn, executed, observations, np.asarray(rewards, np.float64), states))
        seen = observations
        for part in parts:
            part.tally.samples += part.tally.running
        over = running & (terminated | truncated | undecided)
        if not np.logical_or.reduce(over):  # as `over.any()`, in half the time
            continue
        failed, raised = infos.get("failed", nowhere), infos.get("raised")
        for row in np.flatnonzero(over).tolist():
            span, part = in_row[row], part_of[row]
            assert span is not None
            span.last, span.terminated, span.failed = now + 1, bool(terminated[row]), bool(failed[row] | undecided[row])
            in_row[row], running[row] = None, False
            tally = part.tally
            tally.running -= 1
            if part.keep(span):
                part.kept.append(span)
                tally.kept += 1
            else:
                tally.dropped += 1
                tally.failed += span.failed
                tally.undecided += bool(undecided[row])
                if raised is not None and raised[row] is not None:
                    tally.raised += 1
                    tally.what = f"{raised[row]} in step {len(span)} of an episode"
                tally.samples -= len(span)
                _check_soundness(part, envs, whole=False)


def _finished(part: Part, frames: Frame, envs: VectorEnv) -> Record:
    """What a part came to, its episodes in the order in which they were started."""
    _check_soundness(part, envs, whole=True)
    return Record(frames, sorted(part.kept, key=lambda span: span.number), part.tally)


def _check_soundness(part: Part, envs: VectorEnv, *, whole: bool) -> None:
    """Raise if too many episodes have failed: more than a fifth of a whole batch, and more than two.

    Episodes that fail are short, and so the first to end. Before the batch is whole it takes a majority that keeps it from
    ever being so.
    """
    tally = part.tally
    ended = tally.kept + tally.dropped
    if tally.failed <= (max(2, FAILED_SHARE * ended) if whole else 10 + len(part.rows) + ended - tally.failed):
        return
    if 2 * tally.raised > tally.failed:
        raise EnvironmentFailure(
            f"{_name(envs)} raised {tally.what}, the last time; {tally.failed} of {ended} episodes failed in "
            f"{part.where}, and at most a fifth may; check that it runs under Gymnasium alone"
        )
    if 2 * tally.undecided > tally.failed:
        why = "the agent's actions were not finite; it has diverged, train with a smaller step (max_kl, learning_rate)."
    else:
        seen = getattr(envs.unwrapped, "failure", "")
        what = f"in the first of them {seen}" if seen else "a sensor or reward was not finite"
        why = (
            f"{what}; mend that, or, where the simulation diverges under its actions, give it a smaller time step or "
            "actions less room."
        )
    raise DivergedError(f"{_name(envs)}: {tally.failed} of {ended} episodes failed in {part.where}: {why}")


def _reset(envs: Any, seeds: dict[int, np.random.SeedSequence], where: str, *, all_rows: bool) -> Any:
    """Reset these rows with these seeds (at first the others too, which nobody looks at); the readings of all rows."""
    mask = np.array([all_rows or row in seeds for row in range(envs.num_envs)])
    numbers = [int(seeds[row].generate_state(1)[0]) if row in seeds else None for row in range(envs.num_envs)]
    try:
        readings, _ = envs.reset(seed=numbers, options={"reset_mask": mask})
    except (Exception, SystemExit) as error:
        _blame(error, envs, where, f"the reset of rows {sorted(seeds)}")
    return readings


def _table(envs: VectorEnv) -> Callable[[Any], Float[np.ndarray, "row obs"]]:
    """What makes a float table of readings; of a Discrete space, of symbols counted from 0, one column."""
    space, rows = envs.single_observation_space, envs.num_envs  # asked once: every wrapper passes the question on
    if isinstance(space, Discrete):
        return lambda readings: np.array(readings, np.float64).reshape(rows, -1) - space.start
    return lambda readings: np.asarray(readings, np.float64).reshape(rows, -1)


def _no_states(envs: VectorEnv) -> Float[np.ndarray, "row 0"]:
    return np.empty((envs.num_envs, 0), np.float32)


def _blame(error: BaseException, envs: VectorEnv, where: str, doing: str) -> NoReturn:
    """Say which environment raised what, in which rollout and at which step."""
    if isinstance(error, EnvironmentFailure):
        raise EnvironmentFailure(f"{error} ({_name(envs)}, {doing} of {where})") from error
    if isinstance(error, RpspError):
        raise error
    raise EnvironmentFailure(
        f"{_name(envs)} raised {type(error).__name__} in {doing} of {where}: {error}; check that it runs under Gymnasium."
    ) from error
