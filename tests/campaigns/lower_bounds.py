"""Coverage of the bounds of one run, on simulated mechanisms whose epsilon and mu are computed from their masses.

    python tests/campaigns/lower_bounds.py [--runs 200] [--canaries 500]
    python tests/campaigns/lower_bounds.py --independent [--runs 200] [--canaries 500]

Prints the truth, the median bound, the share of runs with a bound above the truth and the seconds per run. With
``--independent``: the delta and the truth at it, the median of bound / truth and the shares of audits of 20 runs with a
bound and with one above the truth, for ``epsilon-if-independent``, designed for each mechanism. Each canary
has an independent fair coin, its output has the distribution ``absent`` or ``present`` on a common grid; its score is
its log-likelihood ratio. With ``shared`` below 1, one more coin, common to all canaries, decides with this probability
that outputs are informative; otherwise all are drawn from ``absent``. The adversary observes this coin.
"""

import argparse
import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

from dpspec.stats.attacks import guess_counts, independent_scores

Masses = np.ndarray[Any, np.dtype[np.float64]]

DELTA = 1e-5


@dataclass(frozen=True)
class Mechanism:
    name: str
    absent: Masses
    present: Masses
    shared: float = 1.0

    def log_ratio(self) -> Masses:
        return np.log(self.present) - np.log(self.absent)

    def mu(self) -> float:
        """Smallest mu with mu-GDP: the largest difference of normal scores at a corner of the trade-off curve.

        Between corners the curve is linear, and that of mu-GDP is concave. Corners with rates within 1e-12 of 0 or 1
        are omitted, which can only make the truth smaller. The shared coin leaves the supremum, reached at rate 0.
        """
        order = np.argsort(-self.log_ratio(), kind="stable")
        false, true = np.cumsum(self.absent[order]), np.cumsum(self.present[order])
        inside = (false > 1e-12) & (true < 1.0 - 1e-12)
        return float(np.max(special.ndtri(true[inside]) - special.ndtri(false[inside])))

    def shift(self) -> float:
        """Mu of a Gaussian mechanism with the same chance that a present canary scores above an absent one."""
        _, which = np.unique(np.round(self.log_ratio(), 9), return_inverse=True)
        absent, present = np.bincount(which, self.absent), np.bincount(which, self.present)
        return math.sqrt(2.0) * float(special.ndtri(present @ (np.cumsum(absent) - 0.5 * absent)))

    def epsilon(self, at: float = DELTA) -> float:
        """Smallest epsilon at a delta, in both directions; delta is divided by the probability ``shared``."""

        def delta(epsilon: float, p: Masses, q: Masses) -> float:
            return self.shared * float(np.maximum(0.0, p - math.exp(epsilon) * q).sum())

        low, high = 0.0, 60.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            worst = max(delta(middle, self.present, self.absent), delta(middle, self.absent, self.present))
            low, high = (middle, high) if worst > at else (low, middle)
        return high

    def outcomes(self, canaries: int, rng: np.random.Generator) -> str:
        """Coins by ascending score, ties in random order."""
        coins = rng.integers(0, 2, canaries)
        present = self.present if rng.random() < self.shared else self.absent
        size = len(self.absent)
        output = np.where(coins == 1, rng.choice(size, canaries, p=present), rng.choice(size, canaries, p=self.absent))
        order = np.lexsort((rng.random(canaries), self.log_ratio()[output]))
        return "".join(map(str, coins[order]))


def _on_grid(name: str, absent: Any, present: Any, shared: float = 1.0) -> Mechanism:
    """A mechanism from two scipy distributions, rounded to a grid of 4001 cells on [-20, 24]."""
    edges = np.concatenate([[-np.inf], np.linspace(-20.0, 24.0, 4000), [np.inf]])
    masses = [
        np.maximum(np.where(edges[:-1] < 0.0, np.diff(law.cdf(edges)), -np.diff(law.sf(edges))), 1e-300)
        for law in (absent, present)
    ]
    return Mechanism(name, *(each / each.sum() for each in masses), shared=shared)


def _gaussian(shift: float, shared: float = 1.0) -> Mechanism:
    name = f"Gaussian {shift:g}" + (f", shared coin {shared:g}" if shared < 1.0 else "")
    return _on_grid(name, stats.norm(0.0, 1.0), stats.norm(shift, 1.0), shared)


def _composed(pair: Mechanism, times: int, name: str) -> Mechanism:
    """Independent repetitions of a mechanism with few outputs: all tuples."""
    absent, present = np.ones(1), np.ones(1)
    for _ in range(times):
        absent = np.multiply.outer(absent, pair.absent).ravel()
        present = np.multiply.outer(present, pair.present).ravel()
    return Mechanism(name, absent, present)


def _response(epsilon: float, unknown: float = 0.0) -> Mechanism:
    """Randomized response, which answers "unknown" with a fixed probability."""
    right = (1.0 - unknown) * float(special.expit(epsilon))
    masses = np.array([right, 1.0 - unknown - right, unknown])[: 3 if unknown else 2]
    name = f"response {epsilon:g}" + (f", {unknown:.0%} unknown" if unknown else "")
    return Mechanism(name, masses, masses[[1, 0, 2][: len(masses)]])


