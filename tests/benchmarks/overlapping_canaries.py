"""What more canaries than parameters would show: random directions in d dimensions overlap. Run by hand:

    python tests/benchmarks/overlapping_canaries.py [--parameters 1000 10000] [--simulated 1000] [--seeds 3]

A release is y = mu sum_j b_j a_j + N(0, 1) in d dimensions, a_j random directions of length one, b_j fair coins. The
matched score a_i y knows the overlaps, and takes away what all canaries are expected to add; what is left of the others
has the variance mu^2 m / (4 d), so that each is seen at mu / sqrt(1 + mu^2 m / (4 d)). The first table is what dpspec's
bounds that hold for any mechanism are expected to show at that mu; the second simulates it, with the matched score, and
with all canaries decoded together: the linear estimate of least error, and approximate message passing with the
coins' posterior means (Donoho, Maleki & Montanari 2009). Shares of the true epsilon at delta 1e-5, level 95%.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from attack_cases import DELTA, mu_of
from attacks import CONFIDENCE, ranked
from peer_bounds import Array
from support.guess_design import gaussian_accuracy, gaussian_design

from dpspec.stats.attacks import gaussian_fit, guess_counts, one_run_curve

EPSILONS = (1.0, 2.0, 4.0, 8.0)


def shown(coins: str, rungs: tuple[guess_counts.Rung, ...]) -> tuple[float, float]:
    """The two bounds from coins in the order of their scores."""
    of_curve = guess_counts.of_curve(len(coins))
    (right,) = guess_counts.counts([coins], [of_curve])[1]
    mu = one_run_curve.mu_lower(len(coins), sum(of_curve), right, CONFIDENCE)
    epsilon = guess_counts.epsilon_lower(len(coins), *guess_counts.counts([coins], rungs), DELTA, CONFIDENCE)
    return epsilon, gaussian_fit.epsilon(mu, DELTA)


def design(canaries: int, mu: float) -> tuple[guess_counts.Rung, ...]:
    """The ladder for canaries that are seen at ``mu``."""
    return gaussian_design(canaries, mu, DELTA, CONFIDENCE)


def expected(canaries: int, mu: float) -> tuple[float, float]:
    """The two bounds at the right guesses that are expected at ``mu``."""

    def right(count: int) -> int:
        return round(count * gaussian_accuracy(canaries, count, mu))

    guesses = [sum(rung) for rung in design(canaries, mu)]
    of_curve = sum(guess_counts.of_curve(canaries))
    epsilon = guess_counts.epsilon_lower(canaries, guesses, [right(k) for k in guesses], DELTA, CONFIDENCE)
    curve = one_run_curve.mu_lower(canaries, of_curve, right(of_curve), CONFIDENCE)
    return epsilon, gaussian_fit.epsilon(curve, DELTA)


def seen_at(mu: float, parameters: int, canaries: int) -> float:
    """The mu at which each of so many random directions is seen."""
    return mu / math.sqrt(1.0 + mu * mu * canaries / (4.0 * parameters))


def scores(release: Array, directions: Array, mu: float) -> dict[str, Array]:
    """The three scores (m,) of a release (d,), directions (d, m)."""
    parameters, canaries = directions.shape
    left = release - 0.5 * mu * directions.sum(axis=1)
    covariance = np.eye(parameters) + 0.25 * mu * mu * (directions @ directions.T)
    found = {"matched": directions.T @ left, "least error": directions.T @ np.linalg.solve(covariance, left)}
    coins, rest = np.zeros(canaries), left / mu
    for _ in range(40):
        variance = max(float(rest @ rest) / parameters, 1e-12)
        seen = coins + directions.T @ rest
        coins = 0.5 * np.tanh(0.5 * seen / variance)
        slope = float((0.25 - coins**2).mean()) / variance
        rest = left / mu - directions @ coins + rest * slope * canaries / parameters
    return {**found, "message passing": seen}


def law(sizes: list[int]) -> None:
    """The first table: epsilon / mu."""
    print("| parameters | epsilon | as many, orthogonal | as many, random | 10 times | 100 times |")
    print("|---|---|---|---|---|---|")
    for parameters in sizes:
        for epsilon in EPSILONS:
            mu = mu_of(epsilon)
            told = [expected(parameters, mu)]
            told += [expected(n * parameters, seen_at(mu, parameters, n * parameters)) for n in (1, 10, 100)]
            cells = " | ".join(f"{one / epsilon:.2f} / {curve / epsilon:.2f}" for one, curve in told)
            print(f"| {parameters:,} | {epsilon:g} | {cells} |", flush=True)


def simulated(parameters: int, seeds: int) -> None:
    """The second table: medians over seeds 0, 1, ..."""
    print(f"\n{parameters:,} parameters, {seeds} seeds\n\n| canaries | epsilon | score | epsilon / mu |")
    print("|---|---|---|---|")
    for canaries in (parameters, 10 * parameters):
        for epsilon in EPSILONS:
            mu, told = mu_of(epsilon), dict[str, list[tuple[float, float]]]()
            rungs = design(canaries, seen_at(mu, parameters, canaries))
            for seed in range(seeds):
                source = np.random.default_rng(seed)
                directions = source.standard_normal((parameters, canaries))
                directions /= np.linalg.norm(directions, axis=0)
                coins = source.integers(0, 2, canaries)
                release = mu * (directions @ coins) + source.standard_normal(parameters)
                for name, score in scores(release, directions, mu).items():
                    told.setdefault(name, []).append(shown(ranked(score, coins), rungs))
            for name, bounds in told.items():
                one, curve = np.median(np.array(bounds), axis=0) / epsilon
                print(f"| {canaries:,} | {epsilon:g} | {name} | {one:.2f} / {curve:.2f} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--simulated", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    law(given.parameters)
    simulated(given.simulated, given.seeds)


if __name__ == "__main__":
    main()
