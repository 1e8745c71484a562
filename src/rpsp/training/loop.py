"""Algorithm 1 as a generator of records: explore, initialise, then act and update, again and again. Writes nothing.

Everything that the next iteration depends on is in `Training`; its randomness derives from (seed, iteration). So a run
that is put down after any iteration and taken up again gives the same bits.
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
from rpsp.algorithms.base import UpdateRule
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
"""What an iteration has to say: plain numbers by name. Timings are named *_seconds or *_per_second; all else is
reproducible."""


class Recipe(NamedTuple):
    """What Algorithm 1 leaves open: how the filter comes about, how the agent is updated, how the filter is refitted."""

    initialise: Callable[[Batch, Batch, np.random.Generator, PRNGKeyArray], AbstractFilter]
    """(exploration data, held-out part of it, rng, key) → filter."""
    rule: UpdateRule
    refit: Refit | None = None
    """Ours, not the paper's."""


@dataclass(frozen=True)
class TrainingSettings:
    """How much is done of everything."""

    samples: int
    """Environment steps in an iteration, at least."""
    exploration_episodes: int | None = 100
    """Episodes of random actions that scales and filter are fitted to."""
    exploration_samples: int | None = None
    """Or how many steps of them at least, `exploration_episodes` being None."""
    min_length: int = 1
    """Exploration episodes shorter than this are drawn again."""
    hidden: tuple[int, ...] = (16,)
    """Sizes of the policy's hidden layers."""
    log_std: float = 0.0
    """The policy's at first (Gaussian policies)."""
    refit_before: tuple[int, ...] = ()
    """Iterations before which the filter is refitted to recent batches, counted from 0. Ours, not the paper's."""
    refit_batches: int = 3
    """How many of the latest batches a refit sees."""
    refit_samples: int = 20_000
    """At most about so many of their steps."""
    refit_above: float = 0.1
    """The filter is refitted only where its one-step error is more than this fraction of persistence's."""
    refit_kl: float = 0.1
    """A refit that would move the policy by more than this mean KL per sample is refused, unless it halves the error."""
    renew_units: bool = False
    """Whether the units of the policy's input follow the states it reaches, after 1, 2, 4, … iterations. Ours."""
    held_out: float = 0.2
    """The fraction of the data that a fit is judged by."""
    seed: int = 0
    """The root of all randomness."""
    drop_raising: bool = True
    """Whether an episode in which the environment raises is dropped and counted, instead of ending the iteration."""


class Training(eqx.Module):
    """A run between two iterations: everything that the next one depends on."""

    iteration: int
    """How many iterations are done."""
    samples: int
    """Environment steps so far, exploration included."""
    rows: int
    """Rows of the latest packed batch; they never become fewer, so that few shapes are compiled."""
    agent: Agent
    memory: Any
    """What the update rule remembers."""
    scaling: Scaling | OneHot
    """The units of observations, fitted to the exploration."""
    recent: tuple[Batch, ...]
    """Those latest batches that a refit still to come will see."""
    sound: Agent
    """The agent of the last iteration whose update had finite numbers: what a run that has gone astray goes back to."""
    astray: int = 0
    """How many iterations in a row had none since."""
    halvings: int = 0
    """How often it went back, and has halved its steps since."""


