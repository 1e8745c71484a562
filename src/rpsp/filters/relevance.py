"""Which sensors carry something: one ridge per sensor, finite or infinite, chosen on held-out data in closed form.

A sensor carries nothing if the past predicts it no better than its mean does, and its own past does not help to predict
any sensor that is predictable. Both are decided by ridge regressions from the history, the squares of the last
observation and the action. The filter is then fitted without these sensors, which is the limit of an infinite ridge.
"""

# numpy's stubs leave the type of indices unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.data.linalg import NormalEquations
from rpsp.data.windows import flat, histories

MOST_INPUTS = 3000
"""Maximum number of inputs of the regressions. With more sensors, the history is shortened."""
PREDICTABLE = 0.01
"""Share of a sensor's held-out variance that must be explained for it to count as predictable."""
HELPFUL = 0.01
"""Share of the held-out error of another sensor that must be removed for a sensor to count as helpful."""
RIDGES = (1e-4, 1e-2, 0.1, 1.0)
"""Candidate ridges per step. Each sensor is predicted with the one that is best on held-out data, or by its mean."""


class _Sums(NamedTuple):
    """Sums of squares and products over the steps of some episodes, from which every held-out error follows."""

    equations: NormalEquations
    YtY: Float[np.ndarray, " obs"]

    def errors(
        self,
        W: Float[np.ndarray, "inputs some"],
        rows: Int[np.ndarray, " inputs"],
        sensors: Bool[np.ndarray, " obs"],
    ) -> Float[np.ndarray, " some"]:
        """Return the mean squared errors of predictions of some sensors with weights W of these inputs.

        ‖Y − XW‖² = YᵀY − 2 Wᵀ XᵀY + Wᵀ XᵀX W
        """
        XtX, XtY = self.equations.XtX[np.ix_(rows, rows)], self.equations.XtY[np.ix_(rows, sensors)]
        return (self.YtY[sensors] + np.sum(W * (XtX @ W - 2 * XtY), axis=0)) / max(1, self.equations.count)


