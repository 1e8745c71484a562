"""From a row of the methods table to what Algorithm 1 runs: a belief and an algorithm, composed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from rpsp.algorithms.alternating import InSequence
from rpsp.algorithms.base import AbstractAlgorithm, Select, everything, filter_only, policy_only
from rpsp.algorithms.ppo import Ppo
from rpsp.algorithms.sac import Sac
from rpsp.algorithms.trpo import Trpo
from rpsp.algorithms.vrpg import Vrpg
from rpsp.data.batches import Batch
from rpsp.errors import UsageError
from rpsp.experiments.methods import Method, MethodSettings
from rpsp.filters.base import AbstractFilter, Concatenated, random_like
from rpsp.filters.inference import InferenceSettings, fit_inference
from rpsp.filters.memory import GRU, observation_window
from rpsp.filters.refinement import RefinementSettings, refine
from rpsp.filters.tabular import TabularSettings, fit_tabular
from rpsp.filters.two_stage import TwoStageSettings, fit_two_stage
from rpsp.training.loop import Recipe, TrainingSettings
from rpsp.training.refits import Refit, keep_coordinates, new_coordinates

Initialise = Callable[[Batch, Batch, np.random.Generator, PRNGKeyArray], AbstractFilter]


class Belief(NamedTuple):
    """How a filter is initialised, and how it is refitted if it can be."""

    initialise: Initialise
    refit: Refit | None = None
    min_length: int = 1
    """Steps that an exploration episode must have to be of use."""


# ---------------------------------------------------------------------------------------------------------------------
# Beliefs
# ---------------------------------------------------------------------------------------------------------------------


def kernel_bayes(s: MethodSettings) -> Belief:
    """The paper's: two-stage regression, then refinement."""
    settings = _share(TwoStageSettings, s)

    def initialise(batch: Batch, held: Batch, rng: np.random.Generator, key: PRNGKeyArray) -> AbstractFilter:
        filter = fit_two_stage(batch, settings, rng=rng)
        if s.random:
            key, drawn = jax.random.split(key)
            filter = random_like(filter, key=drawn)
        return _refined(filter, batch, held, s.epochs, key)

    refit = new_coordinates(lambda batch, rng: fit_two_stage(batch, settings, rng=rng))
    return Belief(initialise, refit, settings.future + 1)


def inference(s: MethodSettings) -> Belief:
    """Ours: the state update regressed directly."""
    # Coordinates that refits keep must last: what the exploration cannot tell from noise, later data can.
    settings = replace(_share(InferenceSettings, s), only_reliable=not s.refit_before)

    def initialise(batch: Batch, held: Batch, rng: np.random.Generator, key: PRNGKeyArray) -> AbstractFilter:
        return fit_inference(batch, held, settings, rng=rng)

    return Belief(initialise, keep_coordinates(settings), settings.future + 1)


def finite_memory(s: MethodSettings) -> Belief:
    """The last few observations."""

    def initialise(batch: Batch, held: Batch, rng: np.random.Generator, key: PRNGKeyArray) -> AbstractFilter:
        return observation_window(s.window, *_sizes(batch))

    return Belief(initialise)


def gru(s: MethodSettings) -> Belief:
    """A gated recurrent unit; unless `epochs` is 0, first trained to predict (the paper's reg_GRU)."""

    def initialise(batch: Batch, held: Batch, rng: np.random.Generator, key: PRNGKeyArray) -> AbstractFilter:
        key, drawn = jax.random.split(key)
        filter = GRU(s.units, *_sizes(batch), key=drawn)
        return _refined(filter, batch, held, 60 if s.epochs is None else s.epochs, key)

    return Belief(initialise)


def tabular(s: MethodSettings) -> Belief:
    """For symbols: Bayes rule on a table learned by counting."""
    settings = _share(TabularSettings, s)

    def initialise(batch: Batch, held: Batch, rng: np.random.Generator, key: PRNGKeyArray) -> AbstractFilter:
        for name, x in (("observations", batch.observations), ("actions", batch.actions)):
            if not np.isin(x, (0, 1)).all():
                raise UsageError(f"method: tabular is for symbols, and the {name} are numbers; try rpsi-trpo.")
        return fit_tabular(batch, held, settings)

    return Belief(initialise, min_length=settings.future + 1)


def _refined(
    filter: AbstractFilter, batch: Batch, held: Batch, epochs: int | None, key: PRNGKeyArray
) -> AbstractFilter:
    settings = RefinementSettings() if epochs is None else RefinementSettings(epochs=epochs)
    return refine(filter, batch, held, settings, key=key).filter if settings.epochs else filter


def _plus_observations(belief: Belief, s: MethodSettings) -> Belief:
    """+obs: the policy sees the latest observations beside the state."""

    def initialise(batch: Batch, held: Batch, rng: np.random.Generator, key: PRNGKeyArray) -> AbstractFilter:
        return Concatenated(belief.initialise(batch, held, rng, key), observation_window(s.plus_obs, *_sizes(batch)))

    return belief._replace(initialise=initialise)


