"""Kernel Bayes rule on what a linear filter cannot predict. Not part of the paper.

Random Fourier features of observations do not transfer well from the data of one policy to those of the next: a robot that
has learned to walk moves through other positions than one that falls. What a linear predictor leaves over stays small and
centred. So a linear filter predicts the observation, and the paper's filter conditions on the residual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.data.randomness import generator
from rpsp.filters.base import AbstractFilter, compiled_predictions, constant
from rpsp.filters.belief import check_at_least
from rpsp.filters.inference import Inference, InferenceFilter, fit_inference, refit_inference
from rpsp.filters.kernel_bayes import KernelBayesFilter
from rpsp.filters.refinement import refined
from rpsp.filters.two_stage import KernelBayes, fit_two_stage


class ResidualFilter(AbstractFilter):
    """A linear filter, and a kernel Bayes filter of its residuals.

        e_t = (o_t − L(x_t, a_t)) / s          (0 for a reset observation)
        x_{t+1} = f_L(x_t, a_t, o_t)
        p_{t+1} = f_K(p_t, a_t, e_t)
        o_t ≈ L(x_t, a_t) + s K(p_t, a_t)

    where f_L and L are the update and the prediction of the linear filter, f_K and K those of the kernel Bayes filter, s is
    the spread of the residuals, and the state is q_t = [x_t, p_t].
    """

    residual: KernelBayesFilter
    linear: InferenceFilter = constant()
    spread: Float[Numbers, " obs"] = constant()
    """s."""

    def init(self) -> Float[Array, " q"]:
        return jnp.concatenate([self.linear.init(), self.residual.init()])

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        x, p = self.parts_of(q)
        # A linear filter has no prediction before the first observation of an episode.
        e = jnp.where(x[-1] == 0, 0.0, (observation - self.linear.predict(x, action)) / self.spread)
        return jnp.concatenate([self.linear.update(x, action, observation), self.residual.update(p, action, e)])

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        x, p = self.parts_of(q)
        return self.linear.predict(x, action) + self.spread * self.residual.predict(p, action)

    def parts_of(self, q: Float[Array, "*rows q"]) -> tuple[Float[Array, "*rows x"], Float[Array, "*rows p"]]:
        """Split states into x and p."""
        n = self.linear.size
        return q[..., :n], q[..., n:]


@dataclass(frozen=True)
class ResidualKernelBayes(KernelBayes):
    """A `ResidualFilter`: the paper's filter on the residual of a linear one."""

    kind: ClassVar[str] = "kernel-bayes-residual"

    linear_dimension: int = 30
    """Maximum number of coordinates of the linear filter."""
    refit_epochs: int = 10
    """Number of refinement epochs of a refit."""

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_at_least(self, 1, "linear_dimension")

    @property
    def linear(self) -> Inference:
        """The settings of the linear filter."""
        return Inference(
            past=self.past, future=self.future, dimension=self.linear_dimension, bumps=1, bends=(1e9,), only_reliable=False
        )

    def fit(self, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> AbstractFilter:
        """Fit the linear filter, then the kernel Bayes filter to its residuals; refine the latter."""
        linear_key, key = jax.random.split(key)
        linear = fit_inference(batch, held_out, self.linear, rng=generator(linear_key))
        return self._on(linear, batch, held_out, self.epochs, key=key)

    def refit(self, filter: AbstractFilter, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> AbstractFilter:
        """Repeat the fit on recent episodes. The coordinates of the linear filter keep their meaning."""
        assert isinstance(filter, ResidualFilter)
        linear_key, key = jax.random.split(key)
        linear = refit_inference(filter.linear, batch, held_out, self.linear, rng=generator(linear_key))
        return self._on(linear, batch, held_out, self.refit_epochs, key=key)

    def _on(
        self, linear: InferenceFilter, batch: Batch, held_out: Batch, epochs: int, *, key: PRNGKeyArray
    ) -> ResidualFilter:
        """Fit and refine the kernel Bayes filter on the residuals of a linear filter.

        The residuals do not depend on the kernel Bayes filter, so it is refined on them alone.
        """
        fit_key, refine_key = jax.random.split(key)
        residuals = residuals_of(linear, batch)
        spread = np.maximum(residuals[np.asarray(batch.mask)].std(axis=0), SMALLEST_SPREAD)
        fitted, held = (
            with_observations(b, e / spread) for b, e in ((batch, residuals), (held_out, residuals_of(linear, held_out)))
        )
        filter = refined(fit_two_stage(fitted, self, rng=generator(fit_key)), fitted, held, epochs, key=refine_key)
        return ResidualFilter(filter, linear, jnp.asarray(spread, jnp.float32))


SMALLEST_SPREAD = 1e-6
"""Smallest spread of a residual, for observations that are predicted exactly."""


def residuals_of(filter: AbstractFilter, batch: Batch) -> Float[np.ndarray, "row time obs"]:
    """Return o_t − E[o_t | q_t, a_t] of all steps; 0 at padding."""
    e = np.asarray(batch.observations) - np.asarray(compiled_predictions(filter, batch))
    return np.where(np.asarray(batch.mask)[..., None], e, 0.0).astype(np.float32)


def with_observations(batch: Batch, observations: Float[np.ndarray, "row time obs"]) -> Batch:
    """Return the batch with other observations. Those at a reset become 0."""
    before = np.zeros_like(observations)
    before[:, 1:] = observations[:, :-1]
    before[np.asarray(batch.starts)] = 0.0
    return replace(batch, observations=observations, previous_observations=before, states=None)
