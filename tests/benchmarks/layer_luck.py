"""What luck that each layer has for itself, for the whole run, does to ``epsilon-if-independent``. Run by hand:

    python tests/benchmarks/layer_luck.py [--canaries 10000]

In every run each of L equal layers has, by a fair coin of its own, the declared noise or ``louder`` times as much;
canaries lie in all layers alike, and the score adds them up. The release tells the coins. Printed, exactly: the chance
that the bound is above the true epsilon (of an adversary who weighs each layer by its noise), and how much of it are
runs whose layers are all alike, which no look at layers tells from runs without luck. Epsilon 4 if all layers are as
declared, delta 1e-5, level 95%.
"""

from __future__ import annotations

import argparse
import math

from attack_cases import DELTA, mu_of
from scipy.special import ndtr

from dpspec.stats.independence import order_statistics


def delta_of(epsilon: float, mu: float) -> float:
    """The Gaussian curve (Dong, Roth & Su 2022, Corollary 2.13)."""
    return float(ndtr(0.5 * mu - epsilon / mu) - math.exp(epsilon) * ndtr(-0.5 * mu - epsilon / mu))


def true_epsilon(chances: list[float], mus: list[float]) -> float:
    """Of the mixture whose part is told, by bisection."""
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        found = sum(p * delta_of(middle, mu) for p, mu in zip(chances, mus, strict=True))
        low, high = (middle, high) if found > DELTA else (low, middle)
    return high


def shares(layers: int, louder: float, canaries: int) -> tuple[float, float]:
    """How often the bound is above the truth, and that with all layers alike."""
    mu, run = mu_of(4.0), order_statistics.design(canaries)
    chances = [math.comb(layers, k) / 2**layers for k in range(layers + 1)]
    loud = [k / layers for k in range(layers + 1)]
    best = [mu * math.sqrt(1.0 - share + share / louder**2) for share in loud]
    scored = [mu / math.sqrt(1.0 - share + share * louder**2) for share in loud]
    truth = mu_of(true_epsilon(chances, best))
    low, high = 0, run.low + run.high
    while low < high:
        middle = (low + high) // 2
        rejects = order_statistics.p_value([run], middle, truth) <= 0.05
        low, high = (low, middle) if rejects else (middle + 1, high)
    above = [p * order_statistics.p_value([run], low, seen) for p, seen in zip(chances, scored, strict=True)]
    return sum(above), above[0] + above[-1]


def main() -> None:
    """One row for each number of layers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--canaries", type=int, default=10_000)
    given = parser.parse_args()
    all_louder = (1.02, 1.05, 1.1, 1.25, 2.0, 100.0)
    print("| layers | " + " | ".join(f"{louder:g} times the noise" for louder in all_louder) + " |")
    print("|---|" + "---|" * len(all_louder))
    for layers in (1, 2, 3, 4, 8):
        cells = ["{:.3f} ({:.3f})".format(*shares(layers, louder, given.canaries)) for louder in all_louder]
        print(f"| {layers} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
