"""On-policy refits: the filter is fitted again to the policy's own data. Not in the paper.

A filter that was fitted to random exploration predicts badly once the policy has learned and visits other states. A refit
must preserve what the policy does. The direct-inference filter keeps the meaning of its coordinates; for other filters
the policy's first layer is expressed in the new coordinates by regression. Then the policy is trained to imitate, on the
new states, what it did on the old ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.algorithms.networks import Network, input_scaling, with_first_layer
from rpsp.algorithms.policies import Agent
from rpsp.data import trees
from rpsp.data.batches import Batch, pack, padded, unpack
from rpsp.data.episodes import split
from rpsp.data.linalg import ridge
from rpsp.data.scaling import Scaling
from rpsp.errors import DivergedError, UsageError
from rpsp.filters.base import AbstractFilter, Concatenated, one_step_error, reached, trainable
from rpsp.filters.belief import Belief
from rpsp.filters.gaps import GapFilter
from rpsp.filters.gaps_fit import refit_with_gaps
from rpsp.training.diagnostics import diagnose
from rpsp.training.state import INIT_STREAM, REFIT_STREAM, Recipe, Record, Training, TrainingSettings, key_for


def refitted(
    belief: Belief, agent: Agent, batch: Batch, held_out: Batch, *, key: PRNGKeyArray, rng: np.random.Generator
) -> Agent | None:
    """Refit the filter of an agent, and keep what its policy does.

    If state coordinates do not keep their meaning, the first layer of the policy is expressed in the new ones by
    regression. Then the policy is trained to imitate, on the new states, what it did on the old ones.

    Args:
        belief: how the filter is refitted.
        agent: the agent that acts.
        batch: recent training episodes.
        held_out: recent held-out episodes.
        key: the source of the randomness of the fit.
        rng: chooses the steps that are imitated.

    Returns:
        The new agent, or None if the belief keeps its filter.
    """
    kept = _predictive(agent)
    if isinstance(kept, GapFilter):
        filter = refit_with_gaps(belief, kept, batch, held_out, key=key)
    else:
        filter = belief.refit(kept, batch, held_out, key=key)
    if filter is None:
        return None
    new = _with_predictive(agent, filter)
    old_states, new_states = (reached(a.filter, batch, held_out) for a in (agent, new))
    policy: Any = agent.policy
    if not belief.keeps_coordinates:
        scaling = input_scaling(new.filter, new_states)
        network = re_expressed(policy.network, old_states, new_states, scaling)
        new = eqx.tree_at(lambda a: a.policy.network, new, network)
    return _imitator(new, policy, old_states, new_states, rng)


def re_expressed(
    network: Network, old: np.ndarray, new: np.ndarray, scaling: Scaling, penalty: float = 1e-5
) -> Network:
    """Express a network of states q in new states q'.

    With z ≈ A z' + b by ridge regression, the first layer W z + c becomes W A z' + (W b + c).

    Args:
        network: the network; W and c are the weight and bias of its first layer.
        old: the states q; z is q in the network's scaling.
        new: the states q' at the same steps; z' is q' in the new scaling.
        scaling: the new scaling.
        penalty: ridge per sample.
    """
    z = (old - np.asarray(network.mean)) / np.asarray(network.scale)
    z_new = np.insert(scaling.encode(new), 0, 1.0, axis=1)
    b, *A = ridge(z_new, z, penalty * len(z))
    first = network.layers[0]
    W = np.asarray(first.weight, np.float64)
    bias = np.asarray(first.bias, np.float64) + W @ b
    return with_first_layer(network, W @ np.transpose(A), bias, scaling)


IMITATED = 4096  # steps on which a policy imitates: one size, one compilation


def _imitator(new: Agent, old: Any, old_states: np.ndarray, new_states: np.ndarray, rng: np.random.Generator) -> Agent:
    """Return the new agent with a policy that imitates the old one at the same steps."""
    some = rng.choice(len(old_states), min(len(old_states), IMITATED), replace=False)
    (home,) = old.network.mean.devices()  # the fit may run on another device; this runs where the policy learns
    with jax.default_device(home):
        pairs = (jnp.asarray(x[some], jnp.float32) for x in (old_states, new_states))
        return eqx.tree_at(lambda a: a.policy.network, new, imitating(new.policy, old, *pairs))


@eqx.filter_jit
def imitating(
    policy: Any, old: Any, old_states: Float[Array, "n q_old"], new_states: Float[Array, "n q"], *, steps: int = 400
) -> Network:
    """Minimise mean_t KL(π_old(· | q_t) ‖ π(· | q'_t)) over the network of π by Adam, and return the better network.

    π_old is the old policy on the old states q_t, and π is `policy` on the new states q'_t. A linear change of the first
    layer cannot undo a nonlinear change of the states; the other layers can, in part.
    """
    moving, fixed = eqx.partition(policy.network, trainable(policy.network))
    optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, steps))
    targets = jax.vmap(old)(old_states)

    def loss(moving: Any) -> Array:
        imitator = eqx.tree_at(lambda p: p.network, policy, eqx.combine(moving, fixed))
        return jnp.mean(jax.vmap(lambda target, q: target.kl(imitator(q)))(targets, new_states))

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        moving, state = carry
        updates, state = optimiser.update(jax.grad(loss)(moving), state)
        return (optax.apply_updates(moving, updates), state), None

    moved = jax.lax.scan(step, (moving, optimiser.init(moving)), None, steps)[0][0]
    nearer = loss(moved) < loss(moving)
    return eqx.combine(trees.where(nearer, moved, moving), fixed)


def _predictive(agent: Agent) -> AbstractFilter:
    """Return the filter that is fitted: with +obs, the first of the two."""
    return agent.filter.first if isinstance(agent.filter, Concatenated) else agent.filter


def _with_predictive(agent: Agent, filter: AbstractFilter) -> Agent:
    if isinstance(agent.filter, Concatenated):
        filter = Concatenated(filter, agent.filter.second)
    return Agent(filter, agent.policy)


# ---------------------------------------------------------------------------------------------------------------------
# When to refit, and whether to accept it
# ---------------------------------------------------------------------------------------------------------------------


class Refitted(NamedTuple):
    """The agent that will act, the algorithm's memory, and the record of the refit before that."""

    agent: Agent
    memory: Any
    record: Record
    refit_from_iteration: int = 0
    """The first iteration before which the next refit may start, if `refit_when` starts it or refits were rejected."""
    refits_rejected: int = 0
    """Number of rejected refits in a row."""


def is_due(settings: TrainingSettings, training: Training) -> bool:
    """Return whether a refit is due before the next iteration: by its number, or by the error of the filter."""
    waiting = training.iteration < training.refit_from_iteration
    if training.iteration in settings.refit_before:
        return not (waiting and training.refits_rejected >= PATIENCE)
    if settings.refit_when is None or waiting:
        return False
    return training.error_ratio > settings.refit_when


PATIENCE = 2
"""Number of rejected refits in a row after which scheduled ones are left out."""
NEVER = 2**31 - 1


def next_refit(settings: TrainingSettings, iteration: int, rejected: int) -> int:
    """Return the first iteration before which the next refit may start.

    With `refit_when` it is `refit_wait` iterations later, doubled by every rejection in a row. Otherwise, after two
    rejections in a row one scheduled refit is left out, after three two, after four four, and so on.

    Args:
        settings: the schedule.
        iteration: the iteration before which a refit has been tried.
        rejected: number of rejected refits in a row.
    """
    if settings.refit_when is not None:
        return iteration + settings.refit_wait * 2**rejected
    if rejected < PATIENCE:
        return 0
    later = [n for n in sorted(settings.refit_before) if n > iteration]
    left_out = 2 ** (rejected - PATIENCE)
    return later[left_out] if left_out < len(later) else NEVER


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
    agent, memory, rejected = training.agent, training.memory, training.refits_rejected
    if not recipe.belief.can_refit or not training.recent or not is_due(settings, training):
        return Refitted(agent, memory, {}, training.refit_from_iteration, rejected)
    candidate, record = _candidate(recipe.belief, settings, training)
    if "refit_skipped" not in record:  # nothing was refused where the filter predicts well
        rejected = rejected + 1 if candidate is None else 0
    wait = next_refit(settings, training.iteration, rejected)
    if candidate is None:
        return Refitted(agent, memory, record, wait, rejected)
    return Refitted(candidate, _memory_after(recipe, settings, training, candidate), record, wait, rejected)


def _candidate(belief: Belief, settings: TrainingSettings, training: Training) -> tuple[Agent | None, Record]:
    """Refit the filter of a run. Return the new agent, or None if it is not accepted, and a record."""
    agent = training.agent
    rng = np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(3, training.iteration)))
    batch, held = _rows_split(training.recent, settings, belief.min_length, rng)
    watched = diagnose(agent, agent, held, False)
    # A filter that predicts well stays: better predictions alone improved no run, and every refit costs a little return.
    if watched["prediction_error"] <= settings.refit_above * watched["persistence_error"]:
        return None, {"refit_skipped": 1.0}
    key = key_for(settings.seed, REFIT_STREAM, training.iteration)
    try:
        candidate = refitted(belief, agent, batch, held, key=key, rng=rng)
    except (UsageError, DivergedError):  # such as episodes that have become too short for a window
        candidate = None
    if candidate is None:
        return None, {"refit_accepted": 0.0}
    of = _used_by(agent.filter, candidate.filter)
    before, after = one_step_error(agent.filter, held, of), one_step_error(candidate.filter, held, of)
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
    return candidate if accepted else None, record