# ---------------------------------------------------------------------------------------------------------------------
# Algorithms
# ---------------------------------------------------------------------------------------------------------------------


def policy_alone(s: MethodSettings) -> AbstractAlgorithm:
    """TRPO on the reactive policy; the filter is frozen."""
    return Trpo(**_named(s, "max_kl", "damping", "discount"), moves=policy_only)


def through_time(s: MethodSettings) -> AbstractAlgorithm:
    """TRPO on filter and policy together, with Fisher products through time."""
    return Trpo(**_named(s, "max_kl", "damping", "discount"), moves=everything)


def joint(s: MethodSettings) -> AbstractAlgorithm:
    """VRPG: one gradient step on everything."""
    return _gradient_step(s, everything)


def alternating(s: MethodSettings) -> AbstractAlgorithm:
    """TRPO on the policy, then a gradient step on the filter."""
    return InSequence(policy_alone(s), _gradient_step(s, filter_only))


def proximal(s: MethodSettings) -> AbstractAlgorithm:
    """PPO with generalised advantage estimation and a learned critic."""
    names = "learning_rate", "clip", "minibatch", "discount", "gae", "entropy_weight", "hidden"
    return Ppo(**_named(s, *names, "normalise", "scale_rewards", "bootstrap", "anneal"), epochs=s.passes)


def off_policy(s: MethodSettings) -> AbstractAlgorithm:
    """Soft actor-critic: learns from every step many times."""
    names = "learning_rate", "discount", "minibatch", "ratio", "capacity", "hidden", "recompute", "normed"
    return Sac(**_named(s, *names))


def _gradient_step(s: MethodSettings, moves: Select) -> AbstractAlgorithm:
    shared = _named(s, "learning_rate", "return_weight", "prediction_weight", "discount", "truncate", "policy_rate")
    return Vrpg(**shared, moves=moves, max_kl=s.filter_kl)


def _named(s: MethodSettings, *names: str) -> dict[str, Any]:
    """Return settings that an algorithm has under the same names. Named one by one: `epochs`, say, has two meanings."""
    return {name: getattr(s, name) for name in names}


# ---------------------------------------------------------------------------------------------------------------------
# The table
# ---------------------------------------------------------------------------------------------------------------------

BELIEFS = {f.__name__: f for f in (kernel_bayes, inference, finite_memory, gru, tabular)}
UPDATES = {f.__name__: f for f in (policy_alone, through_time, joint, alternating, proximal, off_policy)}


def algorithm(method: Method, settings: MethodSettings) -> AbstractAlgorithm:
    """Return the algorithm of a row of the table.

    Raises:
        UsageError: if a setting of the algorithm is out of range.
    """
    return method.update(settings) if callable(method.update) else UPDATES[method.update](settings)


def recipe(method: Method, settings: MethodSettings) -> tuple[Recipe, int]:
    """Return what Algorithm 1 runs for a row of the table, and the least length of an exploration episode.

    Raises:
        UsageError: if a setting of the algorithm is out of range.
    """
    belief = method.belief(settings) if callable(method.belief) else BELIEFS[method.belief](settings)
    if settings.plus_obs:
        belief = _plus_observations(belief, settings)
    return Recipe(
        belief.initialise, algorithm(method, settings), belief.refit if settings.refit_before else None
    ), belief.min_length


READ_LATER = {"kernel_bayes": {"random", "epochs"}, "finite_memory": {"window"}, "gru": {"units", "epochs"}}
"""Settings that a belief reads only when it is initialised."""


def unused(method: Method, settings: MethodSettings) -> list[str]:
    """Return the settings that differ from the row's and that the method ignores. Empty for a user's belief or algorithm."""
    if callable(method.belief) or callable(method.update):
        return []
    watched = _Watched(**vars(settings))
    BELIEFS[method.belief](watched)
    UPDATES[method.update](watched)
    used = vars(watched)["_read"] | READ_LATER.get(method.belief, set()) | {"plus_obs", "refit_before"}
    used |= {field.name for field in fields(TrainingSettings)}
    usual = method.settings()
    given = [f.name for f in fields(settings) if getattr(settings, f.name) != getattr(usual, f.name)]
    return [name for name in given if name not in used]


class _Watched(MethodSettings):
    """Settings that remember which of them were asked for."""

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "__dict__").setdefault("_read", set()).add(name)
        return super().__getattribute__(name)


def _share(cls: type, s: MethodSettings) -> Any:
    """Settings of a belief: those of the method that it has as well, where they are given."""
    return cls(
        **{n: v for n in ("past", "future", "dimension") if hasattr(cls, n) and (v := getattr(s, n)) is not None}
    )


def _sizes(batch: Batch) -> tuple[int, int]:
    return batch.observations.shape[-1], batch.actions.shape[-1]