def _clipped(mechanism: Mechanism, low: int, high: int) -> Mechanism:
    """Outputs below and above two cells become one value each."""

    def clip(masses: Masses) -> Masses:
        return np.concatenate([[masses[:low].sum()], masses[low:high], [masses[high:].sum()]])

    return Mechanism(f"{mechanism.name}, clipped", clip(mechanism.absent), clip(mechanism.present))


def mechanisms() -> Iterator[Mechanism]:
    yield _gaussian(0.5)
    yield _gaussian(1.0)
    yield _gaussian(2.0)
    yield _gaussian(4.0)
    yield _response(1.0)
    yield _response(3.0)
    yield _response(4.0, unknown=0.9)
    yield _on_grid("Laplace 1", stats.laplace(0.0, 1.0), stats.laplace(1.0, 1.0))
    yield _composed(_response(0.5), 10, "10 responses 0.5")
    yield _clipped(_gaussian(1.0), 1750, 2050)
    yield _on_grid("Student 3, shift 2", stats.t(3), stats.t(3, loc=2.0))
    yield _gaussian(2.0, shared=0.3)


def hostile() -> Iterator[Mechanism]:
    """Twelve mechanisms for ``epsilon-if-independent``: other curves than Gaussian ones, and shared luck."""
    edges = np.concatenate([[-np.inf], np.linspace(-1.0, 1.5, 11), [np.inf]])
    laplace = Mechanism("", *(np.diff(stats.laplace(at, 1.0).cdf(edges)) for at in (0.0, 0.5)))
    gaussian = _gaussian(2.0)
    yield _composed(laplace, 4, "4 Laplace 0.5")
    yield _composed(_response(0.5), 10, "10 responses 0.5")
    yield _on_grid("Laplace 1", stats.laplace(0.0, 1.0), stats.laplace(1.0, 1.0))
    yield _response(1.0)
    yield _response(4.0, unknown=0.9)
    yield _response(30.0, unknown=0.998)  # one canary of 500 is revealed
    yield _clipped(_gaussian(1.0), 1750, 2050)
    yield _on_grid("Student 3, shift 2", stats.t(3), stats.t(3, loc=2.0))
    yield _on_grid("Cauchy, shift 1", stats.cauchy(), stats.cauchy(1.0))
    yield Mechanism("30% Gaussian 2", gaussian.absent, 0.3 * gaussian.present + 0.7 * gaussian.absent)
    yield _gaussian(1.0, shared=0.9)
    yield _gaussian(1.0, shared=0.97)


def if_independent(mechanism: Mechanism, canaries: int, seeds: int, runs: int = 20) -> tuple[float, Masses]:
    """The delta, and the bounds (seeds,) from ``runs`` runs each, seeds 0, 1, ...; NaN without a bound."""
    chosen = independent_scores.design(mechanism.shift(), runs, canaries, DELTA, 0.95)
    found = np.full(seeds, np.nan)
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        with contextlib.suppress(independent_scores.NoBoundError):
            outcomes = [mechanism.outcomes(canaries, rng) for _ in range(runs)]
            found[seed] = independent_scores.epsilon_lower(outcomes, chosen, 0.95).epsilon
    return chosen.delta, found


def bounds(mechanism: Mechanism, canaries: int, runs: int) -> tuple[Masses, Masses]:
    """Bounds on epsilon at ``DELTA`` and on mu (runs,) with 95% confidence, seeds 0, 1, ..."""
    epsilons, mus = [], []
    for seed in range(runs):
        coins = mechanism.outcomes(canaries, np.random.default_rng(seed))
        guesses, correct = guess_counts.counts([coins], guess_counts.blind(canaries))
        epsilons.append(guess_counts.epsilon_lower(canaries, guesses, correct, DELTA, 0.95))
        mus.append(guess_counts.mu_lower([coins], 0.95)[0])
    return np.array(epsilons), np.array(mus)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--canaries", type=int, default=500)
    parser.add_argument("--independent", action="store_true")
    options = parser.parse_args()
    if options.independent:
        for mechanism in (_gaussian(0.502), _gaussian(0.925), _gaussian(1.666), *hostile()):
            delta, lower = if_independent(mechanism, options.canaries, options.runs)
            truth, given = mechanism.epsilon(delta), lower[~np.isnan(lower)]
            ratio = float(np.median(given)) / truth if given.size else math.nan
            above = float((lower > truth).mean())
            print(
                f"{mechanism.name:28} {delta:6g} {truth:7.3f} {ratio:6.3f} {given.size / lower.size:6.3f} {above:6.3f}"
            )
        return
    for mechanism in mechanisms():
        start = time.perf_counter()
        found = bounds(mechanism, options.canaries, options.runs)
        seconds = (time.perf_counter() - start) / options.runs
        for quantity, truth, lower in zip(("epsilon", "mu"), (mechanism.epsilon(), mechanism.mu()), found, strict=True):
            above = float((lower > truth).mean())
            print(f"{mechanism.name:28} {quantity:8} {truth:7.3f} {np.median(lower):7.3f} {above:6.3f} {seconds:.3f} s")


if __name__ == "__main__":
    main()
