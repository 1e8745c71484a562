"""The bias of closed-loop data in the future under null actions, and what it does to a filter.

Direct inference and `rpsr-alt`'s linear filter regress the next k observations on history and next actions, and set the
actions to 0 (stage 1). That regression is unbiased if actions do not depend on what happens after the history. Actions of
a policy do: a(t+1) reacts to o(t). The same filter is fitted to closed-loop episodes of a policy, and to open-loop ones,
in which the actions recorded in another episode are executed again: the same actions, independent of the noise.

Both are compared on new closed-loop and open-loop episodes. The expected future under null actions is known for
linear-Gaussian systems (from the Kalman filter); on Swimmer it is simulated from the state of the physics. Its error is
divided by its variance. One-step errors are divided by that of the Kalman filter, on Swimmer by the variance.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import rpsp
from benchmarks.kalman import _error
from benchmarks.systems import Floats, LinearGaussian, kalman_predictions, linear_gaussian
from rpsp.data.batches import pack
from rpsp.data.episodes import Episode
from rpsp.data.scaling import fit_scaling
from rpsp.data.windows import steps_left
from rpsp.experiments.models import PredictiveStateModel
from rpsp.filters.null_future import fit_stage1, null_futures

PAST, FUTURE, RIDGE = 10, 5, 1e-3  # those of direct inference
EPISODES, STEPS, SYSTEMS = 200, 100, 2
SHARES = 0.5, 0.9  # of the variance of the actions, how much is feedback
ENV, NOISE, ITERATIONS, RECORDED = "Swimmer-v5", 0.1, 15, 30


def main() -> dict[str, Any]:
    rows = [
        row
        for share in SHARES
        for latent in (2, 4)
        for number in range(SYSTEMS)
        for row in linear(share, latent, number)
    ]
    rows += swimmer()
    return {"rows": rows}


# ---------------------------------------------------------------------------------------------------------------------
# Linear-Gaussian systems
# ---------------------------------------------------------------------------------------------------------------------


def linear(share: float, latent: int, number: int) -> list[dict[str, Any]]:
    """Return the errors of both fits on a random system whose policy is feedback from the last observation."""
    rng = np.random.default_rng([latent, number, int(100 * share)])
    system = linear_gaussian(latent, 1, 1, rng)
    gain = _stable_gain(system, rng)
    spread = abs(gain) * _run(system, gain, 1.0, rng)[0].std() * np.sqrt((1 - share) / share)
    sets = {}
    for name in ("fit", "test"):
        closed = _run(system, gain, spread, rng)
        sets[name] = {"closed": closed, "open": _run(system, 0.0, 0.0, rng, np.roll(closed[1], 1, axis=0))}
    rows = []
    for how, (o, a) in sets["fit"].items():
        fitted = [Episode(*pair) for pair in zip(o, a, strict=True)]
        row = {"system": f"linear, {latent} latent", "number": number, "share": share, "fitted to": how}
        model = PredictiveStateModel(kind="inference").fit(fitted)
        for where, (o_test, a_test) in sets["test"].items():
            test = [Episode(*pair) for pair in zip(o_test, a_test, strict=True)]
            predicted = [model.predict(e.observations, e.actions)[:, 0] for e in test]
            row[f"one-step, {where}"] = _error(predicted, test) / _error(kalman_predictions(system, test), test)
            if where == "closed":
                row["null future"] = _null_error(fitted, test, _null_futures(system, test))
        rows.append(row)
        print(row, flush=True)
    return rows


def _stable_gain(system: LinearGaussian, rng: np.random.Generator) -> float:
    """Return the gain of the last observation that makes the closed loop decay fastest, of a hundred random ones."""
    gains = rng.uniform(-2, 2, 100)
    radius = [np.abs(np.linalg.eigvals(system.A + g * system.B @ system.C)).max() for g in gains]
    return float(gains[int(np.argmin(radius))])


def _run(
    system: LinearGaussian, gain: float, spread: float, rng: np.random.Generator, actions: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return observations and actions of episodes with a_t = gain · o_{t-1} + spread · noise."""
    n = len(system.A)
    x = rng.standard_normal((EPISODES, n))
    seen, done = [], []

    def read() -> Floats:
        return x @ system.C.T + rng.standard_normal((EPISODES, 1)) * np.sqrt(system.R[0, 0])

    seen.append(read())
    for t in range(STEPS):
        a = gain * seen[-1] + spread * rng.standard_normal((EPISODES, 1)) if actions is None else actions[:, t]
        x = x @ system.A.T + a @ system.B.T + rng.standard_normal((EPISODES, n)) * np.sqrt(system.Q[0, 0])
        done.append(a)
        seen.append(read())
    return np.stack(seen, 1), np.stack(done, 1)


