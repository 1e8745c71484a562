"""Stage 1 of direct inference: the predicted future under null actions, and its coordinates."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from rpsp.data.batches import Batch
from rpsp.data.linalg import NormalEquations, principal_directions
from rpsp.data.windows import histories, window_index
from rpsp.errors import UsageError

MOST_INPUTS = 20_000
"""Maximum number of inputs of stage 1. Its matrix has this number squared entries: 3 GB, and minutes to solve."""


def fit_stage1(
    batch: Batch, past: int, future: int, penalty: float
) -> tuple[Float[np.ndarray, "h_1_ka k_obs"], Float[np.ndarray, "k_obs k_obs"]]:
    """Fit stage 1, the ridge regression from [h_t, 1, a_{t:t+k-1}] to o_{t:t+k-1}.

    A regression on p inputs and n independent samples with residual covariance Σ makes predictions whose error has
    covariance Σ p/n on average. Windows of k steps overlap, so only one in k is counted as independent.

    Args:
        batch: training episodes.
        past: length of the history h_t, in steps.
        future: k, in steps.
        penalty: ridge of the regression.

    Returns:
        The weights, and the estimated covariance of the error of the predictions.
    """
    equations, squares = None, 0.0
    for _, w in window_index(batch, past, future).chunks():
        h = _young(w.history, past)
        X = np.concatenate([h, np.ones((len(h), 1)), w.future_actions], axis=1)
        if X.shape[1] > MOST_INPUTS:
            raise UsageError(
                f"observations: {batch.observations.shape[-1]} numbers with past={past} make {X.shape[1]} "
                f"inputs of a regression, more than {MOST_INPUTS}; observe fewer (observe=...), take a smaller past, "
                "or a method without such a regression (fm2, gru32)."
            )
        equations = equations or NormalEquations(X.shape[1], w.future_observations.shape[1])
        equations.add(X, w.future_observations)
        squares += w.future_observations.T @ w.future_observations
    assert equations is not None  # window_index raises an error if there are no windows
    W = equations.solve(penalty)
    explained = W.T @ equations.XtY
    residual = squares - explained - explained.T + W.T @ equations.XtX @ W
    inputs = np.linalg.matrix_rank(equations.XtX, hermitian=True)
    return W, residual * future * inputs / equations.count**2


def _young(history: Float[np.ndarray, "n h"], past: int) -> Float[np.ndarray, "n three_h"]:
    """Return [h, y h, y² h] with y = 1 / (number of known steps of the history h).

    The regression can then weight a history that is mostly padding differently. The last entry of h is its known
    fraction. Powers up to y² are needed: with [h, y h] alone, complete histories and those of one step determine all
    weights, and histories of two steps have no freedom left.
    """
    youth = 1 / (past * history[:, -1:])
    return np.concatenate([history, youth * history, youth**2 * history], axis=1)


def null_futures(batch: Batch, stage1: np.ndarray, past: int) -> Float[np.ndarray, "row_time k_obs"]:
    """Return m_t, the prediction of stage 1 under null actions, for every step; 0 at padding."""
    futures = np.zeros((batch.mask.size, stage1.shape[1]), np.float32)
    for steps, h in histories(batch, past):
        h = _young(h, past)
        futures[steps] = h @ stage1[: h.shape[1]] + stage1[h.shape[1]]
    return futures


def coordinates(
    futures: Float[np.ndarray, "n k_obs"], noise: Float[np.ndarray, "k_obs k_obs"], dimension: int
) -> tuple[Float[np.ndarray, " k_obs"], Float[np.ndarray, "k_obs x"], Bool[np.ndarray, " x"]]:
    """Compute the coordinates of the state from the predicted futures.

    P has the scaled `principal_directions` of the predicted futures. A direction is reliable if its variance is more than
    twice the variance of the estimation error. Unreliable directions are scaled up and can make the recursion diverge.

    Args:
        futures: m_t of the steps.
        noise: covariance of the estimation error of m_t.
        dimension: maximum number of directions.

    Returns:
        μ, P and a flag for each direction: whether it is reliable.
    """
    mean = futures.mean(axis=0, dtype=np.float64)
    variances, directions, P = principal_directions(futures, dimension)
    reliable = variances > 2 * np.einsum("fi,fg,gi->i", directions, noise, directions)
    reliable[0] = True
    return mean, P, reliable
