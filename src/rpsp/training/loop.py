"""Algorithm 1 of the paper as a generator of records: explore, fit the filter, then act and learn. Writes no files.

Everything that the next iteration depends on is in `Training`. Its randomness is derived from (seed, iteration). So a run
that is interrupted after any iteration and resumed gives the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv
from jaxtyping import Float, PRNGKeyArray

from rpsp.algorithms.alternating import forgetting_states
from rpsp.algorithms.base import AbstractAlgorithm, Diagnostics
from rpsp.algorithms.networks import SMALLEST_RUNNING_SCALE, Network, in_units, input_scaling
from rpsp.algorithms.policies import AbstractPolicy, Agent, CategoricalPolicy, GaussianPolicy, SquashedPolicy
from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch, pack, padded
from rpsp.data.episodes import Episode, split
from rpsp.data.scaling import OneHot, Scaling, fit_scaling
from rpsp.errors import DivergedError, UsageError
from rpsp.filters.base import AbstractFilter, Concatenated, reached
from rpsp.filters.gaps_fit import fit_tolerant
from rpsp.filters.marked import MarkedFilter
from rpsp.filters.memory import observation_window
from rpsp.training.actions import ActionSymbols, action_units
from rpsp.training.diagnostics import diagnose
from rpsp.training.interleaved import Interleaved
from rpsp.training.refits import Refitted, refit_if_due, still_wanted
from rpsp.training.rollouts import Collected, collect, explore
from rpsp.training.state import INIT_STREAM, STEP_STREAM, Recipe, Record, Training, TrainingSettings, key_for


def begin(recipe: Recipe, envs: VectorEnv, settings: TrainingSettings) -> tuple[Training, Record]:
    """Explore with random actions, fit scales and filter, and create a policy whose output is independent of the state.

    Args:
        recipe: the parts of the method.
        envs: the environments; all rows are used.
        settings: sizes and the seed.

    Returns:
        The run before its first iteration, and its record.

    Raises:
        UsageError: if the algorithm needs bounds of continuous actions and the environment has none.
    """
    belief, algorithm = recipe
    if (settings.refit_before or settings.refit_when is not None) and belief.can_refit:
        belief = belief.for_refits()
    if algorithm.squashed:
        _check_bounds(envs)
    if algorithm.scales_inputs and settings.renew_units:
        raise UsageError(
            "renew_units: the algorithm scales the policy's input by its running statistics (running_scale); turn one of "
            "the two off."
        )
    rng = np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(2,)))
    filter_key, policy_key = jax.random.split(jax.random.key(settings.seed))
    started = time.perf_counter()
    found = explore(
        envs,
        episodes=settings.exploration_episodes,
        samples=settings.exploration_samples,
        seed=settings.seed,
        min_length=belief.min_length,
        drop_raising=settings.drop_raising,
        pink_noise=settings.pink_noise,
    )
    explored = time.perf_counter()
    scaling, episodes = _encoded(found, envs)
    fitted, held = split(episodes, settings.held_out, rng=rng, keep=belief.min_length)
    batch, held = pack(fitted), pack(held)
    fit = partial(fit_tolerant, belief) if settings.missing else belief.fit
    filter = fit(batch, held, key=filter_key)
    if settings.plus_obs:
        filter = Concatenated(filter, _latest(batch, settings))
    least = SMALLEST_RUNNING_SCALE if algorithm.scales_inputs else 1.0
    scaling_of_states = input_scaling(filter, reached(filter, batch, held), least)
    agent = Agent(filter, _policy(envs, filter.view, scaling_of_states, settings, algorithm.squashed, policy_key))
    samples = sum(map(len, episodes))
    watched = diagnose(agent, agent, held, False)
    record = {
        "exploration_samples": samples,
        "exploration_return": float(np.mean([e.rewards.sum() for e in found if e.rewards is not None])),
        "state_size": filter.size,
        "still_readings": _still_readings(found),
        "ignored_readings": 0 if filter.used is None else int(np.sum(np.asarray(filter.used) == 0)),
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


def _latest(batch: Batch, settings: TrainingSettings) -> AbstractFilter:
    """Return the window of the latest observations that the policy gets beside the state; with marks of what is missing."""
    obs, act = batch.observations.shape[-1], batch.actions.shape[-1]
    if settings.missing:
        return MarkedFilter(observation_window(settings.plus_obs, 2 * obs, act), obs)
    return observation_window(settings.plus_obs, obs, act)


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
    key = key_for(settings.seed, STEP_STREAM, training.iteration)
    algorithm, learner = recipe.algorithm, None
    if algorithm.interval:
        learner = Interleaved(algorithm, before.agent, before.memory, key, rows=envs.num_envs)
    collected = collect(
        before.agent,
        envs,
        scaling=training.scaling,
        samples=settings.samples,
        seed=settings.seed,
        iteration=training.iteration,
        keep_states=True,
        drop_raising=settings.drop_raising,
        learner=learner,
        pink_noise=settings.pink_noise,
    )
    acted = time.perf_counter()
    batch = packed(collected, envs, training.rows)
    learned = before if learner is None else learner
    agent, memory, diagnostics = algorithm.step(learned.agent, learned.memory, batch, key=key)
    new = agent if training.halvings == 0 else part_way(agent, before.agent, 0.5**training.halvings)
    watched = diagnose(before.agent, new, batch, recipe.algorithm.moves_filter(before.agent))
    update = Update(batch, new, memory, watched | diagnostics)
    return concluded(recipe, settings, training, before, collected, update, (started, fitted, acted))


def _still_readings(episodes: list[Episode]) -> int:
    """Return the number of sensors whose readings never change. Missing readings are left out."""
    readings = np.concatenate([e.observations for e in episodes])
    return int((np.nanmax(readings, axis=0) == np.nanmin(readings, axis=0)).sum())


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
        recent=still_wanted(recent, n + 1, settings) if recipe.belief.can_refit else (),
        sound=training.sound if unsound else before.agent,
        astray=training.astray + 1 if unsound else 0,
        halvings=training.halvings,
        error_ratio=found["prediction_error"] / max(found["persistence_error"], 1e-12),
        refit_from_iteration=before.refit_from_iteration,
        refits_rejected=before.refits_rejected,
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
    envs: VectorEnv,
    view: Float[Numbers, "q x"] | None,
    scaling: Scaling,
    settings: TrainingSettings,
    squashed: bool,
    key: PRNGKeyArray,
) -> AbstractPolicy:
    units = action_units(envs)
    given: dict[str, Any] = {
        "hidden": settings.hidden,
        "body": settings.body,
        "scaling": scaling,
        "view": view,
        "key": key,
    }
    sizes = len(scaling.mean), units.size
    if isinstance(units, ActionSymbols):
        return CategoricalPolicy(*sizes, **given)
    if squashed:
        return SquashedPolicy(*sizes, **given)
    return GaussianPolicy(*sizes, log_std=settings.log_std, **given)


def _check_bounds(envs: VectorEnv) -> None:
    """Raise a `UsageError` if actions are continuous and not bounded; a tanh policy needs bounds."""
    space, units = envs.single_action_space, action_units(envs)
    if isinstance(units, ActionSymbols):
        return
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
