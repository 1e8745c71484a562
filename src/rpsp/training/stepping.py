"""The only Python loop over time: reset, act, step, finish.

All rows of a vector environment advance in lockstep. A row whose episode has ended starts another one or, if no more are
wanted, waits. This is decided after the whole lockstep, and every episode that was started is finished: stopping at the
first row that fills a batch would prefer short episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from jaxtyping import Bool, Float

from rpsp import sentinel
from rpsp.envs.structures import images_in
from rpsp.errors import FAILED_SHARE, DivergedError, EnvironmentFailure, RpspError
from rpsp.training.acting import View
from rpsp.training.actions import Units, _name
from rpsp.training.frames import Frame, Part, Played, Span


def play(
    envs: VectorEnv,
    act: Callable[[View], tuple[np.ndarray, np.ndarray]],
    units: Units,
    parts: Sequence[Part],
    *,
    encode: Callable[[np.ndarray], np.ndarray],
    watch: Callable[[View, Frame, Ends], None] | None = None,
) -> list[Played]:
    """Step all rows until no episode is in progress and no part wants more.

    An action that is NaN or infinite never reaches an environment: its episode has failed. Environments that reset
    themselves are stepped without their autoreset.

    Args:
        envs: the environments.
        act: returns the actions of all rows and the pre-states of the agent.
        units: scaling of the actions.
        parts: the parts of the rollout, each with its own rows.
        encode: scaling of the observations.
        watch: called after every lockstep with what was known before it, its frame, and which episodes it ended.

    Returns:
        The episodes of each part.

    Raises:
        EnvironmentFailure: if an environment raises an exception, or does so in too many episodes.
        DivergedError: if too many episodes fail for another reason.
    """
    if envs.metadata.get("autoreset_mode") != AutoresetMode.DISABLED:
        from rpsp.envs.make import without_autoreset  # loads MuJoCo: start-up time of a saved agent

        envs = without_autoreset(envs)
    rollout = _Rollout(envs, units, parts, encode)
    sentinel.note_place(f"{_name(envs)}, {rollout.where}")
    while (view := rollout.reset()) is not None:
        drawn, states = act(view)
        ends = rollout.step(drawn, states)
        if watch is not None:
            watch(view, rollout.frames[-1], ends)
        rollout.finish(ends)
    sentinel.note_place("")
    return rollout.played()


class Ends(NamedTuple):
    """How the episodes in the rows ended in a lockstep, if they did."""

    terminated: Bool[np.ndarray, " row"]
    truncated: Bool[np.ndarray, " row"]
    undecided: Bool[np.ndarray, " row"]
    """Rows in which the agent's action was NaN or infinite."""
    infos: dict[str, Any]

    @property
    def failed(self) -> Bool[np.ndarray, " row"]:
        """Rows in which the simulation or the agent failed: their episodes are dropped."""
        return self.infos.get("failed", False) | self.undecided


