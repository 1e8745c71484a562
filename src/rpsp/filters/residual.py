"""Kernel Bayes rule on what a linear filter cannot predict. Not part of the paper.

Random Fourier features of observations do not transfer well from the data of one policy to those of the next: a robot that
has learned to walk moves through other positions than one that falls. What a linear predictor leaves over stays small and
centred. So a linear filter predicts the observation, and the paper's filter conditions on the residual.
"""

# pyright: reportUnknownMemberType=false
# The device type of jax.numpy is unknown to pyright.

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
from rpsp.filters.bumps import exported_regression
from rpsp.filters.inference import Inference, InferenceFilter, fit_inference, refit_inference
from rpsp.filters.two_stage import KernelBayes


class ResidualFilter(AbstractFilter):
    """A linear filter, and a kernel Bayes filter of its residuals.

        e_t = (o_t − L(x_t, a_t)) / s          (0 for a reset observation)
        x_{t+1} = f_L(x_t, a_t, o_t)
        p_{t+1} = f_K(p_t, a_t, e_t)
        o_t ≈ L(x_t, a_t) + s K(p_t, a_t)

    where f_L and L are the update and the prediction of the linear filter, f_K and K those of the kernel Bayes filter, s is
    the spread of the residuals, and the state is q_t = [x_t, p_t].
    """

    residual: AbstractFilter
    """The kernel Bayes filter."""
    linear: InferenceFilter = constant()
    """The linear filter."""
    spread: Float[Numbers, " obs"] = constant()
    """s."""

    def init(self) -> Float[Array, " q"]:
        """Return the initial states of both filters."""
        return jnp.concatenate([self.linear.init(), self.residual.init()])

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """Return x_{t+1} and p_{t+1}; e_t is 0 before the first observation, when there is no prediction yet."""
        x, p = self.parts_of(q)
        e = jnp.where(x[-1] == 0, 0.0, (observation - self.linear.predict(x, action)) / self.spread)
        return jnp.concatenate([self.linear.update(x, action, observation), self.residual.update(p, action, e)])

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """Return L(x_t, a_t) + s K(p_t, a_t)."""
        x, p = self.parts_of(q)
        return self.linear.predict(x, action) + self.spread * self.residual.predict(p, action)

    def exported(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the arrays of act.py's `residual`: those of both filters, and of the linear prediction."""
        prediction = exported_regression(self.linear.phi_pred, self.linear.W_pred, "pred_")
        both = self.linear.exported()[1] | self.residual.exported()[1]
        return "residual", {"spread": np.asarray(self.spread, np.float64)} | prediction | both

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
    """Number of refinement epochs of a refit. 0: none."""

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_at_least(self, 1, "linear_dimension")

    @property
    def linear(self) -> Inference:
        """The settings of the linear filter."""
        return Inference(
            past=self.past,
            future=self.future,
            dimension=self.linear_dimension,
            bumps=1,
            bends=(1e9,),
            only_reliable=False,
            ignore_useless=False,  # the residuals of all sensors are observations of the kernel Bayes filter
        )

    def fit(self, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> AbstractFilter:
        """Fit the linear filter, then the kernel Bayes filter to its residuals.

        The residuals do not depend on the kernel Bayes filter, so it is fitted and refined on them alone.
        """
        linear_key, key = jax.random.split(key)
        linear = fit_inference(batch, held_out, self.linear, rng=generator(linear_key))
        fitted, held, spread = _on_residuals(linear, batch, held_out)
        return ResidualFilter(super().fit(fitted, held, key=key), linear, jnp.asarray(spread))

    def refit(self, filter: AbstractFilter, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> AbstractFilter:
        """Repeat the fit on recent episodes. The coordinates of the linear filter keep their meaning."""
        assert isinstance(filter, ResidualFilter)
        linear_key, key = jax.random.split(key)
        linear = refit_inference(filter.linear, batch, held_out, self.linear, rng=generator(linear_key))
        fitted, held, spread = _on_residuals(linear, batch, held_out)
        inner = super().refit(filter.residual, fitted, held, key=key)
        return ResidualFilter(inner, linear, jnp.asarray(spread))


SMALLEST_SPREAD = 1e-6
"""Smallest spread of a residual, for observations that are predicted exactly."""


def _on_residuals(
    linear: InferenceFilter, batch: Batch, held_out: Batch
) -> tuple[Batch, Batch, Float[np.ndarray, " obs"]]:
    """Return both batches with whitened residuals as observations, and the spread of those of the first."""
    residuals = residuals_of(linear, batch)
    spread = spread_of(residuals, batch)
    return _with_observations(batch, residuals / spread), whitened_residuals(linear, spread, held_out), spread


def residuals_of(filter: AbstractFilter, batch: Batch) -> Float[np.ndarray, "row time obs"]:
    """Return o_t − E[o_t | q_t, a_t] of all steps; 0 at padding."""
    e = np.asarray(batch.observations) - np.asarray(compiled_predictions(filter, batch))
    return np.where(np.asarray(batch.mask)[..., None], e, 0.0).astype(np.float32)


def spread_of(residuals: Float[np.ndarray, "row time obs"], batch: Batch) -> Float[np.ndarray, " obs"]:
    """Return the standard deviation of each residual over the steps of a batch."""
    return np.maximum(residuals[np.asarray(batch.mask)].std(axis=0), SMALLEST_SPREAD).astype(np.float32)


def whitened_residuals(filter: AbstractFilter, spread: Float[np.ndarray, " obs"], batch: Batch) -> Batch:
    """Return the batch with residuals, divided by their spread, as observations. Those at a reset are 0."""
    return _with_observations(batch, residuals_of(filter, batch) / spread)


def _with_observations(batch: Batch, e: Float[np.ndarray, "row time obs"]) -> Batch:
    before = np.zeros_like(e)
    before[:, 1:] = e[:, :-1]
    before[np.asarray(batch.starts)] = 0.0
    return replace(batch, observations=e, previous_observations=before, states=None)
