"""Algorithm 1 of the paper as a generator of records: explore, fit the filter, then act and learn. Writes no files.

Everything that the next iteration depends on is in `Training`. Its randomness is derived from (seed, iteration). So a run
that is interrupted after any iteration and resumed gives the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.algorithms.alternating import forgetting_states
from rpsp.algorithms.base import AbstractAlgorithm, Diagnostics
from rpsp.algorithms.objectives import distributions, mean_kl
from rpsp.algorithms.policies import (
    AbstractPolicy,
    Agent,
    CategoricalPolicy,
    GaussianPolicy,
    Network,
    SquashedPolicy,
    in_units,
    input_scaling,
)
from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch, pack, unpack
from rpsp.data.episodes import Episode, split
from rpsp.data.scaling import OneHot, Scaling, fit_scaling
from rpsp.errors import DivergedError, UsageError
from rpsp.filters.base import AbstractFilter, one_step_error, predictions, reached, unroll
from rpsp.training.actions import ActionSymbols, action_units
from rpsp.training.refits import Refit
from rpsp.training.rollouts import Collected, collect, explore

Record = dict[str, float | int]
"""Metrics of an iteration by name. Timings are named *_seconds or *_per_second; everything else is reproducible."""

INIT_STREAM, STEP_STREAM = 2**31, 2**31 + 1
"""Streams of random numbers for an algorithm's `init` and `step`. `begin` uses the first two subkeys of the seed's key."""


def key_for(seed: int, stream: int, iteration: int) -> PRNGKeyArray:
    """Derive a random key from the seed of a run, a stream and an iteration.

    Args:
        seed: the root of all randomness.
        stream: `INIT_STREAM` or `STEP_STREAM`.
        iteration: counted from 0.
    """
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), stream), iteration)


class Recipe(NamedTuple):
    """What Algorithm 1 leaves open: how the filter is fitted, which algorithm trains, how the filter is refitted."""

    initialise: Callable[[Batch, Batch, np.random.Generator, PRNGKeyArray], AbstractFilter]
    """(exploration data, held-out part of it, rng, key) → filter."""
    algorithm: AbstractAlgorithm
    refit: Refit | None = None
    """How the filter is fitted again during training. None: never. Not in the paper."""


@dataclass(frozen=True)
class TrainingSettings:
    """Sizes and seeds of a run."""

    samples: int
    """Least number of environment steps in an iteration."""
    exploration_episodes: int | None = 100
    """Episodes of random actions to which scales and filter are fitted."""
    exploration_samples: int | None = None
    """Least number of exploration steps, if `exploration_episodes` is None."""
    min_length: int = 1
    """Exploration episodes shorter than this are replaced by new ones."""
    hidden: tuple[int, ...] = (16,)
    """Sizes of the policy's hidden layers."""
    log_std: float = 0.0
    """Initial value of the policy's log standard deviation (Gaussian policies)."""
    refit_before: tuple[int, ...] = ()
    """Iterations, counted from 0, before which the filter is refitted to recent batches. Not in the paper."""
    refit_batches: int = 3
    """Number of latest batches that a refit uses."""
    refit_samples: int = 20_000
    """Approximate upper limit on the number of steps that a refit uses."""
    refit_above: float = 0.1
    """The filter is refitted only if its one-step error exceeds this fraction of the error of persistence."""
    refit_kl: float = 0.1
    """A refit that changes the policy by more than this mean KL per sample is rejected, unless it halves the error."""
    renew_units: bool = False
    """Whether the policy's input is rescaled to the states it reaches, after 1, 2, 4, … iterations. Not in the paper."""
    held_out: float = 0.2
    """Fraction of the data kept from fitting, to evaluate a fit."""
    seed: int = 0
    """The root of all randomness."""
    drop_raising: bool = True
    """Whether an episode in which the environment raises is dropped and counted, instead of ending the iteration."""


