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
from jaxtyping import Array, Bool, Float, Int

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.data.linalg import NormalEquations, ridge, signed
from rpsp.data.scaling import fit_scaling
from rpsp.data.windows import chunked, flat, histories, since_start, window_index
from rpsp.errors import DivergedError, UsageError
from rpsp.filters.base import AbstractFilter, compiled_unroll, constant, to_float32
from rpsp.filters.features import kernel_width


class Bumps(eqx.Module):
    """Φ(y, z) = [1, z̃, y z̃, exp(−‖z̃ − c_i‖²/2)], z̃ = (z − mean)/scale: a linear map that is bent, and young at first.

    `y` is the youth 1/t of the state: the gain of a filter that has seen little differs from that of one that has
    settled, as in a Kalman filter. The bumps sit at data points: far from all data they vanish and the map
    extrapolates linearly, where random cosines would go on inventing.
    """

    mean: Float[Numbers, " z"]
    scale: Float[Numbers, " z"]
    """Standard deviation times the bumps' width."""
    centres: Float[Numbers, "z n"]

    @property
    def size(self) -> int:
        """The number of features."""
        return 1 + 2 * self.centres.shape[0] + self.centres.shape[1]

    def penalties(self, linear: float, bends: tuple[float, ...]) -> list[Float[np.ndarray, " phi"]]:
        """Ridges feature by feature: `linear` on the linear part, each of `bends` in turn on the bumps.

        Two ridges, because they do different work: nearly linear dynamics want the linear part all but free, and
        bumps that are free fit noise, which the recursion then amplifies.
        """
        count = self.centres.shape[1]
        return [np.repeat([linear, bend], [self.size - count, count]) for bend in bends]

    def __call__(self, youth: Float[Numbers, "*rows 1"], z: Float[Numbers, "*rows z"]) -> Float[Numbers, "*rows phi"]:
        xp = z.__array_namespace__()
        z = (z - self.mean) / self.scale
        half_squares = (xp.sum(z * z, axis=-1, keepdims=True) + (self.centres**2).sum(axis=0)) / 2
        bumps = xp.exp(z @ self.centres - half_squares)
        return xp.concat([xp.ones_like(youth), z, youth * z, bumps], axis=-1)


class InferenceFilter(AbstractFilter):
    """x_{t+1} = Wᵀ Φ(x_t, a_t, o_t), clipped to a box; o_t ≈ W_predᵀ Φ'(x_t, a_t); x_1 = W_firstᵀ [1, o_0].

    The state is q_t = [x_t, 1/t]: x_t = Pᵀ(m_t − μ) stands for m_t, the prediction of o_{t:t+k-1} under null actions;
    1/t tells how young the belief is (0 in q_0, before anything is seen).
    """

    W: Float[Numbers, "phi x"]
    W_first: Float[Numbers, "one_obs x"]
    W_pred: Float[Numbers, "phi_pred obs"]
    phi: Bumps = constant()
    phi_pred: Bumps = constant()
    bound: Float[Numbers, " x"] = constant()
    mean_future: Float[Numbers, " k_obs"] = constant()
    """μ: the mean predicted future."""
    P: Float[Numbers, "k_obs x"] = constant()
    """Principal directions of predicted futures, scaled to about unit variance."""

    def init(self) -> Float[Array, " q"]:
        return jnp.zeros(self.bound.shape[0] + 1)

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """x_{t+1} = clip(Wᵀ Φ(x_t, a_t, o_t)), or clip(W_firstᵀ [1, o_0]) from q_0; the youth goes from 1/t to 1/(t+1)."""
        x, youth = q[:-1], q[-1:]
        later = self.phi(youth, jnp.concatenate([x, action, observation])) @ self.W
        first = jnp.concatenate([jnp.ones(1), observation]) @ self.W_first
        blank = youth == 0
        x = jnp.clip(jnp.where(blank, first, later), -self.bound, self.bound)
        return jnp.concatenate([x, jnp.where(blank, 1.0, youth / (1 + youth))])

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """E[o_t | q_t, a_t] = W_predᵀ Φ'(x_t, a_t)."""
        return self.phi_pred(q[-1:], jnp.concatenate([q[:-1], action])) @ self.W_pred

    def meaning(self, q: Float[Array, " q"]) -> Float[Array, "k obs"]:
        """The future o_{t:t+k-1} that a state stands for, under null actions: μ + P⁺ᵀ x."""
        return (self.mean_future + q[:-1] @ jnp.linalg.pinv(jnp.asarray(self.P))).reshape(-1, self.W_pred.shape[1])