class _Rollout:
    """A rollout in progress: the frames so far, and the episode in each row."""

    def __init__(
        self,
        envs: VectorEnv,
        units: Units,
        parts: Sequence[Part],
        encode: Callable[[np.ndarray], np.ndarray],
    ):
        rows = envs.num_envs
        self.envs, self.units, self.parts = envs, units, parts
        self.encode, self.as_rows = encode, _table(envs)
        self.where = ", ".join(part.where for part in parts)
        self.part_of = [part for part in parts for _ in part.rows]
        self.frames: list[Frame] = []
        self.in_row: list[Span | None] = [None] * rows
        self.running, self.nowhere = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        self.numbers = np.zeros(rows, np.int64)
        """The number of the latest episode in each row."""
        self.executed = np.zeros((rows, units.size), np.float32)
        self.seen: np.ndarray = np.zeros(0)

    def reset(self) -> View | None:
        """Start the episodes that the parts want, and return what the agent needs to act; None if the rollout is over."""
        now = len(self.frames)
        starts = np.zeros(len(self.running), np.bool_)
        begin: list[int] = []
        for part in self.parts:
            if part.tally.running < len(part.rows) and (wanted := part.more(part.tally)) > 0:
                for row in [row for row in part.rows if not self.running[row]][:wanted]:
                    self.in_row[row] = Span(part.tally.started, row, now, now)
                    self.numbers[row] = part.tally.started
                    self.running[row] = starts[row] = True
                    part.tally.started += 1
                    part.tally.running += 1
                    begin.append(row)
        if begin:
            seeds = {row: self.part_of[row].seed_of(int(self.numbers[row])) for row in begin}
            self.seen = self.encode(self.as_rows(_reset(self.envs, seeds, self.where, all_rows=now == 0)))
        elif not any(part.tally.running for part in self.parts):
            return None
        return View(now, begin, self.running, starts, self.seen, self.executed, self.numbers)

    def step(self, drawn: np.ndarray, states: np.ndarray) -> Ends:
        """Step all rows and add a frame.

        Args:
            drawn: the actions of all rows as drawn by the policy.
            states: the pre-states of the agent.
        """
        undecided = self.nowhere
        if not math.isfinite(np.add.reduce(drawn, axis=None)):  # of the sum: one number to look at per lockstep
            undecided = ~np.isfinite(drawn.sum(axis=1))
            drawn = np.where(undecided[:, None], np.float32(0), drawn)
        self.executed = self.units.clip(drawn)
        actions = self.units.decode(self.executed)
        now = len(self.frames)
        sentinel.note_step(now + 1)
        try:
            readings, rewards, terminated, truncated, infos = self.envs.step(actions)
        except (Exception, SystemExit) as error:
            _blame(error, self.envs, self.where, f"step {now + 1}")
        observations = self.encode(self.as_rows(readings))
        rewards = np.asarray(rewards, np.float64)
        self.frames.append(Frame(self.seen, drawn, self.executed, observations, rewards, states))
        self.seen = observations
        return Ends(terminated, truncated, undecided, infos)

    def finish(self, ends: Ends) -> None:
        """Count the steps, and keep or drop the episodes that ended."""
        for part in self.parts:
            part.tally.samples += part.tally.running
        over = self.running & (ends.terminated | ends.truncated | ends.undecided)
        if not np.logical_or.reduce(over):  # same as `over.any()`, in half the time
            return
        failed, raised = ends.failed, ends.infos.get("raised")
        for row in np.flatnonzero(over).tolist():
            span, part = self.in_row[row], self.part_of[row]
            assert span is not None
            span.last, span.terminated = len(self.frames), bool(ends.terminated[row])
            span.failed = bool(failed[row])
            self.in_row[row], self.running[row] = None, False
            tally = part.tally
            tally.running -= 1
            if part.keep(span):
                part.kept.append(span)
                tally.kept += 1
            else:
                tally.dropped += 1
                tally.failed += span.failed
                tally.undecided += bool(ends.undecided[row])
                if raised is not None and raised[row] is not None:
                    tally.raised += 1
                    tally.what = f"{raised[row]} in step {len(span)} of an episode"
                tally.samples -= len(span)
                _check_soundness(part, self.envs, whole=False)

    def played(self) -> list[Played]:
        """Return the episodes of each part, after a check that not too many of them failed."""
        frames, count = zip(*self.frames, strict=True), len(self.frames)
        # Same as np.stack, in a third of the time.
        stacked = Frame(*(np.concatenate(each).reshape(count, *each[0].shape) for each in frames))
        for part in self.parts:
            _check_soundness(part, self.envs, whole=True)
        return [Played(stacked, sorted(part.kept, key=lambda span: span.number), part.tally) for part in self.parts]


def _check_soundness(part: Part, envs: VectorEnv, *, whole: bool) -> None:
    """Raise an error if too many episodes failed: more than a fifth of a whole batch, and more than two.

    Failed episodes are short and therefore end first. Before the batch is whole, a run stops only if so many episodes
    have failed that the batch would never be filled.
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
    """Reset the rows in `seeds`, or all rows, and return the readings of all rows.

    All rows are reset at the beginning, because no row can be stepped before its first reset. The readings of rows
    without a seed are not used.
    """
    mask = np.array([all_rows or row in seeds for row in range(envs.num_envs)])
    numbers = [int(seeds[row].generate_state(1)[0]) if row in seeds else None for row in range(envs.num_envs)]
    try:
        readings, _ = envs.reset(seed=numbers, options={"reset_mask": mask})
    except (Exception, SystemExit) as error:
        _blame(error, envs, where, f"the reset of rows {sorted(seeds)}")
    return readings


def _table(envs: VectorEnv) -> Callable[[Any], Float[np.ndarray, "row obs"]]:
    """Return a function that converts readings to a float table. Symbols of a Discrete space become one column from 0."""
    space, rows = envs.single_observation_space, envs.num_envs  # looked up once: every wrapper passes the request on
    if isinstance(space, Discrete):
        return lambda readings: np.array(readings, np.float64).reshape(rows, -1) - space.start
    if images_in(envs):  # pixels are many, and need not be doubles
        return lambda readings: np.asarray(readings).reshape(rows, -1)
    return lambda readings: np.asarray(readings, np.float64).reshape(rows, -1)


def _blame(error: BaseException, envs: VectorEnv, where: str, doing: str) -> NoReturn:
    """Raise an error that names the environment, the exception, the rollout and the step."""
    if isinstance(error, EnvironmentFailure):
        raise EnvironmentFailure(f"{error} ({_name(envs)}, {doing} of {where})") from error
    if isinstance(error, RpspError):
        raise error
    raise EnvironmentFailure(
        f"{_name(envs)} raised {type(error).__name__} in {doing} of {where}: {error}; check that it runs under Gymnasium."
    ) from error