class Training(eqx.Module):
    """The state of a run between two iterations: everything that the next one depends on."""

    iteration: int
    """Number of finished iterations."""
    samples: int
    """Environment steps so far, exploration included."""
    rows: int
    """Rows of the latest packed batch. The number never falls, so that few shapes are compiled."""
    agent: Agent
    memory: Any
    """The memory of the algorithm."""
    scaling: Scaling | OneHot
    """The scaling of observations, fitted to the exploration."""
    recent: tuple[Batch, ...]
    """The latest batches, as far as a later refit will use them."""
    sound: Agent
    """The agent of the last iteration whose step was finite; a run that diverges goes back to it."""
    astray: int = 0
    """Number of iterations in a row since then whose step was not finite."""
    halvings: int = 0
    """How often the run went back; each time its steps are halved."""


def begin(recipe: Recipe, envs: VectorEnv, settings: TrainingSettings) -> tuple[Training, Record]:
    """Explore with random actions, fit scales and filter, and create a policy whose output is independent of the state.

    Args:
        recipe: the parts of the method.
        envs: the environments; all rows are used.
        settings: sizes and the seed.

    Returns:
        The run before its first iteration, and its record.

    Raises:
        UsageError: if the algorithm needs bounded continuous actions and the environment has others.
    """
    algorithm = recipe.algorithm
    if algorithm.squashed:
        _check_bounds(envs)
    rng = np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(2,)))
    filter_key, policy_key = jax.random.split(jax.random.key(settings.seed))
    started = time.perf_counter()
    found = explore(
        envs,
        episodes=settings.exploration_episodes,
        samples=settings.exploration_samples,
        seed=settings.seed,
        min_length=settings.min_length,
        drop_raising=settings.drop_raising,
    )
    explored = time.perf_counter()
    scaling, episodes = _encoded(found, envs)
    fitted, held = split(episodes, settings.held_out, rng=rng, keep=settings.min_length)
    batch, held = pack(fitted), pack(held)
    filter = recipe.initialise(batch, held, rng, filter_key)
    scaling_of_states = input_scaling(filter, reached(filter, batch, held))
    agent = Agent(filter, _policy(envs, filter.size, scaling_of_states, settings, algorithm.squashed, policy_key))
    samples = sum(map(len, episodes))
    watched = diagnose(agent, agent, held, False)
    record = {
        "exploration_samples": samples,
        "exploration_return": float(np.mean([e.rewards.sum() for e in found if e.rewards is not None])),
        "state_size": filter.size,
        "still_readings": int((np.ptp(np.concatenate([e.observations for e in found]), axis=0) == 0).sum()),
        "prediction_error": float(watched["prediction_error"]),
        "persistence_error": float(watched["persistence_error"]),
        "exploration_seconds": explored - started,
        "initialisation_seconds": time.perf_counter() - explored,
    }
    # A quarter more rows than full ones would need, because episodes seldom fill them: saves a compilation.
    rows = -(-5 * settings.samples // (4 * (max_episode_steps(envs) or settings.samples)))
    memory = algorithm.init(agent, key=key_for(settings.seed, INIT_STREAM, 0))
    memory = algorithm.on_exploration(agent, memory, pack(episodes))
    return Training(0, samples, rows, agent, memory, scaling, (), agent), record


def advance(recipe: Recipe, envs: VectorEnv, settings: TrainingSettings, training: Training) -> tuple[Training, Record]:
    """Run one iteration: refit the filter if due, collect whole episodes, take a step of the algorithm.

    Args:
        recipe: the parts of the method.
        envs: the environments; all rows are used.
        settings: sizes and the seed.
        training: the run before the iteration.

    Returns:
        The run after the iteration, and its record.
    """
    started = time.perf_counter()
    before = refit_if_due(recipe, settings, training)
    fitted = time.perf_counter()
    collected = collect(
        before.agent,
        envs,
        scaling=training.scaling,
        samples=settings.samples,
        seed=settings.seed,
        iteration=training.iteration,
        keep_states=True,
        drop_raising=settings.drop_raising,
    )
    acted = time.perf_counter()
    batch = packed(collected, envs, training.rows)
    key = key_for(settings.seed, STEP_STREAM, training.iteration)
    agent, memory, diagnostics = recipe.algorithm.step(before.agent, before.memory, batch, key=key)
    new = agent if training.halvings == 0 else part_way(agent, before.agent, 0.5**training.halvings)
    watched = diagnose(before.agent, new, batch, recipe.algorithm.moves_filter(before.agent))
    update = Update(batch, new, memory, watched | diagnostics)
    return concluded(recipe, settings, training, before, collected, update, (started, fitted, acted))


class Update(NamedTuple):
    """The result of an algorithm's step."""

    batch: Batch
    agent: Agent
    memory: Any
    diagnostics: Diagnostics


def concluded(
    recipe: Recipe,
    settings: TrainingSettings,
    training: Training,
    before: Refitted,
    collected: Collected,
    update: Update,
    times: tuple[float, float, float],
) -> tuple[Training, Record]:
    """Return the run after an iteration, and its record.

    Args:
        recipe: the parts of the method.
        settings: sizes and the seed.
        training: the run before the iteration.
        before: the agent that acted.
        collected: the episodes.
        update: the result of the algorithm's step.
        times: when the iteration, acting and the step began.
    """
    n, samples = training.iteration, training.samples + collected.samples
    found = {name: float(value) for name, value in update.diagnostics.items()}
    record = {"iteration": n, **collected.stats, "total_samples": samples, **found, **before.record}
    started, fitted, acted = times
    done = time.perf_counter()
    record |= {
        "refit_seconds": fitted - started,
        "acting_seconds": acted - fitted,
        "update_seconds": done - acted,
        "steps_per_second": collected.samples / (done - started),
    }
    unsound = any(name.split("/")[-1] == "unsound" and value == 1 for name, value in found.items())
    recent = (*training.recent, forgetting_states(update.batch))
    agent, memory = update.agent, update.memory
    if settings.renew_units and not unsound and (n + 1) & n == 0:  # after 1, 2, 4, 8, … iterations
        agent, memory = in_renewed_units(recipe.algorithm, agent, memory, update.batch)
    after = Training(
        iteration=n + 1,
        samples=samples,
        rows=update.batch.shape[0],
        agent=agent,
        memory=memory,
        scaling=training.scaling,
        recent=_still_wanted(recent, n + 1, settings) if recipe.refit else (),
        sound=training.sound if unsound else before.agent,
        astray=training.astray + 1 if unsound else 0,
        halvings=training.halvings,
    )
    return _led_back(recipe, settings, after, record)


def train(
    recipe: Recipe, envs: VectorEnv, settings: TrainingSettings, iterations: int, training: Training | None = None
) -> Iterator[tuple[Training, Record]]:
    """Run Algorithm 1.

    Args:
        recipe: the parts of the method.
        envs: the environments; all rows are used.
        settings: sizes and the seed.
        iterations: total number of iterations, including those that `training` has finished.
        training: the run to continue. None: begin a new one.

    Yields:
        The state of the run and the record of every iteration. A new run first yields its initial state and record.
    """
    if training is None:
        training, record = begin(recipe, envs, settings)
        yield training, record
    while training.iteration < iterations:
        training, record = advance(recipe, envs, settings, training)
        yield training, record


def _encoded(episodes: list[Episode], envs: VectorEnv) -> tuple[Scaling | OneHot, list[Episode]]:
    """Return the scaling of observations, and the episodes scaled with it."""
    space, units = envs.single_observation_space, action_units(envs)
    if isinstance(space, Discrete):
        scaling = OneHot(int(space.n))
    else:
        scaling = fit_scaling(np.concatenate([episode.observations for episode in episodes]))
    acted = OneHot(units.size).encode if isinstance(units, ActionSymbols) else lambda actions: actions
    encode = scaling.encode
    return scaling, [replace(e, observations=encode(e.observations), actions=acted(e.actions)) for e in episodes]


def _policy(
    envs: VectorEnv, inputs: int, scaling: Scaling, settings: TrainingSettings, squashed: bool, key: PRNGKeyArray
) -> AbstractPolicy:
    units = action_units(envs)
    if isinstance(units, ActionSymbols):
        return CategoricalPolicy(inputs, units.size, hidden=settings.hidden, scaling=scaling, key=key)
    if squashed:
        return SquashedPolicy(inputs, units.size, hidden=settings.hidden, scaling=scaling, key=key)
    return GaussianPolicy(
        inputs, units.size, hidden=settings.hidden, log_std=settings.log_std, scaling=scaling, key=key
    )


def _check_bounds(envs: VectorEnv) -> None:
    """Raise a `UsageError` if actions are not continuous or not bounded, as a tanh policy needs."""
    space, units = envs.single_action_space, action_units(envs)
    if isinstance(units, ActionSymbols):
        raise UsageError(
            f"sac: takes actions that are numbers, and those of the environment are in {space}; try rpsi-ppo."
        )
    if not (np.isfinite(units.low).all() and np.isfinite(units.high).all()):
        raise UsageError(
            f"sac: acts between bounds, and the actions of the environment are in {space}; give them bounds there, or try "
            "rpsi-ppo."
        )


def packed(collected: Collected, envs: VectorEnv, rows: int) -> Batch:
    """Pack episodes into at least `rows` rows of the longest possible episode. If more are needed, add half as many."""
    longest = max(map(len, collected.episodes))
    limit = max_episode_steps(envs) or 1 << (longest - 1).bit_length()
    needed = pack(collected.episodes, row_length=limit, states=collected.states)
    while rows < needed.shape[0]:
        rows = max(needed.shape[0], rows + rows // 2)
    return padded(needed, rows)


def padded(batch: Batch, rows: int) -> Batch:
    """Return the batch with rows of filler up to `rows`."""
    missing = rows - batch.shape[0]
    padded = jax.tree.map(lambda x: np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)), batch)
    padded.starts[~padded.mask] = True
    return padded


