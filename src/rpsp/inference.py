"""Direct inference: the state update learned as a regression, fitted and refitted in closed form. (Ours, not the paper's.)

The predictive-state inference machine that the paper's first footnote contemplates. A state is the predicted future
under null actions, in fixed coordinates; the update is regressed on the states that the filter itself reaches. Because
a coordinate *means* a predicted observation, refitting the update on new data does not change what a state means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rpsp.errors import DivergedError
from rpsp.features import fit_scaling, kernel_width
from rpsp.filters import AbstractFilter, compiled_unroll, constant, to_float32
from rpsp.linalg import NormalEquations, ridge, signed
from rpsp.trajectories import Batch, Numbers
from rpsp.windows import chunked, flat, histories, window_index


class Bumps(eqx.Module):
    """Φ(z) = [1, z̃, exp(−‖z̃ − c_i‖²/2)], z̃ = (z − mean)/scale: a linear regression with something to bend it.

    Radial bumps at data points rather than random cosines: far from all data they vanish and the map extrapolates
    linearly, where cosines go on inventing. (Measured in docs/filters/inference.md.)
    """

    mean: Float[Numbers, " z"]
    scale: Float[Numbers, " z"]
    """Standard deviation times the bumps' width."""
    centres: Float[Numbers, "z n"]

    @property
    def size(self) -> int:
        """The number of features."""
        return 1 + self.centres.shape[0] + self.centres.shape[1]

    def penalties(self, linear: float, bends: tuple[float, ...]) -> list[Float[np.ndarray, " phi"]]:
        """Ridges feature by feature: `linear` on [1, z̃], each of `bends` in turn on the bumps.

        Two ridges, because they do different work: nearly linear dynamics want the linear part all but free, and
        bumps that are free fit noise, which the recursion then amplifies.
        """
        straight = np.full(1 + self.centres.shape[0], linear)
        return [np.append(straight, np.full(self.centres.shape[1], bend)) for bend in bends]

    def __call__(self, z: Float[Numbers, "*rows z"]) -> Float[Numbers, "*rows phi"]:
        xp = z.__array_namespace__()
        z = (z - self.mean) / self.scale
        half_squares = (xp.sum(z * z, axis=-1, keepdims=True) + (self.centres**2).sum(axis=0)) / 2
        bumps = xp.exp(z @ self.centres - half_squares)
        return xp.concat([xp.ones_like(z[..., :1]), z, bumps], axis=-1)


class InferenceFilter(AbstractFilter):
    """q_{t+1} = Wᵀ Φ(q_t, a_t, o_t), clipped to a box; o_t ≈ W_predᵀ Φ'(q_t, a_t); q_1 = W_firstᵀ [1, o_0].

    q_t = Pᵀ(m_t − μ), where m_t is the prediction of o_{t:t+k-1} under null actions. The state 0 means that nothing has
    been seen yet (q_0): exactly 0 is otherwise never reached.
    """

    W: Float[Numbers, "phi q"]
    W_first: Float[Numbers, "one_obs q"]
    W_pred: Float[Numbers, "phi_pred obs"]
    phi: Bumps = constant()
    phi_pred: Bumps = constant()
    bound: Float[Numbers, " q"] = constant()
    mean_future: Float[Numbers, " k_obs"] = constant()
    """μ: the mean predicted future."""
    P: Float[Numbers, "k_obs q"] = constant()
    """Principal directions of predicted futures, scaled to about unit variance."""

    @property
    def size(self) -> int:
        return self.bound.shape[0]

    def init(self) -> Float[Array, " q"]:
        return jnp.zeros(self.size)

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """q_{t+1} = clip(Wᵀ Φ(q_t, a_t, o_t)); from the blank state q_1 = clip(W_firstᵀ [1, o_0])."""
        first = jnp.concatenate([jnp.ones(1), observation]) @ self.W_first
        later = self.phi(jnp.concatenate([q, action, observation])) @ self.W
        return jnp.clip(jnp.where(jnp.any(q != 0), later, first), -self.bound, self.bound)

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """E[o_t | q_t, a_t] = W_predᵀ Φ'(q_t, a_t)."""
        return self.phi_pred(jnp.concatenate([q, action])) @ self.W_pred

    def meaning(self, q: Float[Array, " q"]) -> Float[Array, "k obs"]:
        """The future o_{t:t+k-1} that a state stands for, under null actions: μ + P⁺ᵀ q."""
        return (self.mean_future + q @ jnp.linalg.pinv(jnp.asarray(self.P))).reshape(-1, self.W_pred.shape[1])