@dataclass(frozen=True)
class InferenceSettings:
    """How a direct-inference filter is fitted."""

    past: int = 10
    """Steps of history that stage 1 regresses on."""
    future: int = 5
    """Steps of future that a state predicts."""
    dimension: int = 30
    """At most this many coordinates; the data decide how many of them are used."""
    only_reliable: bool = True
    """Leave out directions that do not stand out from the noise of stage 1, unless keeping them all predicts better."""
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
    slack: float = 25.0
    """States are clipped to this many times the largest target: far enough for a robot that walks where it fell before."""


def fit_inference(
    batch: Batch, held_out: Batch, settings: InferenceSettings | None = None, *, rng: np.random.Generator
) -> InferenceFilter:
    """Fit a filter to a batch, choosing round and ridge by the recursion's own error on held-out episodes.

    1. Stage 1: ridge from [h_t, 1, a_{t:t+k-1}] to o_{t:t+k-1}; its history part m_t is the future under null actions.
    2. Coordinates: x_t = Pᵀ(m_t − μ), with only those directions of m that stand out from the noise of stage 1, unless
       keeping them all predicts better. (What stands out is often the physical state: 2 positions, 2 velocities.)
    3. Update: W by ridge with target x*_{t+1}, first on the targets' own states, then on the states that the filter
       reaches, adding up the normal equations (dataset aggregation).
    4. Prediction: ridge from Φ'(x_t, a_t) to o_t on the filter's own states.
    5. First state: ridge from [1, o_0].
    """
    settings = settings or InferenceSettings()
    stage1, noise = _stage1(batch, settings)
    mean, P, reliable = _coordinates(
        _futures(batch, stage1, settings.past)[flat(batch.mask)], noise, settings.dimension
    )
    all_of_them = np.full_like(reliable, True)
    choices = [reliable, all_of_them] if settings.only_reliable and not reliable.all() else [all_of_them]
    fitted = [_fit_update(batch, held_out, stage1, mean, P[:, some], settings, rng) for some in choices]
    return fitted[_first_good([error for _, error in fitted])][0]


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
    return _fit_update(batch, held_out, _stage1(batch, settings)[0], mean, P, settings, rng)[0]


MOST_INPUTS = 20_000
"""Of stage 1, whose matrix is this number squared: 3 GB, and minutes to solve."""


def _stage1(
    batch: Batch, settings: InferenceSettings
) -> tuple[Float[np.ndarray, "h_1_ka k_obs"], Float[np.ndarray, "k_obs k_obs"]]:
    """Ridge from [h_t, 1, a_{t:t+k-1}] to o_{t:t+k-1}; and how much of its predictions is noise of the estimate.

    A regression on p inputs from n independent outcomes with residual covariance Σ predicts with an error of covariance
    Σ p/n on average; windows overlap, so that of k only one is independent.
    """
    equations, squares = None, 0.0
    for _, w in window_index(batch, settings.past, settings.future).chunks():
        h = _young(w.history, settings.past)
        X = np.concatenate([h, np.ones((len(h), 1)), w.future_actions], axis=1)
        if X.shape[1] > MOST_INPUTS:
            raise UsageError(
                f"observations: {batch.observations.shape[-1]} numbers with past={settings.past} make {X.shape[1]} inputs "
                f"of a regression, more than {MOST_INPUTS}; observe fewer (observe=...), take a smaller past, or a method "
                "without such a regression (fm2, gru32)."
            )
        equations = equations or NormalEquations(X.shape[1], w.future_observations.shape[1])
        equations.add(X, w.future_observations)
        squares += w.future_observations.T @ w.future_observations
    assert equations is not None  # window_index has refused a batch without windows
    W = equations.solve(settings.stage1_ridge)
    explained = W.T @ equations.XtY
    residual = squares - explained - explained.T + W.T @ equations.XtX @ W
    inputs = np.linalg.matrix_rank(equations.XtX, hermitian=True)
    return W, residual * settings.future * inputs / equations.count**2


