"""Numbers of runs after which faults are refuted, by e-values and by fixed plans, and false alarms of the e-value.

    python tests/campaigns/sequential_stops.py [--seeds 40] [--nulls 1000]

The declared mechanism is 0.5-GDP, and the claim is its epsilon at delta 1e-5, refuted at level 0.05. A fault raises mu.
Scores are N(mu b, 1) in cells of 1/64. A fixed plan has the smallest number of runs, of a grid with ratio 1.25, with
which the ranked thresholds refute the claim for at least 90 % of the seeds.
"""

import argparse
import math
from itertools import takewhile
from typing import Any

import numpy as np
from scipy import special

from dpspec.stats.attacks import curve_lines, sequential, thresholds

DELTA = 1e-5
EPSILON = curve_lines.gaussian_epsilon(0.5, DELTA)

#: mu of the executed run, by fault.
FAULTS = {
    "a step without noise": math.inf,
    "noise a tenth": 5.0,
    "noise a quarter": 2.0,
    "noise half": 1.0,
    "twice the steps": math.sqrt(0.5),
}

#: Largest number of runs.
MOST = 40_000


def runs_of(mu: float, runs: int, seed: int) -> tuple[str, list[int]]:
    rng = np.random.default_rng(seed)
    coins, noise = rng.integers(0, 2, MOST)[:runs], rng.standard_normal(MOST)[:runs]  # fewer runs are the first ones
    scores = np.floor(64.0 * (min(mu, 50.0) * coins + noise)).astype(int)
    return "".join(map(str, coins)), scores.tolist()


def worst_runs(epsilon: float, delta: float, runs: int, seed: int) -> tuple[str, list[int]]:
    """The (epsilon, delta)-DP mechanism with the largest loss: reveals the coin, else randomized response."""
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, runs)
    revealed, right = rng.random(runs) < delta, rng.random(runs) < special.expit(epsilon)
    scores = np.where(revealed, 3 * coins, 1 + (coins == right))
    return "".join(map(str, coins)), scores.tolist()


def stopped_after(coins: str, scores: list[int], epsilon: float, delta: float, level: float) -> int | None:
    """The first number of runs with an e-value of at least 1 / level."""
    log_e_values = sequential._capital(*sequential._bets(coins, scores), epsilon, delta)
    reached = np.flatnonzero(log_e_values >= -math.log(level))
    return int(reached[0]) + 1 if reached.size else None


def stops(mu: float, seeds: int) -> list[int]:
    """Numbers of runs until the claim is refuted, seeds 0, 1, ...; ``MOST`` if it is not."""
    found: list[int] = []
    for seed in range(seeds):
        each = (stopped_after(*runs_of(mu, runs, seed), EPSILON, DELTA, 0.05) for runs in (1000, 4000, 16_000, MOST))
        found.append(next((stop for stop in each if stop is not None), MOST))
    return found


def fixed_plan(mu: float, seeds: int) -> int | None:
    for runs in takewhile(lambda n: n <= MOST, (round(16 * 1.25**k) for k in range(60))):
        refuted = 0
        for seed in range(seeds):
            coins, scores = runs_of(mu, runs, seed)
            outcomes = thresholds.outcomes(scores, [coin == "1" for coin in coins])
            refuted += thresholds.p_value(outcomes, ((EPSILON, DELTA),)) <= 0.05
        if refuted >= 0.9 * seeds:
            return runs
    return None


def false_alarms(mechanism: Any, claim: tuple[float, float], runs: int, seeds: int) -> int:
    return sum(stopped_after(*mechanism(runs, seed), *claim, 0.05) is not None for seed in range(seeds))


def nulls() -> dict[str, tuple[Any, tuple[float, float]]]:
    return {
        "worst case 0.5, delta 0": (lambda runs, seed: worst_runs(0.5, 0.0, runs, seed), (0.5, 0.0)),
        "worst case 1, delta 0.02": (lambda runs, seed: worst_runs(1.0, 0.02, runs, seed), (1.0, 0.02)),
        "Gaussian, mu 0.5": (lambda runs, seed: runs_of(0.5, runs, seed), (EPSILON, DELTA)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--nulls", type=int, default=1000)
    options = parser.parse_args()
    for name, (mechanism, claim) in nulls().items():
        print(
            f"{name:26} false alarms {false_alarms(mechanism, claim, 500, options.nulls)} of {options.nulls}",
            flush=True,
        )
    for fault, mu in FAULTS.items():
        found = stops(mu, options.seeds)
        print(f"{fault:26} mean {np.mean(found):8.0f}  90 % {np.quantile(found, 0.9):8.0f}", end="  ", flush=True)
        print(f"fixed {fixed_plan(mu, options.seeds)}", flush=True)


if __name__ == "__main__":
    main()
