"""Cart-pole with a noisy, delayed sensor: only positions are observed, with noise and two steps late.

Compares finite memory (the last observation, the last two) with a predictive state. With noise, differences of
observations are poor estimates of velocities. With a delay, the agent must take into account its own recent actions. A
predictive state handles both.

    python examples/noisy_sensor.py         # train three methods with the same seed and print their returns
    rpsp compare runs/noisy_sensor          # compare the runs in tables; --figures DIR draws figures
"""

from __future__ import annotations

from pathlib import Path

import tyro

import rpsp


def main(iterations: int = 40, samples: int = 2000, out: Path = Path("runs/noisy_sensor")) -> None:
    """Train all three methods.

    Args:
        iterations: Number of training iterations.
        samples: Environment steps per iteration.
        out: Directory for the three run directories.
    """
    sensor = {"observe": "positions", "obs_noise": 0.02, "obs_latency": 2}
    # Returns with seed 0 and default settings: fm1 18, fm2 28, rpsi-trpo 181.
    for method in ("fm1", "fm2", "rpsi-trpo"):
        amounts = {"iterations": iterations, "samples": samples, "out": out / method}
        run = rpsp.train("InvertedPendulum-v5", method, **sensor, **amounts, verbose=False)
        print(f"{method:10} mean return of the last iterations {run.results['final_return']:6.1f} of at most 200")


if __name__ == "__main__":
    tyro.cli(main)