def _young(history: Float[np.ndarray, "n h"], past: int) -> Float[np.ndarray, "n three_h"]:
    """[h, y h, y² h]: a history that is still mostly padding is read with other weights (its last entry is what is known).

    Three weights: with two, a history of one reading and the settled ones leave nothing for a history of two.
    """
    youth = 1 / (past * history[:, -1:])
    return np.concatenate([history, youth * history, youth**2 * history], axis=1)


def _futures(batch: Batch, stage1: np.ndarray, past: int) -> Float[np.ndarray, "row_time k_obs"]:
    """m_t at every step: stage 1's prediction of the future under null actions; 0 outside the mask."""
    futures = np.zeros((batch.mask.size, stage1.shape[1]), np.float32)
    for steps, h in histories(batch, past):
        h = _young(h, past)
        futures[steps] = h @ stage1[: h.shape[1]] + stage1[h.shape[1]]
    return futures


def _coordinates(
    futures: Float[np.ndarray, "n k_obs"], noise: Float[np.ndarray, "k_obs k_obs"], dimension: int
) -> tuple[Float[np.ndarray, " k_obs"], Float[np.ndarray, "k_obs x"], Bool[np.ndarray, " x"]]:
    """μ and P: principal directions of the predicted futures, each scaled by 1/√(S + 1e-3 S_max); and which are reliable.

    A direction with less than twice the variance that noise of the estimate would give it is not: scaled up, such
    directions can drive the recursion astray.
    """
    mean = futures.mean(axis=0, dtype=np.float64)
    variances, directions = np.linalg.eigh(np.atleast_2d(np.cov(futures.T, bias=True)))
    variances, directions = variances[::-1][:dimension], signed(directions[:, ::-1][:, :dimension])
    largest = max(float(variances[0]), 1e-12)  # observations that never change leave nothing to scale by
    keep = variances > 1e-12 * largest
    keep[0] = True
    variances, directions = variances[keep], directions[:, keep]
    reliable = variances > 2 * np.einsum("fi,fg,gi->i", directions, noise, directions)
    reliable[0] = True
    return mean, directions / np.sqrt(variances + 1e-3 * largest), reliable


def _fit_update(
    batch: Batch,
    held_out: Batch,
    stage1: np.ndarray,
    mean: np.ndarray,
    P: np.ndarray,
    settings: InferenceSettings,
    rng: np.random.Generator,
) -> tuple[InferenceFilter, float]:
    """Steps 3 to 5, for coordinates already chosen; and the held-out error of the predictions."""
    train, held = _steps(batch, stage1, mean, P, settings.past), _steps(held_out, stage1, mean, P, settings.past)
    obs = train.observations.shape[1]
    filter = InferenceFilter(
        W=np.zeros((0, P.shape[1])),
        W_first=ridge(train.reset(train.first), train.target(train.first), settings.ridge),
        W_pred=np.zeros((0, obs)),
        phi=_fit_bumps(train.moved(train.states, _some(train.later, rng))[1], settings.bumps, rng=rng),
        phi_pred=_fit_bumps(train.acted(train.states, _some(train.all, rng))[1], settings.bumps, rng=rng),
        bound=settings.slack * np.abs(train.states[:, :-1]).max(axis=0),
        mean_future=mean,
        P=P,
    )

    def with_update(W: np.ndarray) -> InferenceFilter:
        return eqx.tree_at(lambda f: f.W, filter, W)

    def state_error(W: np.ndarray) -> float:
        return _mean_square((held.reached(with_update(W)) - held.states)[held.all])

    best, best_error = np.zeros((filter.phi.size, P.shape[1])), np.inf
    equations, states = NormalEquations(*best.shape), train.states
    for _ in range(settings.rounds + 1):
        for steps in chunked(train.later):
            equations.add(filter.phi(*train.moved(states, steps)), train.target(steps))
        W, error = _choose(equations, filter.phi.penalties(settings.ridge, settings.bends), state_error)
        if error < best_error:
            best, best_error = W, error
        states = train.reached(with_update(W))
    if not np.isfinite(best_error):
        raise DivergedError(
            "inference filter: every round of the fit diverged on the held-out episodes; fit on more data, or choose a "
            f"dimension below {P.shape[1]}."
        )
    filter = with_update(best)

    states, held_states = train.reached(filter), held.reached(filter)
    equations = NormalEquations(filter.phi_pred.size, obs)
    for steps in chunked(train.all):
        equations.add(filter.phi_pred(*train.acted(states, steps)), train.observations[steps].astype(np.float64))
    some = _some(held.all, rng)
    phi = filter.phi_pred(*held.acted(held_states, some))

    def prediction_error(W: np.ndarray) -> float:
        return _mean_square(phi @ W - held.observations[some])

    W_pred, error = _choose(equations, filter.phi_pred.penalties(settings.ridge, settings.bends), prediction_error)
    return to_float32(eqx.tree_at(lambda f: f.W_pred, filter, W_pred)), error