@dataclass(frozen=True)
class InferenceSettings:
    """How a direct-inference filter is fitted."""

    past: int = 10
    """Steps of history that stage 1 regresses on."""
    future: int = 5
    """Steps of future that a state predicts."""
    dimension: int = 20
    """At most this many coordinates."""
    bumps: int = 300
    """Radial features that bend the update and the prediction."""
    stage1_ridge: float = 1e-3
    """Ridge of the regression from history to future."""
    ridge: float = 1e-4
    """Ridge of the linear part of the update and of the prediction."""
    bends: tuple[float, ...] = (1e9, 10.0, 1.0, 0.1, 0.01)
    """Ridges of the bumps that compete on held-out data; the first leaves a linear filter."""
    rounds: int = 8
    """Regressions on the states that the filter itself reaches, after the first on the targets' own states."""
    slack: float = 4.0
    """States are clipped to this many times the largest target."""


def fit_inference(
    batch: Batch, held_out: Batch, settings: InferenceSettings | None = None, *, rng: np.random.Generator
) -> InferenceFilter:
    """Fit a filter to a batch, choosing round and ridge by the recursion's own error on held-out episodes.

    1. Stage 1: ridge from [h_t, 1, a_{t:t+k-1}] to o_{t:t+k-1}; its history part m_t is the future under null actions.
    2. Coordinates: q_t = Pᵀ(m_t − μ).
    3. Update: W by ridge with target q*_{t+1}, first on the targets' own states, then on the states that the filter
       reaches, adding up the normal equations (dataset aggregation).
    4. Prediction: ridge from Φ'(q_t, a_t) to o_t on the filter's own states.
    5. First state: ridge from [1, o_0].
    """
    settings = settings or InferenceSettings()
    W = _stage1(batch, settings)
    mean, P = _coordinates(_futures(batch, W, settings.past)[flat(batch.mask)], settings.dimension)
    return _fit_update(batch, held_out, W, mean, P, settings, rng)


def refit_inference(
    filter: InferenceFilter,
    batch: Batch,
    held_out: Batch,
    settings: InferenceSettings | None = None,
    *,
    rng: np.random.Generator,
) -> InferenceFilter:
    """Fit everything again on new data except what a state means: μ and P stay, so a policy's inputs keep their sense."""
    settings = settings or InferenceSettings()
    mean, P = np.asarray(filter.mean_future, np.float64), np.asarray(filter.P, np.float64)
    return _fit_update(batch, held_out, _stage1(batch, settings), mean, P, settings, rng)


def _stage1(batch: Batch, settings: InferenceSettings) -> Float[np.ndarray, "h_1_ka k_obs"]:
    """Ridge from [h_t, 1, a_{t:t+k-1}] to o_{t:t+k-1}."""
    equations = None
    for _, w in window_index(batch, settings.past, settings.future).chunks():
        X = np.concatenate([w.history, np.ones((len(w.history), 1)), w.future_actions], axis=1)
        equations = equations or NormalEquations(X.shape[1], w.future_observations.shape[1])
        equations.add(X, w.future_observations)
    assert equations is not None
    return equations.solve(settings.stage1_ridge)


def _futures(batch: Batch, W: np.ndarray, past: int) -> Float[np.ndarray, "row_time k_obs"]:
    """m_t at every step: stage 1's prediction of the future under null actions; 0 outside the mask."""
    futures = np.zeros((batch.mask.size, W.shape[1]), np.float32)
    for steps, h in histories(batch, past):
        futures[steps] = h @ W[: h.shape[1]] + W[h.shape[1]]
    return futures