def max_episode_steps(envs: VectorEnv) -> int | None:
    """Return the time limit of an episode from the environment's spec or its TimeLimit wrapper, or None."""
    if envs.spec is not None and envs.spec.max_episode_steps is not None:
        return envs.spec.max_episode_steps
    try:
        return envs.unwrapped.envs[0].get_wrapper_attr("_max_episode_steps")  # pyright: ignore[reportAttributeAccessIssue]
    except AttributeError:
        return None


ASTRAY, HALVINGS = 5, 10
"""After ASTRAY iterations in a row without a finite step a run goes back. After HALVINGS times it stops."""


def _led_back(
    recipe: Recipe, settings: TrainingSettings, training: Training, record: Record
) -> tuple[Training, Record]:
    """After ASTRAY skipped steps in a row, go back to the last agent whose step was finite, and halve the steps.

    A skipped step leaves the agent unchanged, so the last applied step is the likely cause. The algorithm's memory may be
    affected too and is initialised again.
    """
    if training.astray:
        record = record | {"astray": training.astray}
    if training.astray == ASTRAY:
        if training.halvings == HALVINGS:
            raise DivergedError(
                f"iteration {training.iteration - 1}: no update has finite numbers, however small its step; look at the "
                "scale of the rewards, or train with another method."
            )
        sound, halvings = training.sound, training.halvings + 1
        memory = recipe.algorithm.init(sound, key=key_for(settings.seed, INIT_STREAM, training.iteration))
        training = replace(training, agent=sound, memory=memory, astray=0, halvings=halvings)
        record = record | {"rolled_back": 1.0}
    return training, record if training.halvings == 0 else record | {"step_scale": 0.5**training.halvings}


