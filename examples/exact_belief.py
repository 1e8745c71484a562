"""Compare the exact Bayesian belief with the learned one on the Tiger problem.

A tiger is behind one of two doors. Listening gives the correct door with probability 0.85. Opening a door places the
tiger behind a random door again. If these numbers are known, Bayes rule gives the exact probability that the tiger is
on the left. The tabular predictive state does not know them: it is fitted to counts of sounds and actions. Its belief
follows from the sound that it predicts next: P(hear left) = 0.85 P(left) + 0.15 P(right).

    python examples/exact_belief.py         # prints the difference and draws exact_belief.png
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import rpsp

LISTEN, OPEN_LEFT, OPEN_RIGHT = range(3)
LEFT, RIGHT = range(2)
RELIABLE = 0.85


def play(steps: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the sounds [steps + 1, 1] and the actions [steps, 1] of an episode; 90 % of the actions listen."""

    def hear() -> int:
        return tiger if rng.random() < RELIABLE else 1 - tiger

    tiger = int(rng.integers(2))
    heard, done = [hear()], []
    for _ in range(steps):
        action = int(rng.choice(3, p=[0.9, 0.05, 0.05]))
        if action != LISTEN:
            tiger = int(rng.integers(2))
        heard.append(hear())
        done.append(action)
    return np.array(heard)[:, None], np.array(done)[:, None]


def exact(heard: np.ndarray, done: np.ndarray) -> np.ndarray:
    """Return P(tiger on the left | past) after every sound, by Bayes rule."""
    beliefs, left = [], 0.5
    for sound, action in zip(heard[:, 0], [OPEN_LEFT, *done[:, 0]], strict=True):  # uniform prior at the start
        prior = left if action == LISTEN else 0.5
        likelihood = (RELIABLE, 1 - RELIABLE) if sound == LEFT else (1 - RELIABLE, RELIABLE)
        left = prior * likelihood[0] / (prior * likelihood[0] + (1 - prior) * likelihood[1])
        beliefs.append(left)
    return np.array(beliefs)


def learned(model: rpsp.PredictiveStateModel, heard: np.ndarray, done: np.ndarray) -> np.ndarray:
    """Return the same probability, computed from the sound that the predictive state expects when listening."""
    listen = np.eye(3)[LISTEN]
    hears = jax.vmap(model.fitted.predict, in_axes=(0, None))(jnp.asarray(model.filter(heard, done)), listen)
    return (np.asarray(hears)[:, LEFT] - (1 - RELIABLE)) / (2 * RELIABLE - 1)


def main(episodes: int = 3000, out: Path = Path()) -> None:
    """Simulate episodes, fit models and compare beliefs.

    Args:
        episodes: Number of episodes of 30 steps to fit. Models are also fitted to a tenth and a hundredth of them.
        out: Directory for the figure.
    """
    rng = np.random.default_rng(0)
    recorded = [play(30, rng) for _ in range(episodes)]
    fresh = [play(30, rng) for _ in range(20)]
    truth = np.stack([exact(*game) for game in fresh])
    print(f"P(tiger left), root mean square difference from Bayes rule; always 1/2 would have {rms(truth - 0.5):.3f}")
    for count in (episodes // 100, episodes // 10, episodes):
        # A future of one sound is sufficient: P(hear left) distinguishes the two positions of the tiger.
        model = rpsp.PredictiveStateModel("tabular", future=1).fit(recorded[:count])
        beliefs = np.stack([learned(model, *game) for game in fresh])
        print(f"  {count:5} episodes: {rms(beliefs - truth):.3f}")
    game = np.abs(np.diff(truth)).sum(axis=1).argmax()  # the episode in which the belief changes most
    heard, done = fresh[game]
    draw(heard, done, truth[game], beliefs[game], out)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


def draw(heard: np.ndarray, done: np.ndarray, truth: np.ndarray, belief: np.ndarray, out: Path) -> None:
    """Draw the sounds, the opened doors and both beliefs of one episode."""
    import matplotlib
    from matplotlib.figure import Figure

    from rpsp.experiments import figures

    with matplotlib.rc_context(figures.STYLE):
        figure = Figure(figsize=(8, 3.2))
        axes = figure.subplots()
        axes.plot(truth, color="black", linewidth=4, alpha=0.25, label="exact: Bayes rule, all numbers known")
        axes.plot(belief, color=figures.COLOURS["tabular"], label="learned: predictive state, by counting")
        axes.plot(1.08 - 1.16 * heard[:, 0], ".", color="black", markersize=4, label="heard (top: left)")
        for i, step in enumerate(np.flatnonzero(done[:, 0] != LISTEN) + 0.5):
            axes.axvline(step, color="black", linestyle=":", label="a door is opened" if i == 0 else None)
        axes.set(xlabel="step", ylabel="P(tiger left)", ylim=(-0.14, 1.14))
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    print(f"figure: {figures.save(figure, out, 'exact_belief')}")


if __name__ == "__main__":
    tyro.cli(main)