def _coordinates(futures: Float[np.ndarray, "n k_obs"], dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """μ and P: principal directions of the predicted futures, each scaled by 1/√(S + 1e-3 S_max)."""
    mean = futures.mean(axis=0, dtype=np.float64)
    variances, directions = np.linalg.eigh(np.atleast_2d(np.cov(futures.T, bias=True)))
    variances, directions = variances[::-1][:dimension], signed(directions[:, ::-1][:, :dimension])
    keep = variances > 1e-12 * max(variances[0], 1e-300)
    variances, directions = variances[keep], directions[:, keep]
    return mean, directions / np.sqrt(variances + 1e-3 * variances[0])


def _fit_update(
    batch: Batch,
    held_out: Batch,
    stage1: np.ndarray,
    mean: np.ndarray,
    P: np.ndarray,
    settings: InferenceSettings,
    rng: np.random.Generator,
) -> InferenceFilter:
    """Steps 3 to 5, for coordinates already chosen."""
    train, held = _steps(batch, stage1, mean, P, settings.past), _steps(held_out, stage1, mean, P, settings.past)
    obs = train.observations.shape[1]
    filter = InferenceFilter(
        W=np.zeros((0, P.shape[1])),
        W_first=ridge(train.reset(train.first), train.targets[train.first].astype(np.float64), settings.ridge),
        W_pred=np.zeros((0, obs)),
        phi=_fit_bumps(train.moved(train.targets, _some(train.later, rng)), settings.bumps, rng=rng),
        phi_pred=_fit_bumps(train.acted(train.targets, _some(train.all, rng)), settings.bumps, rng=rng),
        bound=settings.slack * np.abs(train.targets).max(axis=0),
        mean_future=mean,
        P=P,
    )

    def with_update(W: np.ndarray) -> InferenceFilter:
        return eqx.tree_at(lambda f: f.W, filter, W)

    def state_error(W: np.ndarray) -> float:
        return _mean_square((held.states(with_update(W)) - held.targets)[held.all])

    best, best_error = np.zeros((filter.phi.size, P.shape[1])), np.inf
    equations, states = NormalEquations(*best.shape), train.targets
    for _ in range(settings.rounds + 1):
        for steps in chunked(train.later):
            equations.add(filter.phi(train.moved(states, steps)), train.targets[steps].astype(np.float64))
        W, error = _choose(equations, filter.phi.penalties(settings.ridge, settings.bends), state_error)
        if error < best_error:
            best, best_error = W, error
        states = train.states(with_update(W))
    if not np.isfinite(best_error):
        raise DivergedError(
            "inference filter: every round of the fit diverged on the held-out episodes; fit on more data, or choose a "
            f"dimension below {P.shape[1]}."
        )
    filter = with_update(best)

    states, held_states = train.states(filter), held.states(filter)
    equations = NormalEquations(filter.phi_pred.size, obs)
    for steps in chunked(train.all):
        equations.add(filter.phi_pred(train.acted(states, steps)), train.observations[steps].astype(np.float64))
    some = _some(held.all, rng)
    phi = filter.phi_pred(held.acted(held_states, some))

    def prediction_error(W: np.ndarray) -> float:
        return _mean_square(phi @ W - held.observations[some])

    W_pred, _ = _choose(equations, filter.phi_pred.penalties(settings.ridge, settings.bends), prediction_error)
    return to_float32(eqx.tree_at(lambda f: f.W_pred, filter, W_pred))


@dataclass(frozen=True, eq=False)
class _Steps:
    """A batch laid flat for the regressions: inputs and targets of the update at any choice of steps."""

    batch: Batch
    targets: Float[np.ndarray, "row_time q"]
    """q*_t = Pᵀ(m_t − μ); 0 outside the mask."""
    all: np.ndarray
    first: np.ndarray
    later: np.ndarray
    observations: np.ndarray

    def states(self, filter: InferenceFilter) -> Float[np.ndarray, "row_time q"]:
        """The states that the filter itself reaches."""
        return flat(compiled_unroll(filter, self.batch))

    def reset(self, steps: np.ndarray) -> np.ndarray:
        """[1, o_0], from which q_1 follows."""
        return np.insert(flat(self.batch.seen)[steps].astype(np.float64), 0, 1.0, axis=1)

    def moved(self, states: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """[q_{t-1}, a_{t-1}, o_{t-1}], from which q_t follows."""
        before = states[steps - 1], flat(self.batch.executed)[steps], flat(self.batch.seen)[steps]
        return np.concatenate(before, axis=1, dtype=np.float64)

    def acted(self, states: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """[q_t, a_t], from which o_t follows."""
        return np.concatenate([states[steps], flat(self.batch.performed)[steps]], axis=1, dtype=np.float64)


def _steps(batch: Batch, stage1: np.ndarray, mean: np.ndarray, P: np.ndarray, past: int) -> _Steps:
    mask, starts = flat(batch.mask), flat(batch.starts)
    targets = ((_futures(batch, stage1, past) - mean.astype(np.float32)) @ P.astype(np.float32)) * mask[:, None]
    return _Steps(
        batch,
        targets,
        all=np.flatnonzero(mask),
        first=np.flatnonzero(mask & starts),
        later=np.flatnonzero(mask & ~starts),
        observations=flat(batch.observations),
    )


def _choose(
    equations: NormalEquations, penalties: list[np.ndarray], error: Callable[[np.ndarray], float]
) -> tuple[np.ndarray, float]:
    """The solution, among these ridges, whose held-out error is least; a non-finite error never wins."""
    solutions = [equations.solve(penalty) for penalty in penalties]
    errors = [e if np.isfinite(e := error(W)) else np.inf for W in solutions]
    best = int(np.argmin(errors))
    return solutions[best], errors[best]


def _fit_bumps(z: Float[np.ndarray, "n z"], bumps: int, *, rng: np.random.Generator) -> Bumps:
    """Bumps at random data points, half as wide as the median distance of the standardised data."""
    scaling = fit_scaling(z)
    standardised = scaling.encode(z)
    width = 0.5 * kernel_width(standardised, 50.0, rng=rng)
    centres = rng.choice(standardised, min(bumps, len(z)), replace=False)
    return Bumps(scaling.mean, scaling.scale * width, centres.T / width)


def _some(steps: np.ndarray, rng: np.random.Generator, most: int = 20_000) -> np.ndarray:
    """At most so many of the steps: enough for scales and widths."""
    return steps if len(steps) <= most else np.sort(rng.choice(steps, most, replace=False))


def _mean_square(x: np.ndarray) -> float:
    return float(np.mean(np.square(x, dtype=np.float64)))
