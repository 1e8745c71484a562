"""A noisy, delayed sensor: cart-pole of which positions are seen, two steps late and with noise on every reading.

Finite memory (the last reading, the last two) beside a predictive state. Noise makes differences of readings useless as
velocities, and after a delay one has to know what one has done since: the belief does both.

    python examples/noisy_sensor.py         # three methods, the same seed; prints what they came to
    rpsp compare runs/noisy_sensor          # the same runs as tables; with --figures DIR as figures
"""

from __future__ import annotations

from pathlib import Path

import tyro

import rpsp


def main(iterations: int = 40, samples: int = 2000, out: Path = Path("runs/noisy_sensor")) -> None:
    """Train all three.

    Args:
        iterations: of acting and updating.
        samples: environment steps an iteration.
        out: the directory of the three run directories.
    """
    sensor = {"observe": "positions", "obs_noise": 0.02, "obs_latency": 2}
    # On seed 0: fm1 18, fm2 28, rpsi-trpo 181; none of them tuned.
    for method in ("fm1", "fm2", "rpsi-trpo"):
        amounts = {"iterations": iterations, "samples": samples, "out": out / method}
        run = rpsp.train("InvertedPendulum-v5", method, **sensor, **amounts, verbose=False)
        print(f"{method:10} mean return of the last iterations {run.results['final_return']:6.1f} of at most 200")


if __name__ == "__main__":
    tyro.cli(main)