@dataclass(frozen=True, eq=False)
class _Steps:
    """A batch laid flat for the regressions: inputs and targets of the update at any choice of steps."""

    batch: Batch
    states: Float[np.ndarray, "row_time q"]
    """The target states q*_t = [Pᵀ(m_t − μ), 1/t]."""
    all: Int[np.ndarray, " n"]
    first: Int[np.ndarray, " n_first"]
    later: Int[np.ndarray, " n_later"]

    @property
    def observations(self) -> np.ndarray:
        return flat(self.batch.observations)

    def reached(self, filter: InferenceFilter) -> Float[np.ndarray, "row_time q"]:
        """The states that the filter itself reaches."""
        return flat(compiled_unroll(filter, self.batch))

    def target(self, steps: np.ndarray) -> np.ndarray:
        """x*_t."""
        return self.states[steps, :-1].astype(np.float64)

    def reset(self, steps: np.ndarray) -> np.ndarray:
        """[1, o_0], from which x_1 follows."""
        return np.insert(flat(self.batch.previous_observations)[steps].astype(np.float64), 0, 1.0, axis=1)

    def moved(self, states: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """1/(t-1) and [x_{t-1}, a_{t-1}, o_{t-1}], from which x_t follows."""
        return _aged(
            states[steps - 1], flat(self.batch.previous_actions)[steps], flat(self.batch.previous_observations)[steps]
        )

    def acted(self, states: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """1/t and [x_t, a_t], from which o_t follows."""
        return _aged(states[steps], flat(self.batch.actions)[steps])


def _aged(states: np.ndarray, *beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A state's youth, and the rest of it with what stands beside it, in float64."""
    return states[:, -1:].astype(np.float64), np.concatenate([states[:, :-1], *beside], axis=1, dtype=np.float64)


def _steps(batch: Batch, stage1: np.ndarray, mean: np.ndarray, P: np.ndarray, past: int) -> _Steps:
    mask, starts = flat(batch.mask), flat(batch.starts)
    x = ((_futures(batch, stage1, past) - mean.astype(np.float32)) @ P.astype(np.float32)) * mask[:, None]
    youth = 1 / (1 + since_start(batch)[:, None])
    return _Steps(
        batch,
        np.concatenate([x, youth], axis=1, dtype=np.float32),
        all=np.flatnonzero(mask),
        first=np.flatnonzero(mask & starts),
        later=np.flatnonzero(mask & ~starts),
    )


def _choose(
    equations: NormalEquations, penalties: list[np.ndarray], error: Callable[[np.ndarray], float]
) -> tuple[np.ndarray, float]:
    """The solution, among these ridges, whose held-out error is least; a non-finite error never wins.

    Ridges come strongest first, and a weaker one must be better by more than chance.
    """
    solutions = [equations.solve(penalty) for penalty in penalties]
    errors = [e if np.isfinite(e := error(W)) else np.inf for W in solutions]
    best = _first_good(errors)
    return solutions[best], errors[best]


def _first_good(errors: list[float]) -> int:
    """The first error that is as small as any, but for chance (half a hundredth): simpler candidates come first."""
    return int(np.argmax(np.array(errors) <= 1.005 * min(errors)))


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
