"""How tight the lower bounds are on an exact Gaussian mechanism, beside its true epsilon. Run by hand:

    python tests/benchmarks/attack_designs.py [--seeds 200]

Scores are N(0, 1) for an absent canary or run and N(mu, 1) for a present one; seeds are 0, 1, ... The column "above"
counts the seeds whose bound, at 95%, exceeds the truth: a valid one does so in about 5% at most. What is expected is
what ``dpspec.stats.attacks.attack_power`` says before the scores are seen, as ``dpspec plan`` does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from dpspec.stats.attacks import attack_power, gaussian_fit, guess_counts, many_run, one_run, one_run_curve, thresholds

CONFIDENCE = 0.95

#: Canaries (or runs) of both kinds together, true epsilon, delta.
SETTINGS = [(2000, 4.377, 1e-5), (2000, 2.0, 1e-5), (20_000, 2.0, 1e-5), (20_000, 4.0, 1e-5), (20_000, 8.0, 1e-5)]


def mu_of(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian curve with this epsilon."""
    low, high = 0.0, 20.0
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian_fit.epsilon(middle, delta) < epsilon else (low, middle)
    return high


def outcomes(mu: float, canaries: int, seed: int, *, fair: bool = True) -> str:
    """Coins from the lowest score to the highest; without ``fair`` exactly half are present."""
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, canaries) if fair else np.arange(canaries) % 2
    return "".join(map(str, coins[np.argsort(rng.standard_normal(canaries) + mu * coins)]))


def methods(canaries: int, mu: float, delta: float) -> dict[str, tuple[Callable[[int], float], float]]:
    """For each method the bound of a seed, and what is expected of it (nan where nothing is foreseen)."""

    def accuracy(count: int) -> float:
        return attack_power.gaussian_accuracy(canaries, count, mu)

    rungs = guess_counts.design(canaries, accuracy, delta, CONFIDENCE)
    designed, half = rungs[1], canaries // 2
    guesses = sum(designed)

    def counted(seed: int, *of: guess_counts.Rung) -> tuple[list[int], list[int]]:
        return guess_counts.counts([outcomes(mu, canaries, seed)], of)

    def of_many_runs(seed: int) -> float:
        rng, cut = np.random.default_rng(seed), 0.5 * mu + 1.0
        true = int((mu + rng.standard_normal(half) > cut).sum())
        false = int((rng.standard_normal(half) > cut).sum())
        return many_run.epsilon_lower(half, half, true, false, delta, CONFIDENCE)

    def of_one_run(seed: int) -> float:
        made, right = counted(seed, designed)
        return one_run.epsilon_lower(canaries, made[0], right[0], delta, CONFIDENCE)

    def of_mu(seed: int) -> float:
        made, right = counted(seed, guess_counts.of_curve(canaries))
        return gaussian_fit.epsilon(one_run_curve.mu_lower(canaries, made[0], right[0], CONFIDENCE), delta)

    one_sided = 1.0 - 2.0 * (1.0 - CONFIDENCE)
    every = [sum(rung) for rung in rungs]
    return {
        "many runs, threshold fixed": (of_many_runs, float("nan")),
        "many runs, threshold chosen": (
            lambda s: thresholds.epsilon_lower(outcomes(mu, canaries, s, fair=False), delta, CONFIDENCE),
            attack_power.gaussian_ranked(half, half, mu, delta, CONFIDENCE),
        ),
        "one run, one guess count": (of_one_run, attack_power.gaussian(canaries, (guesses,), mu, delta, CONFIDENCE)),
        "one run, ladder": (
            lambda s: guess_counts.epsilon_lower(canaries, *counted(s, *rungs), delta, CONFIDENCE),
            attack_power.gaussian(canaries, every, mu, delta, CONFIDENCE),
        ),
        "one run, mu, then epsilon (Gaussian curve assumed)": (of_mu, float("nan")),
        "fit, low end (Gaussian scores assumed)": (
            lambda s: gaussian_fit.epsilon(gaussian_fit.estimate([outcomes(mu, canaries, s)], one_sided).low, delta),
            float("nan"),
        ),
    }


def main() -> None:
    """Print one table for each setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    seeds = range(parser.parse_args().seeds)
    for canaries, epsilon, delta in SETTINGS:
        mu = mu_of(epsilon, delta)
        print(f"\n{canaries:,} canaries or runs, epsilon {epsilon:g} at {delta:g} (mu {mu:.3f}), {len(seeds)} seeds\n")
        print(f"| {'method':50} | expected | mean | median | 5% | above |\n|---|---|---|---|---|---|")
        for name, (bound, expected) in methods(canaries, mu, delta).items():
            found = np.array([bound(seed) for seed in seeds])
            foreseen = "" if np.isnan(expected) else f"{expected:.2f}"
            middle = f"{found.mean():.2f} | {np.median(found):.2f} | {np.quantile(found, 0.05):.2f}"
            print(f"| {name:50} | {foreseen} | {middle} | {int((found > epsilon).sum())} |", flush=True)


if __name__ == "__main__":
    main()
