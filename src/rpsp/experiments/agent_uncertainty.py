"""How sure a trained agent's filter is of the next observation, and how surprising the last one was."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import VectorEnv
from jaxtyping import Float

from rpsp.algorithms.policies import Agent
from rpsp.data.batches import pack
from rpsp.data.episodes import Episode, split
from rpsp.data.scaling import Encoding, OneHot, Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, Concatenated
from rpsp.filters.gaps import GapFilter, state_and_covariance, without_gaps
from rpsp.filters.surprise import Innovation, innovation, p_values
from rpsp.filters.uncertainty import Forecast, GaussianUncertainty
from rpsp.filters.uncertainty_fit import fit_uncertainty
from rpsp.training.rollouts import collect

CALIBRATING = 2_000_000_000
"""The iteration number from which the seeds of the episodes for calibration derive, unlike those of any other episode."""
EPISODES, LEAST_STEPS = 20, 4000
"""Least number of episodes, and of steps, to which the uncertainty of an agent is fitted."""


class Surprise(NamedTuple):
    """How improbable the last observation is, given those before it. One row per environment."""

    z: Float[np.ndarray, "row obs"]
    """Observation minus expectation, in standard deviations of each sensor; NaN where it is missing."""
    p: Float[np.ndarray, " row"]
    """p-value: the share of observations of undisturbed episodes that are at least as surprising. NaN for the first
    observation of an episode, of which nothing is expected."""


def predictive(filter: AbstractFilter) -> AbstractFilter:
    """Return the filter that predicts: with observations beside the state, the first of the two."""
    return filter.first if isinstance(filter, Concatenated) else filter


def fitted_uncertainty(
    agent: Agent, scaling: Encoding, envs: VectorEnv | None, episodes: list[Episode] | None
) -> GaussianUncertainty:
    """Return the predictive distribution of an agent's filter.

    A filter that was trained with missing readings has one. For others it is fitted to episodes of the agent: half of them
    for noise and propagation, the others for calibration.

    Args:
        agent: the agent.
        scaling: the scaling of its observations.
        envs: where to play episodes. None: nowhere.
        episodes: scaled episodes instead.

    Raises:
        UsageError: if observations are symbols or images, or there is nothing to fit it to.
    """
    filter = predictive(agent.filter)
    if isinstance(scaling, OneHot):
        raise UsageError("expect: symbols have no standard deviation; expect(state) returns their probabilities.")
    if not isinstance(scaling, Scaling):
        raise UsageError("expect: images have no predictive distribution yet; observe the other entries only.")
    if isinstance(filter, GapFilter) and isinstance(filter.uncertainty, GaussianUncertainty):
        return filter.uncertainty
    if filter.accepts_gaps:
        raise UsageError(
            f"expect: {type(filter).__name__} has no predictive distribution with --missing nan; train an rpsi-* method."
        )
    if episodes is None:
        if envs is None:
            raise UsageError("envs: the environment of this agent is not known; call calibrate(episodes) first.")
        episodes = []
        while len(episodes) < EPISODES or sum(map(len, episodes)) < LEAST_STEPS:
            iteration = CALIBRATING + len(episodes)
            episodes += collect(agent, envs, scaling=scaling, episodes=EPISODES, seed=0, iteration=iteration).episodes
    if len(episodes) < 2:
        raise UsageError(f"episodes: {len(episodes)} is too few to calibrate on; give at least 2.")
    fitted, held = split(episodes, 0.5, rng=np.random.default_rng(0))
    return fit_uncertainty(filter, pack(fitted), pack(held))


def expected(
    filter: AbstractFilter, uncertainty: GaussianUncertainty, q: np.ndarray, actions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of the next observations, scaled, for rows of states and actions."""
    found: Forecast = _one_step(predictive(filter), uncertainty, q, actions)
    mean, covariance = (np.asarray(x, np.float64)[:, 0] for x in found)
    return mean, np.sqrt(np.maximum(np.diagonal(covariance, axis1=1, axis2=2), 0.0))


def surprise(
    filter: AbstractFilter, uncertainty: GaussianUncertainty, q: np.ndarray, actions: np.ndarray, seen: np.ndarray
) -> Surprise:
    """Return the surprise of scaled observations, given the states and actions before them."""
    found = _innovations(predictive(filter), uncertainty, q, actions, seen)
    return Surprise(np.asarray(found.z, np.float64), p_values(np.asarray(found.level, np.float64), uncertainty))


def _forecast(filter: AbstractFilter, uncertainty: GaussianUncertainty, q: Any, action: Any) -> Forecast:
    state, P = state_and_covariance(filter, uncertainty, q[: filter.size])
    return uncertainty.forecast(without_gaps(filter), state, P, action[None])


@eqx.filter_jit
def _one_step(filter: AbstractFilter, uncertainty: GaussianUncertainty, q: Any, actions: Any) -> Forecast:
    return jax.vmap(lambda q, a: _forecast(filter, uncertainty, q, a))(jnp.asarray(q), jnp.asarray(actions))


@eqx.filter_jit
def _innovations(
    filter: AbstractFilter, uncertainty: GaussianUncertainty, q: Any, actions: Any, seen: Any
) -> Innovation:
    def of_one(q: Any, action: Any, observation: Any) -> Innovation:
        return innovation(_forecast(filter, uncertainty, q, action), observation)

    return jax.vmap(of_one)(jnp.asarray(q), jnp.asarray(actions), jnp.asarray(seen))