def part_way(new: Agent, old: Agent, fraction: Numbers | float) -> Agent:
    """Return the agent at this fraction of the way from `old` to `new`."""
    return jax.tree.map(
        lambda a, b: jnp.where(fraction == 1, a, b + fraction * (a - b)) if eqx.is_inexact_array(a) else a, new, old
    )


SMALLEST_UNIT = 0.1
"""Smallest scale of an input, as a fraction of the largest: coordinates that hardly vary are not magnified."""


def in_renewed_units(algorithm: AbstractAlgorithm, agent: Agent, memory: Any, batch: Batch) -> tuple[Agent, Any]:
    """Rescale the policy's input, and the algorithm's memory with it, to the states of a batch. No function changes.

    The states of a robot that walks have another mean than those of one that falls, and spread ten times as far, unevenly.
    """
    network = getattr(agent.policy, "network", None)
    if not isinstance(network, Network):
        return agent, memory
    if batch.states is None or algorithm.moves_filter(agent):
        states = reached(agent.filter, batch)
    else:
        states = np.asarray(batch.states, np.float64)[batch.mask]
    units = input_scaling(agent.filter, states, SMALLEST_UNIT)
    memory = algorithm.on_new_units(agent, memory, units)
    return eqx.tree_at(lambda a: a.policy.network, agent, in_units(network, units)), memory