def begin(recipe: Recipe, envs: VectorEnv, settings: TrainingSettings) -> tuple[Training, Record]:
    """Explore with random actions, fit scales and filter, make a policy that does not yet care about its state."""
    if recipe.rule.squashed:
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
    agent = Agent(filter, _policy(envs, filter.size, scaling_of_states, settings, recipe.rule.squashed, policy_key))
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
    # A few rows more than full ones would do, because episodes seldom fill them: one compilation less.
    rows = -(-5 * settings.samples // (4 * (max_episode_steps(envs) or settings.samples)))
    memory = recipe.rule.init(agent)
    if recipe.rule.explored is not None:
        memory = recipe.rule.explored(agent, memory, pack(episodes))
    return Training(0, samples, rows, agent, memory, scaling, (), agent), record


def advance(recipe: Recipe, envs: VectorEnv, settings: TrainingSettings, training: Training) -> tuple[Training, Record]:
    """One iteration: refit the filter if it is time, collect whole episodes, update the agent; and what came of it."""
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
    agent, memory, diagnostics = recipe.rule.step(before.agent, before.memory, batch)
    new = agent if training.halvings == 0 else part_way(agent, before.agent, 0.5**training.halvings)
    watched = diagnose(before.agent, new, batch, recipe.rule.moves_filter(before.agent))
    update = Update(batch, new, memory, watched | diagnostics)
    return concluded(recipe, settings, training, before, collected, update, (started, fitted, acted))


class Update(NamedTuple):
    """What an update rule made of a batch."""

    batch: Batch
    agent: Agent
    memory: Any
    diagnostics: dict[str, Array]


def concluded(
    recipe: Recipe,
    settings: TrainingSettings,
    training: Training,
    before: Refitted,
    collected: Collected,
    update: Update,
    times: tuple[float, float, float],
) -> tuple[Training, Record]:
    """The run after an iteration, and its record; `times` are when the iteration, acting and updating began."""
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
        agent, memory = in_renewed_units(recipe.rule, agent, memory, update.batch)
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
    return _led_back(recipe, after, record)


def train(
    recipe: Recipe, envs: VectorEnv, settings: TrainingSettings, iterations: int, training: Training | None = None
) -> Iterator[tuple[Training, Record]]:
    """Algorithm 1: the state of the run and the record of every iteration, up to `iterations` of them in all.

    Without a `training` to go on from, the first thing to come is the initialisation and its record.
    """
    if training is None:
        training, record = begin(recipe, envs, settings)
        yield training, record
    while training.iteration < iterations:
        training, record = advance(recipe, envs, settings, training)
        yield training, record


def _encoded(episodes: list[Episode], envs: VectorEnv) -> tuple[Scaling | OneHot, list[Episode]]:
    """Explored episodes in the agent's units, and the units of observations."""
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
    """Refuse actions that no tanh can reach, before anything is done."""
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
    """Episodes packed into at least `rows` rows as long as an episode can be; more rows come by half as many again."""
    longest = max(map(len, collected.episodes))
    limit = max_episode_steps(envs) or 1 << (longest - 1).bit_length()
    needed = pack(collected.episodes, row_length=limit, states=collected.states)
    while rows < needed.shape[0]:
        rows = max(needed.shape[0], rows + rows // 2)
    return padded(needed, rows)


def padded(batch: Batch, rows: int) -> Batch:
    """The same batch with rows of filler up to `rows`."""
    missing = rows - batch.shape[0]
    padded = jax.tree.map(lambda x: np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)), batch)
    padded.starts[~padded.mask] = True
    return padded


def max_episode_steps(envs: VectorEnv) -> int | None:
    """When the environment truncates an episode, if it says so: in its spec, or by a TimeLimit around the first."""
    if envs.spec is not None and envs.spec.max_episode_steps is not None:
        return envs.spec.max_episode_steps
    try:
        return envs.unwrapped.envs[0].get_wrapper_attr("_max_episode_steps")  # pyright: ignore[reportAttributeAccessIssue]
    except AttributeError:
        return None


ASTRAY, HALVINGS = 5, 10
"""So many iterations in a row without a finite update, and a run goes back; so often, and it gives up."""


