"""What an adversary of the final model gains by a fresh direction in each step: nothing. Run by hand:

    python tests/benchmarks/fresh_directions.py [--canaries 2000] [--seeds 40]

Of T steps with noise sigma the final model has the sum. Let canary j add I_jt u_jt, |u_jt| = 1, in step t, I_jt being
whether it was drawn. Noise has the variance T sigma^2 along every direction, whatever the u_jt are, so that all there
is to see of a canary is the length of sum_t I_jt u_jt: T where the direction stays and the canary is always drawn,
sqrt(T) where they are orthogonal. By the triangle inequality no choice of directions is longer than one that stays.

Here a canary has a space of its own, so that others are not in the way: that is more than fresh directions of many
canaries have in a model. It is scored by the exact log-likelihood ratio of all that is seen of it, and by that of an
adversary who knows in which steps it was drawn as well.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from attack_cases import DELTA
from attacks import CONFIDENCE
from peer_bounds import Array
from scipy.special import logsumexp
from scipy.stats import binom

from dpspec.stats.attacks import guess_counts, one_run_curve


def ratios(coins: Array, steps: int, rate: float, sigma: float, fresh: bool, known: bool, seed: int) -> Array:
    """The log-likelihood ratios (m,) of planted against not, of canaries planted by ``coins`` (m,)."""
    rng, noise = np.random.default_rng(seed), sigma * math.sqrt(steps)
    drawn = rng.random((len(coins), steps)) < rate
    if not fresh:
        drawn = drawn.sum(1, keepdims=True)
    seen = coins[:, None] * drawn + noise * rng.standard_normal(drawn.shape)
    if known:
        return np.asarray((drawn * (seen - 0.5 * drawn)).sum(1) / noise**2)
    most = 1 if fresh else steps
    counts = np.arange(most + 1)
    chances = binom.pmf(counts, most, rate)
    exponents = (counts * seen[..., None] - 0.5 * counts**2) / noise**2
    return np.asarray(logsumexp(exponents, b=chances, axis=-1).sum(1))


def shown(canaries: int, steps: int, rate: float, sigma: float, fresh: bool, known: bool, seed: int) -> Array:
    """The bounds on mu and epsilon (2,) of one seed."""
    coins = np.random.default_rng((seed, 1)).integers(0, 2, canaries)
    scores = ratios(coins, steps, rate, sigma, fresh, known, seed)
    ordered = "".join(map(str, coins[np.argsort(scores)]))
    of_curve = guess_counts.of_curve(canaries)
    (right,) = guess_counts.counts([ordered], [of_curve])[1]
    rungs = guess_counts.blind(canaries, least=8)
    epsilon = guess_counts.epsilon_lower(canaries, *guess_counts.counts([ordered], rungs), DELTA, CONFIDENCE)
    return np.array([one_run_curve.mu_lower(canaries, sum(of_curve), right, CONFIDENCE), epsilon])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--canaries", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=40)
    asked = parser.parse_args()
    print("| steps, rate, noise | steps drawn in are known | one direction: mu, epsilon | fresh ones: mu, epsilon |")
    print("|---|---|---|---|")
    for steps, rate, sigma in ((50, 1.0, 4.0), (50, 0.2, 1.0), (50, 0.01, 0.5)):
        for known in (False, True) if rate < 1.0 else (True,):
            cells = []
            for fresh in (False, True):
                case = (asked.canaries, steps, rate, sigma, fresh, known)
                mu, epsilon = np.median([shown(*case, seed) for seed in range(asked.seeds)], axis=0)
                cells.append(f"{mu:.2f}, {epsilon:.2f}")
            print(f"| {steps}, {rate:g}, {sigma:g} | {'yes' if known else 'no'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