def _null_futures(system: LinearGaussian, episodes: list[Episode]) -> Floats:
    """Return the expected future under null actions of every step, given all that was seen before it.

    C A^{j+1} x, j = 0 … k−1, where x is the Kalman filter's mean. The actions of the past are known, whoever chose them.
    """
    A, B, C = system.A, system.B, system.C
    powers = np.stack([C @ np.linalg.matrix_power(A, j + 1) for j in range(FUTURE)])
    o, a = (np.stack([getattr(e, name) for e in episodes], axis=1) for name in ("observations", "actions"))
    x, P, futures = np.zeros((len(episodes), len(A))), np.eye(len(A)), []
    for seen, action in zip(o, a, strict=False):
        K = P @ C.T @ np.linalg.inv(C @ P @ C.T + system.R)
        x = x + (seen - x @ C.T) @ K.T
        futures.append(np.einsum("jon,en->ejo", powers, x))
        x = x @ A.T + action @ B.T
        P = A @ (P - K @ C @ P) @ A.T + system.Q
    return np.stack(futures, axis=1)


# ---------------------------------------------------------------------------------------------------------------------
# Swimmer
# ---------------------------------------------------------------------------------------------------------------------


def swimmer() -> list[dict[str, Any]]:
    """Return the errors of both fits on noisy positions of Swimmer, under a policy that was trained on them."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "run")
        rpsp.train(
            ENV, method="rpsi-trpo", obs_noise=NOISE, iterations=ITERATIONS, seed=300, out=str(directory), device="cpu",
            verbose=False,
        )  # fmt: skip
        agent = rpsp.load(directory)
    sets = {}
    for first, name in ((1000, "fit"), (2000, "test")):
        closed = [_swim(first + i, agent=agent) for i in range(RECORDED)]
        others = closed[1:] + closed[:1]
        sets[name] = {
            "closed": closed,
            "open": [_swim(first + 500 + i, actions=other[0].actions) for i, other in enumerate(others)],
        }
    rows = []
    for how, recorded in sets["fit"].items():
        fitted = [episode for episode, _ in recorded]
        row = {"system": f"{ENV}, noise of {NOISE}", "number": 0, "share": None, "fitted to": how}
        model = PredictiveStateModel(kind="inference").fit(fitted)
        for where, pairs in sets["test"].items():
            test = [episode for episode, _ in pairs]
            predicted = [model.predict(e.observations, e.actions)[:, 0] for e in test]
            row[f"one-step, {where}"] = _relative(predicted, test)
            if where == "closed":
                row["null future"] = _null_error(fitted, test, np.stack([futures for _, futures in pairs]))
        rows.append(row)
        print(row, flush=True)
    return rows


def _swim(seed: int, agent: Any = None, actions: Floats | None = None) -> tuple[Episode, Floats]:
    """Return an episode, and the simulated future under null actions of every step (of the physics, without noise)."""
    env: Any = gymnasium.make(ENV).unwrapped
    branch: Any = gymnasium.make(ENV).unwrapped
    rng, state, start = np.random.default_rng(seed), None, True
    length = 500 if actions is None else len(actions)
    env.reset(seed=seed)
    branch.reset(seed=seed)

    def read() -> Floats:
        return env.data.qpos[2:] + NOISE * rng.standard_normal(3)

    seen, done, futures = [read()], [], []
    for t in range(length):
        branch.set_state(env.data.qpos.copy(), env.data.qvel.copy())
        ahead = []
        for _ in range(FUTURE):
            branch.step(np.zeros(2))
            ahead.append(branch.data.qpos[2:].copy())
        futures.append(ahead)
        if actions is None:
            action, state = agent.predict(seen[-1], state, episode_start=start, deterministic=False)
            start = False
        else:
            action = actions[t]
        env.step(np.asarray(action, np.float64))
        done.append(np.asarray(action, np.float64))
        seen.append(read())
    return Episode(np.stack(seen), np.stack(done)), np.array(futures)


def _relative(predicted: list[np.ndarray], episodes: list[Episode]) -> float:
    """Return the squared one-step error divided by the variance of the observations."""
    every = np.concatenate([e.observations[1:] for e in episodes])
    return _error(predicted, episodes) / float(every.var(axis=0).mean())


# ---------------------------------------------------------------------------------------------------------------------
# Stage 1
# ---------------------------------------------------------------------------------------------------------------------


def _null_error(fitted: list[Episode], test: list[Episode], truth: Floats) -> float:
    """Return the squared error of stage 1's future under null actions, divided by the variance of the true one.

    Args:
        fitted: the episodes stage 1 is fitted to.
        test: other episodes, all of one length.
        truth: the true futures of their steps, [episode, time, k, observation].
    """
    scaling = fit_scaling(np.concatenate([e.observations for e in fitted]))

    def packed(episodes: list[Episode]) -> Any:
        scaled = [dataclasses.replace(e, observations=scaling.encode(e.observations)) for e in episodes]
        return pack(scaled, row_length=len(episodes[0]))

    stage1, _ = fit_stage1(packed(fitted), PAST, FUTURE, RIDGE)
    batch = packed(test)
    found = null_futures(batch, stage1, PAST).reshape(len(test), -1, FUTURE, truth.shape[-1])
    true = scaling.encode(truth)
    counted = slice(PAST, None)  # complete histories
    assert steps_left(batch).shape[0] == found.shape[0] * found.shape[1]
    error, variance = ((found - true)[:, counted] ** 2).mean(), true[:, counted].var(axis=(0, 1)).mean()
    return float(error / variance)


if __name__ == "__main__":
    main()