class Refitted(NamedTuple):
    """The agent that will act, the algorithm's memory, and the record of the refit before that."""

    agent: Agent
    memory: Any
    record: Record


def refit_if_due(recipe: Recipe, settings: TrainingSettings, training: Training) -> Refitted:
    """Refit the filter to recent batches, if this is due and needed.

    The refit is accepted if the filter predicts held-out rows better and the policy hardly changes.

    Args:
        recipe: the parts of the method.
        settings: sizes and the seed.
        training: the run before the iteration.

    Returns:
        The agent that will act, with its memory and a record of the refit.
    """
    algorithm, agent, memory = recipe.algorithm, training.agent, training.memory
    if recipe.refit is None or training.iteration not in settings.refit_before or not training.recent:
        return Refitted(agent, memory, {})
    rng = np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(3, training.iteration)))
    batch, held = _rows_split(training.recent, settings, rng)
    watched = diagnose(agent, agent, held, False)
    # A filter that predicts well stays: better predictions alone improved no run, and every refit costs a little return.
    if watched["prediction_error"] <= settings.refit_above * watched["persistence_error"]:
        return Refitted(agent, memory, {"refit_skipped": 1.0})
    try:
        candidate = recipe.refit.fit(agent, batch, held, rng)
    except (UsageError, DivergedError):  # such as episodes that have become too short for a window
        return Refitted(agent, memory, {"refit_accepted": 0.0})
    before, after = one_step_error(agent.filter, held), one_step_error(candidate.filter, held)
    kl = float(diagnose(agent, candidate, held, True)["whole_kl"])
    # Slightly better predictions do not make up for a change of the policy: a KL of 0.7 undid a hundred iterations. But a
    # filter that predicts badly is worth replacing even then.
    accepted = after < before and (kl <= settings.refit_kl or after < before / 2)
    record = {
        "refit_error_before": before,
        "refit_error_after": after,
        "refit_kl": kl,
        "refit_accepted": float(accepted),
    }
    if not accepted:
        return Refitted(agent, memory, record)
    if algorithm.moves_filter(agent) or not recipe.refit.same_coordinates:
        # Moments of parameters, or a critic of states, whose meaning has changed.
        memory = algorithm.init(candidate, key=key_for(settings.seed, INIT_STREAM, training.iteration))
    else:
        memory = algorithm.on_refit(candidate, memory)
    return Refitted(candidate, memory, record)