def _used_by(*filters: AbstractFilter) -> np.ndarray | None:
    """Return which observations enter the state of any of these filters; None if all may."""
    parts = [filter.used for filter in filters]
    known = [np.asarray(part) > 0 for part in parts if part is not None]
    return np.any(known, axis=0) if len(known) == len(parts) else None


def _memory_after(recipe: Recipe, settings: TrainingSettings, training: Training, candidate: Agent) -> Any:
    """Return the algorithm's memory after an accepted refit."""
    if recipe.algorithm.moves_filter(training.agent) or not recipe.belief.keeps_coordinates:
        # Moments of parameters, or a critic of states, whose meaning has changed.
        return recipe.algorithm.init(candidate, key=key_for(settings.seed, INIT_STREAM, training.iteration))
    return recipe.algorithm.on_refit(candidate, training.memory)


def _rows_split(
    batches: tuple[Batch, ...], settings: TrainingSettings, min_length: int, rng: np.random.Generator
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
        parts = split(unpack(_take(rows, order, 0)), settings.held_out, rng=rng, keep=min_length)
        fitted, held = (pack(part, row_length=time_steps) for part in parts)
        return _take(fitted, np.arange(len(fitted.mask)), usual), _take(held, np.arange(len(held.mask)), usual)
    held = max(1, round(settings.held_out * len(order)))
    return _take(rows, order[held:], usual), _take(rows, order[:held], usual)


def _take(batch: Batch, rows: np.ndarray, least: int) -> Batch:
    """Return some rows, padded to at least `least` and to a multiple of eight: few shapes, few compilations."""
    return padded(jax.tree.map(lambda x: x[rows], batch), -(-max(least, len(rows)) // 8) * 8)


def still_wanted(recent: tuple[Batch, ...], iteration: int, settings: TrainingSettings) -> tuple[Batch, ...]:
    """Return those batches before `iteration` that the next refit will use. The others need not be kept or saved."""
    if settings.refit_when is not None:
        return recent[-settings.refit_batches :]
    later = [n for n in settings.refit_before if n >= iteration]
    if not later:
        return ()
    dropped = max(0, min(later) - iteration)  # number of newer batches before that refit
    keep = max(0, settings.refit_batches - dropped)
    return recent[-keep:] if keep else ()