def _led_back(recipe: Recipe, training: Training, record: Record) -> tuple[Training, Record]:
    """After too many updates that were skipped, back to the agent that could last be updated, to go on in smaller steps.

    A skipped update leaves the agent as it was, so what is sick is the last one that was done. Whatever the rule
    remembers may be sick as well, and is forgotten.
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
        training = replace(training, agent=sound, memory=recipe.rule.init(sound), astray=0, halvings=halvings)
        record = record | {"rolled_back": 1.0}
    return training, record if training.halvings == 0 else record | {"step_scale": 0.5**training.halvings}


def part_way(new: Agent, old: Agent, fraction: Numbers | float) -> Agent:
    """The agent that has gone only this fraction of the way from `old` to `new`."""
    return jax.tree.map(
        lambda a, b: jnp.where(fraction == 1, a, b + fraction * (a - b)) if eqx.is_inexact_array(a) else a, new, old
    )


SMALLEST_UNIT = 0.1
"""Of the largest: what spreads less than that is not blown up."""


def in_renewed_units(rule: UpdateRule, agent: Agent, memory: Any, batch: Batch) -> tuple[Agent, Any]:
    """The same functions of a state, the inputs of the policy, and of what the rule remembers, in the batch's own units.

    The states of a robot that walks lie elsewhere than those of one that falls, and spread ten times as far, unevenly.
    """
    network = getattr(agent.policy, "network", None)
    if not isinstance(network, Network):
        return agent, memory
    if batch.states is None or rule.moves_filter(agent):
        states = reached(agent.filter, batch)
    else:
        states = np.asarray(batch.states, np.float64)[batch.mask]
    units = input_scaling(agent.filter, states, SMALLEST_UNIT)
    if rule.in_units is not None:
        memory = rule.in_units(agent, memory, units)
    return eqx.tree_at(lambda a: a.policy.network, agent, in_units(network, units)), memory


class Refitted(NamedTuple):
    """An agent that is about to act, what its rule remembers, and what a refit before that came to."""

    agent: Agent
    memory: Any
    record: Record


def refit_if_due(recipe: Recipe, settings: TrainingSettings, training: Training) -> Refitted:
    """The agent with its filter refitted to recent batches, where it is time and needed; kept if it predicts better and acts
    alike."""
    agent, memory = training.agent, training.memory
    if recipe.refit is None or training.iteration not in settings.refit_before or not training.recent:
        return Refitted(agent, memory, {})
    rng = np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(3, training.iteration)))
    batch, held = _rows_split(training.recent, settings, rng)
    watched = diagnose(agent, agent, held, False)
    # A belief that predicts well is left alone: better predictions alone made no run better, and every refit costs a little.
    if watched["prediction_error"] <= settings.refit_above * watched["persistence_error"]:
        return Refitted(agent, memory, {"refit_skipped": 1.0})
    try:
        candidate = recipe.refit.fit(agent, batch, held, rng)
    except (UsageError, DivergedError):  # such as episodes that have become too short for a window
        return Refitted(agent, memory, {"refit_accepted": 0.0})
    before, after = one_step_error(agent.filter, held), one_step_error(candidate.filter, held)
    kl = float(diagnose(agent, candidate, held, True)["whole_kl"])
    # Somewhat better predictions are no use if they take the policy's input from under it: a KL of 0.7 undid a hundred
    # updates. But a belief that has lost its way is worth more than what the policy made of it.
    accepted = after < before and (kl <= settings.refit_kl or after < before / 2)
    record = {
        "refit_error_before": before,
        "refit_error_after": after,
        "refit_kl": kl,
        "refit_accepted": float(accepted),
    }
    if not accepted:
        return Refitted(agent, memory, record)
    if recipe.rule.moves_filter(agent) or not recipe.refit.same_coordinates:
        memory = recipe.rule.init(candidate)  # moments of parameters, or a critic of states, with another meaning now
    elif recipe.rule.refitted is not None:
        memory = recipe.rule.refitted(candidate, memory)
    return Refitted(candidate, memory, record)


def _rows_split(
    batches: tuple[Batch, ...], settings: TrainingSettings, rng: np.random.Generator
) -> tuple[Batch, Batch]:
    """Rows of some batches, shuffled: at most about `refit_samples` steps, of which about `held_out` are held out."""
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
    # One shape for all refits of a run, and for both parts: as many rows as so many steps take when four fifths full.
    usual = -(-5 * settings.refit_samples // (4 * time_steps))
    if len(order) * settings.held_out < 1:  # a row is too much; of the episodes that it holds some will do
        parts = split(unpack(_take(rows, order, 0)), settings.held_out, rng=rng, keep=settings.min_length)
        fitted, held = (pack(part, row_length=time_steps) for part in parts)
        return _take(fitted, np.arange(len(fitted.mask)), usual), _take(held, np.arange(len(held.mask)), usual)
    held = max(1, round(settings.held_out * len(order)))
    return _take(rows, order[held:], usual), _take(rows, order[:held], usual)


def _take(batch: Batch, rows: np.ndarray, least: int) -> Batch:
    """Some rows, filled up to at least so many and to a multiple of eight: few shapes, few compilations."""
    return padded(jax.tree.map(lambda x: x[rows], batch), -(-max(least, len(rows)) // 8) * 8)


def _still_wanted(recent: tuple[Batch, ...], iteration: int, settings: TrainingSettings) -> tuple[Batch, ...]:
    """Of the batches before `iteration`, those that the next refit will see: all others need not be kept or saved."""
    later = [n for n in settings.refit_before if n >= iteration]
    if not later:
        return ()
    dropped = max(0, min(later) - iteration)  # that many newer ones will come before
    keep = max(0, settings.refit_batches - dropped)
    return recent[-keep:] if keep else ()


@eqx.filter_jit
def diagnose(old: Agent, new: Agent, batch: Batch, moved: bool) -> dict[str, Array]:
    """How well the filter that acted predicts, beside persistence; and how far filter and policy together have moved."""
    batch = jax.tree.map(jnp.asarray, batch)
    mask = jnp.asarray(batch.mask)
    before = unroll(old.filter, batch) if batch.states is None else jnp.asarray(batch.states)
    # A new filter's states must be computed, which takes as long as acting did: every fourth row will do for a log.
    rows = slice(None, None, 4 if moved else 1)
    after = unroll(new.filter, jax.tree.map(lambda x: x[rows], batch)) if moved else before
    predicted = predictions(old.filter, before, jnp.asarray(batch.actions))
    return {
        "prediction_error": _normalised(predicted, batch),
        "persistence_error": _normalised(jnp.asarray(batch.previous_observations), batch),
        "whole_kl": mean_kl(distributions(old.policy, before[rows]), distributions(new.policy, after), mask[rows]),
    }


def _normalised(predicted: Float[Array, "row time obs"], batch: Batch) -> Float[Array, ""]:
    """Squared error over variance, pooled over observation dimensions: 0 perfect, 1 the mean."""
    mask, actual = jnp.asarray(batch.mask)[..., None], jnp.asarray(batch.observations)
    mask = jnp.broadcast_to(mask, actual.shape)

    def mean(x: Array) -> Array:
        return jnp.sum(jnp.where(mask, x, 0.0), axis=(0, 1)) / jnp.maximum(jnp.sum(mask[..., 0]), 1)

    variance = jnp.sum(mean((actual - mean(actual)) ** 2))
    return jnp.sum(mean((predicted - actual) ** 2)) / jnp.maximum(variance, 1e-12)
