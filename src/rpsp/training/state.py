"""What Algorithm 1 needs and keeps: the parts of a method, its settings, and the state of a run between two iterations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from rpsp.algorithms.base import AbstractAlgorithm
from rpsp.algorithms.networks import Body
from rpsp.algorithms.policies import Agent
from rpsp.data.batches import Batch
from rpsp.data.scaling import Encoding
from rpsp.errors import UsageError
from rpsp.filters.belief import Belief, check_at_least

Record = dict[str, float | int]
"""Metrics of an iteration by name. Timings are named *_seconds or *_per_second; everything else is reproducible."""

INIT_STREAM, STEP_STREAM, REFIT_STREAM = 2**31, 2**31 + 1, 2**31 + 2
"""Streams of random numbers for an algorithm's `init` and `step`, and for refits. `begin` uses the first two subkeys of
the seed's key."""


def key_for(seed: int, stream: int, iteration: int) -> PRNGKeyArray:
    """Derive a random key from the seed of a run, a stream and an iteration.

    Args:
        seed: the root of all randomness.
        stream: `INIT_STREAM`, `STEP_STREAM` or `REFIT_STREAM`.
        iteration: counted from 0.
    """
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), stream), iteration)


class Recipe(NamedTuple):
    """What Algorithm 1 leaves open: the belief that fits the filter, and the algorithm that changes the agent."""

    belief: Belief
    algorithm: AbstractAlgorithm


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """The settings of Algorithm 1 that a method may choose."""

    hidden: tuple[int, ...] = (16,)
    """Sizes of the hidden layers of the policy, and of the critics of PPO and SAC."""
    body: Body = "plain"
    """Kind of network of the policy, and of the critics of PPO and SAC. plain: fully connected. residual: residual blocks
    with layer normalisation; --hidden gives their width once for each block. Not in the paper."""
    log_std: float = 0.0
    """Initial logarithm of the policy's standard deviation (continuous actions)."""
    pink_noise: float = 0.0
    """Fraction of the variance of the actions' noise that is pink: correlated over up to hundreds of steps, so that an
    agent explores farther. If it is above 0, every second random episode before training has only pink noise. Not in the
    paper."""
    plus_obs: int = 0
    """Number of recent observations that the policy gets in addition to the state. The paper's +obs is 2."""
    image_components: int = 8
    """Largest number of coordinates that represent an image: its principal components, fitted to the exploration."""
    refit_before: tuple[int, ...] = ()
    """Iterations, counted from 0, before which the filter is refitted to recent batches. After two rejected refits in a
    row some are left out. Not in the paper."""
    refit_when: float | None = None
    """Refit whenever the filter's one-step error on the latest batch exceeds this fraction of the error of persistence.
    None: only before the iterations of --refit-before. Not in the paper."""
    refit_wait: int = 4
    """Number of iterations from one refit to the next that --refit-when may start, doubled by every rejection in a row."""
    refit_batches: int = 3
    """Refit: number of latest batches to use."""
    refit_samples: int = 20_000
    """Refit: approximate maximum number of steps to use."""
    refit_above: float = 0.1
    """Refit only if the filter's one-step error exceeds this fraction of the error of persistence."""
    refit_kl: float = 0.1
    """Reject a refit that changes the policy by a larger mean KL divergence, unless it halves the error."""
    renew_units: bool = False
    """Rescale the policy's input to the states it reaches, after 1, 2, 4, … iterations. Not in the paper."""

    def __post_init__(self) -> None:
        """Check the settings."""
        check_at_least(self, 1, "hidden")
        check_at_least(self, 1, "image_components", most=1000)
        check_at_least(self, 1, "refit_wait", "refit_batches", "refit_samples", most=None)
        check_at_least(self, 0, "plus_obs", "refit_above", "refit_when")
        if not 0 <= self.pink_noise <= 1:
            raise UsageError(f"pink_noise: {self.pink_noise} is not between 0 and 1; useful values are 0.5 and 1.")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(LoopSettings):
    """All settings of Algorithm 1: those of the method, sizes and the seed."""

    samples: int
    """Least number of environment steps in an iteration."""
    exploration_episodes: int | None = 100
    """Episodes of random actions to which scales and filter are fitted."""
    exploration_samples: int | None = None
    """Least number of exploration steps, if `exploration_episodes` is None."""
    held_out: float = 0.2
    """Fraction of the data kept from fitting, to evaluate a fit."""
    seed: int = 0
    """The root of all randomness."""
    missing: bool = False
    """Whether observations may be NaN, which means that a reading is missing. The filter then goes on without it."""
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
    scaling: Encoding
    """The scaling of observations, fitted to the exploration."""
    recent: tuple[Batch, ...]
    """The latest batches, as far as a later refit will use them."""
    sound: Agent
    """The agent of the last iteration whose step was finite; a run that diverges goes back to it."""
    astray: int = 0
    """Number of iterations in a row since then whose step was not finite."""
    halvings: int = 0
    """How often the run went back; each time its steps are halved."""
    error_ratio: float = 0.0
    """The filter's one-step error on the latest batch, divided by that of persistence. 0 before the first iteration."""
    refit_from_iteration: int = 0
    """The first iteration before which the next refit may start, if `refit_when` starts it or refits were rejected."""
    refits_rejected: int = 0
    """Number of rejected refits in a row."""
