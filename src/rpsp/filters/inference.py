"""Direct inference: a filter whose update is a regression, fitted and refitted in closed form. Not part of the paper.

This is the predictive-state inference machine that the first footnote of the paper mentions. A state is the predicted
future under null actions, in fixed coordinates. The update is regressed on the states that the filter itself reaches.
Each coordinate of a state is a linear function of predicted observations, so refitting the update on new data does not
change the meaning of a state.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from rpsp.data import trees
from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.data.linalg import NormalEquations, ridge
from rpsp.data.randomness import generator
from rpsp.data.windows import chunked, flat, since_start
from rpsp.errors import DivergedError, UsageError
from rpsp.filters.base import AbstractFilter, compiled_unroll, constant, to_float32, to_float64
from rpsp.filters.belief import Belief, check_at_least
from rpsp.filters.bumps import Bumps, exported_regression, fit_bumps
from rpsp.filters.null_future import coordinates, fit_stage1, null_futures
from rpsp.filters.relevance import relevant_sensors, seeing_only, spread_out

IGNORED = 1e30
"""Scale of an observation that is ignored: divided by it, every reading is 0."""


class InferenceFilter(AbstractFilter):
    """Filter whose update and prediction are regressions.

        x_1     = clip(W_firstᵀ [1, o_0])
        x_{t+1} = clip(Wᵀ Φ(x_t, a_t, o_t))
        o_t     ≈ W_predᵀ Φ'(x_t, a_t)

    where Φ and Φ' are `Bumps` features, o_0 is the reset observation and clip limits every coordinate to ±`bound`.

    The state is q_t = [x_t, 1/t]. x_t = Pᵀ(m_t − μ) are coordinates of m_t, the prediction of o_{t:t+k-1} under null
    actions. 1/t tells how many observations the state is based on. In q_0, before the first observation, it is 0.
    """

    W: Float[Numbers, "phi x"]
    """Weights of the update."""
    W_first: Float[Numbers, "one_obs x"]
    """Weights of the first state."""
    W_pred: Float[Numbers, "phi_pred obs"]
    """Weights of the prediction."""
    phi: Bumps = constant()
    """Φ."""
    phi_pred: Bumps = constant()
    """Φ'."""
    bound: Float[Numbers, " x"] = constant()
    """States are clipped to ±`bound`."""
    mean_future: Float[Numbers, " k_obs"] = constant()
    """μ: the mean predicted future."""
    P: Float[Numbers, "k_obs x"] = constant()
    """Principal directions of the predicted futures, scaled to about unit variance."""

    def init(self) -> Float[Array, " q"]:
        """Return q_0 = 0."""
        return jnp.zeros(self.bound.shape[0] + 1)

    @property
    def used(self) -> Float[Array, " obs"]:
        """1 at observations that enter the state, and 0 at those that are ignored."""
        return jnp.where(jnp.asarray(self.phi.scale)[-self.W_pred.shape[1] :] < IGNORED / 2, 1.0, 0.0)

    def coordinate_name(self, i: int) -> str | None:
        """Return the name of the last coordinate, 1/t."""
        return "youth of the belief, 1/t" if i == self.bound.shape[0] else None

    def exported(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the arrays of act.py's `inference`."""
        f = to_float64(self)
        W_first = np.asarray(f.W_first)
        first = {"first": W_first[0], "W_first": W_first[1:], "bound": np.asarray(f.bound)}
        return "inference", first | exported_regression(f.phi, f.W)

    def exported_prediction(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the arrays of act.py's `regression`."""
        return "regression", exported_regression(self.phi_pred, self.W_pred, "pred_")

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """Return x_{t+1} = clip(Wᵀ Φ(x_t, a_t, o_t)) and 1/(t+1). From q_0: x_1 = clip(W_firstᵀ [1, o_0]) and 1."""
        x, youth = q[:-1], q[-1:]
        later = self.phi(youth, jnp.concatenate([x, action, observation])) @ self.W
        first = jnp.concatenate([jnp.ones(1), observation]) @ self.W_first
        blank = youth == 0
        x = jnp.clip(jnp.where(blank, first, later), -self.bound, self.bound)
        return jnp.concatenate([x, jnp.where(blank, 1.0, youth / (1 + youth))])

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """Return E[o_t | q_t, a_t] = W_predᵀ Φ'(x_t, a_t)."""
        return self.phi_pred(q[-1:], jnp.concatenate([q[:-1], action])) @ self.W_pred

    def meaning(self, q: Float[Array, " q"]) -> Float[Array, "k obs"]:
        """Return the future o_{t:t+k-1} that a state predicts under null actions.

        It is μ + P⁺ᵀ x, where P⁺ is the pseudo-inverse of P.
        """
        return (self.mean_future + q[:-1] @ jnp.linalg.pinv(jnp.asarray(self.P))).reshape(-1, self.W_pred.shape[1])


@dataclass(frozen=True)
class Inference(Belief):
    """Our belief: an `InferenceFilter`, whose update is regressed directly. It is refitted in closed form."""

    keeps_coordinates: ClassVar[bool] = True

    past: int = 10
    """Length of the history that stage 1 regresses on, in steps."""
    future: int = 5
    """Length of the future that a state predicts, in steps (k)."""
    dimension: int = 30
    """Maximum number of coordinates of x. The number in use is chosen from the data."""
    only_reliable: bool = True
    """Leave out directions whose variance is close to the noise of stage 1, unless keeping all predicts better."""
    bumps: int = 300
    """Number of radial basis functions of the update, and of the prediction."""
    stage1_ridge: float = 1e-3
    """Ridge of the regression from history to future."""
    ridge: float = 1e-4
    """Ridge of the linear part of the update and of the prediction."""
    bends: tuple[float, ...] = (1e9, 10.0, 1.0, 0.1, 0.01)
    """Candidate ridges of the radial basis functions, chosen on held-out data. The first gives a linear filter."""
    rounds: int = 8
    """Number of regressions on the states that the filter reaches, after a first one on the target states."""
    ignore_useless: bool = True
    """Leave out observations that carry nothing: the past does not predict them, and they predict no other observation."""
    slack: float = 25.0
    """States are clipped to this many times the largest target. It is large, because a trained robot can reach states
    far from those of the exploration."""

    def __post_init__(self) -> None:
        """Check the settings."""
        check_at_least(self, 1, "past", "future", "dimension", "bumps")
        check_at_least(self, 0, "rounds", "stage1_ridge", "ridge", "bends", "slack")
        if not self.bends:
            raise UsageError("bends: () is empty; give at least one ridge, as in (1e9, 1.0).")

    @property
    def min_length(self) -> int:
        """Minimum length of an episode: k + 1 steps."""
        return self.future + 1

    def fit(self, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> InferenceFilter:
        """Fit in closed form."""
        return fit_inference(batch, held_out, self, rng=generator(key))

    def refit(self, filter: AbstractFilter, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> InferenceFilter:
        """Refit update and prediction in closed form. The coordinates of the state keep their meaning."""
        assert isinstance(filter, InferenceFilter)
        return refit_inference(filter, batch, held_out, self, rng=generator(key))

    def for_refits(self) -> Inference:
        """Keep all directions: what the exploration cannot tell from noise, later data can."""
        return replace(self, only_reliable=False)


def fit_inference(
    batch: Batch, held_out: Batch, settings: Inference | None = None, *, rng: np.random.Generator
) -> InferenceFilter:
    """Fit an inference filter. Round and ridge are chosen by the error of the recursion on held-out episodes.

    1. Stage 1: ridge regression from [h_t, 1, a_{t:t+k-1}] to o_{t:t+k-1}, where h_t is the history. Without the action
       part it gives m_t, the predicted future under null actions.
    2. Coordinates: x_t = Pᵀ(m_t − μ), where μ is the mean of m_t. P has only directions with a variance well above the
       noise of stage 1, unless keeping all predicts better. (These directions are often the physical state, such as 2
       positions and 2 velocities.)
    3. Update: W by ridge regression with targets x*_{t+1}, the coordinates from step 2. The inputs are first the target
       states, then the states that the filter reaches. The normal equations are accumulated (dataset aggregation).
    4. Prediction: ridge regression from Φ'(x_t, a_t) to o_t on the states that the filter reaches.
    5. First state: ridge regression from [1, o_0].

    Args:
        batch: training episodes.
        held_out: held-out episodes.
        settings: default: `Inference()`.
        rng: random generator.

    Raises:
        DivergedError: if every round diverges on the held-out episodes.
        UsageError: if the episodes are too short, or stage 1 would have too many inputs.
    """
    settings = settings or Inference()
    kept = _kept(batch, held_out, settings)
    if not kept.all():
        seen, held = seeing_only(batch, kept), seeing_only(held_out, kept)
        filter = fit_inference(seen, held, replace(settings, ignore_useless=False), rng=rng)
        means = flat(batch.observations)[flat(batch.mask)][:, ~kept].mean(axis=0, dtype=np.float64)
        return _ignoring(filter, kept, means)
    stage1, noise = _stage1(batch, settings)
    mean, P, reliable = coordinates(
        null_futures(batch, stage1, settings.past)[flat(batch.mask)], noise, settings.dimension
    )
    all_of_them = np.full_like(reliable, True)
    choices = [reliable, all_of_them] if settings.only_reliable and not reliable.all() else [all_of_them]
    fitted = [_fit_update(batch, held_out, stage1, mean, P[:, some], settings, rng) for some in choices]
    return fitted[_first_good([error for _, error in fitted])][0]


def refit_inference(
    filter: InferenceFilter,
    batch: Batch,
    held_out: Batch,
    settings: Inference | None = None,
    *,
    rng: np.random.Generator,
) -> InferenceFilter:
    """Refit an inference filter to new data, with the same coordinates.

    μ and P do not change, so that the inputs of a policy keep their meaning.

    Args:
        filter: the filter to refit.
        batch: training episodes.
        held_out: held-out episodes.
        settings: default: `Inference()`.
        rng: random generator.

    Raises:
        DivergedError: if every round diverges on the held-out episodes.
        UsageError: if the episodes are too short, or stage 1 would have too many inputs.
    """
    settings = settings or Inference()
    mean, P = np.asarray(filter.mean_future, np.float64), np.asarray(filter.P, np.float64)
    obs = batch.observations.shape[-1]
    # Sensors that the coordinates stand for stay, whatever the new data say about them.
    kept = _kept(batch, held_out, settings) | P.reshape(-1, obs, P.shape[1]).any(axis=(0, 2))
    if not kept.all():
        seen, held = seeing_only(batch, kept), seeing_only(held_out, kept)
        within = np.tile(kept, len(mean) // obs)
        new = _fit_update(seen, held, _stage1(seen, settings)[0], mean[within], P[within], settings, rng)[0]
        wide = _ignoring(new, kept, mean[:obs][~kept])
        return trees.replace(lambda f: (f.mean_future, f.P), wide, (filter.mean_future, filter.P))
    return _fit_update(batch, held_out, _stage1(batch, settings)[0], mean, P, settings, rng)[0]


def _kept(batch: Batch, held_out: Batch, settings: Inference) -> Bool[np.ndarray, " obs"]:
    """Return which observations are used."""
    if settings.ignore_useless:
        return relevant_sensors(batch, held_out, settings.past)
    return np.ones(batch.observations.shape[-1], np.bool_)  # pyright: ignore[reportUnknownVariableType]


def _ignoring(
    filter: InferenceFilter, kept: Bool[np.ndarray, " obs"], means: Float[np.ndarray, " ignored"]
) -> InferenceFilter:
    """Return a filter of some observations as one of all of them. It predicts the means of the others.

    Args:
        filter: the filter of the observations that are kept.
        kept: which observations are kept.
        means: means of the others.
    """
    f = to_float64(filter)
    x, obs = f.W.shape[1], int(kept.sum())
    others = f.phi.mean.shape[0] - obs
    inputs = np.concatenate([np.full(others, True), kept])
    bumps = np.full(f.phi.centres.shape[1], True)
    features = np.concatenate([[True], inputs, inputs, bumps])
    future = np.tile(kept, len(f.mean_future) // obs)
    W_pred = spread_out(f.W_pred, kept, axis=1)
    W_pred[0, ~kept] = means
    wide = InferenceFilter(
        W=spread_out(f.W, features),
        W_first=spread_out(f.W_first, np.concatenate([[True], kept])),
        W_pred=W_pred,
        phi=Bumps(
            spread_out(f.phi.mean, inputs), spread_out(f.phi.scale, inputs, IGNORED), spread_out(f.phi.centres, inputs)
        ),
        phi_pred=f.phi_pred,
        bound=f.bound,
        mean_future=spread_out(f.mean_future, future, np.tile(means, len(f.mean_future) // obs)),
        P=spread_out(f.P, future),
    )
    assert wide.W.shape == (wide.phi.size, x)
    return to_float32(wide)


def _stage1(batch: Batch, settings: Inference) -> tuple[np.ndarray, np.ndarray]:
    return fit_stage1(batch, settings.past, settings.future, settings.stage1_ridge)


def _fit_update(
    batch: Batch,
    held_out: Batch,
    stage1: np.ndarray,
    mean: np.ndarray,
    P: np.ndarray,
    settings: Inference,
    rng: np.random.Generator,
) -> tuple[InferenceFilter, float]:
    """Do steps 3 to 5 of `fit_inference` for given coordinates. Returns the filter and its held-out error."""
    train, held = _steps(batch, stage1, mean, P, settings.past), _steps(held_out, stage1, mean, P, settings.past)
    obs = train.observations.shape[1]
    filter = InferenceFilter(
        W=np.zeros((0, P.shape[1])),
        W_first=ridge(train.reset(train.first), train.target(train.first), settings.ridge),
        W_pred=np.zeros((0, obs)),
        phi=fit_bumps(train.moved(train.states, _some(train.later, rng))[1], settings.bumps, rng=rng),
        phi_pred=fit_bumps(train.acted(train.states, _some(train.all, rng))[1], settings.bumps, rng=rng),
        bound=settings.slack * np.abs(train.states[:, :-1]).max(axis=0),
        mean_future=mean,
        P=P,
    )

    def with_update(W: np.ndarray) -> InferenceFilter:
        return trees.replace(lambda f: f.W, filter, W)

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
    return to_float32(trees.replace(lambda f: f.W_pred, filter, W_pred)), error


@dataclass(frozen=True, eq=False)
class _Steps:
    """A flattened batch: the inputs and targets of the regressions for any choice of steps."""

    batch: Batch
    states: Float[np.ndarray, "row_time q"]
    """Target states q*_t = [Pᵀ(m_t − μ), 1/t]."""
    all: Int[np.ndarray, " n"]
    """Flat positions of all steps."""
    first: Int[np.ndarray, " n_first"]
    """Flat positions of the first steps of episodes."""
    later: Int[np.ndarray, " n_later"]
    """Flat positions of all other steps."""

    @property
    def observations(self) -> np.ndarray:
        return flat(self.batch.observations)

    def reached(self, filter: InferenceFilter) -> Float[np.ndarray, "row_time q"]:
        """Return the states that the filter reaches."""
        return flat(compiled_unroll(filter, self.batch))

    def target(self, steps: np.ndarray) -> np.ndarray:
        """Return x*_t, the targets of the update."""
        return self.states[steps, :-1].astype(np.float64)

    def reset(self, steps: np.ndarray) -> np.ndarray:
        """Return [1, o_0], the input for x_1."""
        return np.insert(flat(self.batch.previous_observations)[steps].astype(np.float64), 0, 1.0, axis=1)

    def moved(self, states: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return 1/(t-1) and [x_{t-1}, a_{t-1}, o_{t-1}], the inputs for x_t."""
        return _aged(
            states[steps - 1], flat(self.batch.previous_actions)[steps], flat(self.batch.previous_observations)[steps]
        )

    def acted(self, states: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return 1/t and [x_t, a_t], the inputs for the prediction of o_t."""
        return _aged(states[steps], flat(self.batch.actions)[steps])


def _aged(states: np.ndarray, *beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split states q = [x, y] and return y and [x, *beside], in float64."""
    return states[:, -1:].astype(np.float64), np.concatenate([states[:, :-1], *beside], axis=1, dtype=np.float64)


def _steps(batch: Batch, stage1: np.ndarray, mean: np.ndarray, P: np.ndarray, past: int) -> _Steps:
    mask, starts = flat(batch.mask), flat(batch.starts)
    x = ((null_futures(batch, stage1, past) - mean.astype(np.float32)) @ P.astype(np.float32)) * mask[:, None]
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
    """Choose among ridges by the held-out error.

    Ridges are ordered from strongest to weakest. A weaker one is chosen only if it is better by more than 0.5 %.
    Solutions with a NaN or infinite error are not chosen.

    Returns:
        The solution and its error.
    """
    solutions = [equations.solve(penalty) for penalty in penalties]
    errors = [e if np.isfinite(e := error(W)) else np.inf for W in solutions]
    best = _first_good(errors)
    return solutions[best], errors[best]


def _first_good(errors: list[float]) -> int:
    """Return the first index whose error is within 0.5 % of the smallest one. Simpler candidates come first."""
    return int(np.argmax(np.array(errors) <= 1.005 * min(errors)))


def _some(steps: np.ndarray, rng: np.random.Generator, most: int = 20_000) -> np.ndarray:
    """Return at most `most` random steps, which is enough to fit scales and widths."""
    return steps if len(steps) <= most else np.sort(rng.choice(steps, most, replace=False))


def _mean_square(x: np.ndarray) -> float:
    return float(np.mean(np.square(x, dtype=np.float64)))