def relevant_sensors(batch: Batch, held_out: Batch, past: int) -> Bool[np.ndarray, " obs"]:
    """Return which sensors carry something. If none does, all of them are kept.

    1. A sensor is predictable if a ridge regression on the past explains more than `PREDICTABLE` of its variance on
       held-out data. Predictable sensors are kept.
    2. Another sensor is kept if its past and its square remove more than `HELPFUL` of the held-out error of some kept
       sensor. This is repeated with the sensors kept so far.

    A sensor that hardly varies in the held-out data is kept, because the data say nothing about it.

    Args:
        batch: training episodes.
        held_out: held-out episodes.
        past: length of the history, in steps.
    """
    obs, act = batch.observations.shape[-1], batch.actions.shape[-1]
    past = max(1, min(past, (MOST_INPUTS - obs - act) // (obs + act)))
    mean = flat(batch.observations)[flat(batch.mask)].mean(axis=0, dtype=np.float64)
    train, held = (_sums(part, past, mean) for part in (batch, held_out))
    variance, held_variance = (sums.YtY / max(1, sums.equations.count) for sums in (train, held))
    known = held_variance > 0.1 * np.maximum(variance, 1e-12)
    everything = np.arange(len(train.equations.XtX))
    solutions = [train.equations.solve(ridge * train.equations.count) for ridge in RIDGES]
    best = np.min([held.errors(W, everything, np.full(obs, True)) for W in solutions], axis=0)
    kept = ~known | (best < (1 - PREDICTABLE) * held_variance)
    if not kept.any() or kept.all():
        return np.full(obs, True)
    inputs = _inputs_of(obs, act, past)
    while not kept.all() and (helpful := _helpful(train, held, kept, inputs, held_variance)):
        kept[helpful] = True
    return kept


def _sums(batch: Batch, past: int, mean: Float[np.ndarray, " obs"]) -> _Sums:
    """Return the sums of [h_t, squares of o_{t-1}, a_t, 1] and o_t, centred, over all steps of a batch."""
    obs, act = batch.observations.shape[-1], batch.actions.shape[-1]
    inputs = past * (obs + act) + 1 + obs + act + 1
    equations, squares = NormalEquations(inputs, obs), np.zeros(obs)
    for steps, h in histories(batch, past):
        last = h[:, (past - 1) * obs : past * obs] - mean
        X = np.concatenate([h, last**2, flat(batch.actions)[steps], np.ones((len(h), 1))], axis=1, dtype=np.float64)
        Y = flat(batch.observations)[steps].astype(np.float64) - mean
        equations.add(X, Y)
        squares += np.sum(Y**2, axis=0)
    return _Sums(equations, squares)


def _inputs_of(obs: int, act: int, past: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that gives the inputs that belong to some sensors, and none for the actions and constants."""
    squares = past * (obs + act) + 1

    def inputs(sensors: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
        lags = np.arange(past)[:, None] * obs + sensors
        return np.concatenate([lags.ravel(), squares + sensors])

    return inputs


def _helpful(
    train: _Sums,
    held: _Sums,
    kept: Bool[np.ndarray, " obs"],
    inputs: Callable[[np.ndarray], np.ndarray],
    variance: Float[np.ndarray, " obs"],
) -> list[int]:
    """Return the sensors that are not kept, and of which each removes a clear share of the held-out error of a kept one.

    Inputs without information change an error by about √(inputs / n n') of it, where n and n' are the numbers of training
    and held-out steps. Three times twice that are added to the share that is asked for.

    The weights with the inputs of a sensor follow from those without. With A = XᵀX + λI in blocks of the base B and the
    sensor's group G, W the weights of the base alone, F = A_BB⁻¹ A_BG and S = A_GG − A_GB F:

        W_G = S⁻¹ (XᵀY_G − A_GB W),   W_B = W − F W_G
    """
    XtX, XtY, ridge = train.equations.XtX, train.equations.XtY[:, kept], RIDGES[0] * train.equations.count
    others = np.flatnonzero(~kept)
    base = np.setdiff1d(np.arange(len(XtX)), inputs(others))
    groups = [inputs(np.array([sensor])) for sensor in others]
    part = NormalEquations(len(base), 0)
    part.XtX, part.XtY = XtX[np.ix_(base, base)], np.hstack([XtY[base], *(XtX[np.ix_(base, own)] for own in groups)])
    W, *F = np.split(part.solve(ridge), np.cumsum([XtY.shape[1], *map(len, groups)])[:-1], axis=1)
    before, floor = held.errors(W, base, kept), 1e-6 * variance[kept]  # what is predicted this well needs no help
    found: list[int] = []
    for sensor, own, through in zip(others, groups, F, strict=True):
        across = XtX[np.ix_(own, base)]
        schur = XtX[np.ix_(own, own)] + ridge * np.eye(len(own)) - across @ through
        W_own = np.linalg.solve(schur, XtY[own] - across @ W)
        after = held.errors(np.vstack([W - through @ W_own, W_own]), np.concatenate([base, own]), kept)
        share = HELPFUL + 6 * np.sqrt(len(own) / max(1, train.equations.count) / max(1, held.equations.count))
        if np.any((before > floor) & (before - after > share * before)):
            found.append(int(sensor))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Fitting without some sensors
# ---------------------------------------------------------------------------------------------------------------------


def seeing_only(batch: Batch, kept: Bool[np.ndarray, " obs"]) -> Batch:
    """Return a batch with some of its sensors."""
    observations, previous = (np.asarray(x)[..., kept] for x in (batch.observations, batch.previous_observations))
    return dataclasses.replace(batch, observations=observations, previous_observations=previous, states=None)


def spread_out(
    array: Numbers, kept: Bool[np.ndarray, " obs"], fill: float | np.ndarray = 0.0, axis: int = 0
) -> Float[np.ndarray, ...]:
    """Return an array whose entries along an axis belong to the kept sensors, with entries for the others.

    Args:
        array: the array, with as many entries along the axis as sensors are kept.
        kept: which sensors are kept.
        fill: the entries of the others.
        axis: the axis of the sensors.
    """
    array = np.moveaxis(np.asarray(array), axis, -1)
    whole = np.empty((*array.shape[:-1], len(kept)), np.float64)
    whole[..., kept], whole[..., ~kept] = array, fill
    return np.moveaxis(whole, -1, axis)