def _rows_split(
    batches: tuple[Batch, ...], settings: TrainingSettings, rng: np.random.Generator
) -> tuple[Batch, Batch]:
    """Return shuffled rows of some batches, at most about `refit_samples` steps: those to fit, and those held out."""
    time_steps = max(batch.shape[1] for batch in batches)
    wide = [
        jax.tree.map(lambda x: np.pad(x, [(0, 0), (0, time_steps - x.shape[1])] + [(0, 0)] * (x.ndim - 2)), batch)
        for batch in batches
    ]
    rows = jax.tree.map(lambda *parts: np.concatenate(parts), *wide)
    rows.starts[~rows.mask] = True
    steps = rows.mask.sum(axis=1)
    order = rng.permutation(np.flatnonzero(steps))
    order = order[np.cumsum(steps[order]) <= max(settings.refit_samples, steps[order[:2]].sum())]
    # One shape for all refits of a run and for both parts: the rows that `refit_samples` steps need if four fifths full.
    usual = -(-5 * settings.refit_samples // (4 * time_steps))
    if len(order) * settings.held_out < 1:  # less than one row: hold out episodes instead of rows
        parts = split(unpack(_take(rows, order, 0)), settings.held_out, rng=rng, keep=settings.min_length)
        fitted, held = (pack(part, row_length=time_steps) for part in parts)
        return _take(fitted, np.arange(len(fitted.mask)), usual), _take(held, np.arange(len(held.mask)), usual)
    held = max(1, round(settings.held_out * len(order)))
    return _take(rows, order[held:], usual), _take(rows, order[:held], usual)


def _take(batch: Batch, rows: np.ndarray, least: int) -> Batch:
    """Return some rows, padded to at least `least` and to a multiple of eight: few shapes, few compilations."""
    return padded(jax.tree.map(lambda x: x[rows], batch), -(-max(least, len(rows)) // 8) * 8)


def _still_wanted(recent: tuple[Batch, ...], iteration: int, settings: TrainingSettings) -> tuple[Batch, ...]:
    """Return those batches before `iteration` that the next refit will use. The others need not be kept or saved."""
    later = [n for n in settings.refit_before if n >= iteration]
    if not later:
        return ()
    dropped = max(0, min(later) - iteration)  # number of newer batches before that refit
    keep = max(0, settings.refit_batches - dropped)
    return recent[-keep:] if keep else ()


@eqx.filter_jit
def diagnose(old: Agent, new: Agent, batch: Batch, moved: bool) -> Diagnostics:
    """Return the normalised one-step error of the filter and of persistence, and the KL from the old to the new agent.

    Args:
        old: the agent that acted.
        new: the agent after the step.
        batch: the episodes.
        moved: whether the filter has changed.
    """
    batch = jax.tree.map(jnp.asarray, batch)
    mask = jnp.asarray(batch.mask)
    before = unroll(old.filter, batch) if batch.states is None else jnp.asarray(batch.states)
    # The states of a new filter must be computed, which takes as long as acting did: a log needs only every fourth row.
    rows = slice(None, None, 4 if moved else 1)
    after = unroll(new.filter, jax.tree.map(lambda x: x[rows], batch)) if moved else before
    predicted = predictions(old.filter, before, jnp.asarray(batch.actions))
    return {
        "prediction_error": _normalised(predicted, batch),
        "persistence_error": _normalised(jnp.asarray(batch.previous_observations), batch),
        "whole_kl": mean_kl(distributions(old.policy, before[rows]), distributions(new.policy, after), mask[rows]),
    }


def _normalised(predicted: Float[Array, "row time obs"], batch: Batch) -> Float[Array, ""]:
    """Return squared error divided by variance, pooled over dimensions: 0 is perfect, 1 is as good as the mean."""
    mask, actual = jnp.asarray(batch.mask)[..., None], jnp.asarray(batch.observations)
    mask = jnp.broadcast_to(mask, actual.shape)

    def mean(x: Array) -> Array:
        return jnp.sum(jnp.where(mask, x, 0.0), axis=(0, 1)) / jnp.maximum(jnp.sum(mask[..., 0]), 1)

    variance = jnp.sum(mean((actual - mean(actual)) ** 2))
    return jnp.sum(mean((predicted - actual) ** 2)) / jnp.maximum(variance, 1e-12)
