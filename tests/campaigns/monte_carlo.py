"""Certified deltas of random compositions beside simulated privacy losses.

    python tests/campaigns/monte_carlo.py [--count 300] [--seed 0] [--only NUMBER] [--samples 20000]

Each setting is a random composition: groups in Poisson batches, several phases of these, sampled Laplace noise,
replaced records, or random allocation. Outputs of each step are drawn from the first distribution, and their losses
computed from densities, without code of the accountant. (1 - e^(epsilon - loss))+ is between 0 and 1 and has the mean
delta(epsilon). A coin for each sample makes it a binomial count, whose Clopper-Pearson interval misses delta with a
chance of at most ``ERROR``. A finding is an interval of the accountant that does not meet it: the chance of any among
300 settings without an error of the accountant is at most 3e-4. The last column is the width of the simulated interval
over the certified delta: what the comparison can see.
"""

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp
from scipy.stats import beta, binom

from dpspec.accounting import DIRECTIONS, Direction, DoubleMixture, Floats, Laplace, Mixture, Pair, PrivacyLoss
from dpspec.accounting import RandomAllocation as Allocation

#: The chance that a simulated interval misses the delta.
ERROR = 1e-6

#: Numbers in memory at once.
_CHUNK = 2_000_000

#: Losses of outputs of one step, given their number and the direction.
Simulated = Callable[[np.random.Generator, int, Direction], Floats]


@dataclass(frozen=True)
class Setting:
    """A composition, as pairs of the accountant and as simulators of their losses.

    Attributes:
        name: the setting in words.
        phases: (pair, simulator, steps) each.
        direction: of the losses.
        quantile: the delta at which epsilon is chosen.
    """

    name: str
    phases: tuple[tuple[Pair, Simulated, int], ...]
    direction: Direction
    quantile: float


def _log_mixture(outputs: Floats, means: Floats, logs: Floats, std: float) -> Floats:
    """ln of the density of a mixture of Gaussians, less the terms that all mixtures of ``std`` share, (n,)."""
    exponents = logs + (outputs[:, None] * means - 0.5 * means**2) / std**2
    return np.asarray(logsumexp(exponents, axis=1))


def _mixture(present: tuple[Floats, Floats], absent: tuple[Floats, Floats], std: float) -> Simulated:
    """Losses of two mixtures of Gaussians, of (means, probabilities) each."""

    def simulate(rng: np.random.Generator, count: int, direction: Direction) -> Floats:
        first, second = (present, absent) if direction == "present-first" else (absent, present)
        outputs = first[0][rng.choice(len(first[0]), count, p=first[1])] + std * rng.standard_normal(count)
        with np.errstate(divide="ignore"):
            return np.asarray(
                _log_mixture(outputs, first[0], np.log(first[1]), std)
                - _log_mixture(outputs, second[0], np.log(second[1]), std)
            )

    return simulate


def _laplace(scale: float, rate: float) -> Simulated:
    def simulate(rng: np.random.Generator, count: int, direction: Direction) -> Floats:
        shift = (rng.random(count) < rate) if direction == "present-first" else np.zeros(count)
        outputs = shift + rng.laplace(0.0, scale, count)
        ratio = np.log1p(rate * np.expm1((np.abs(outputs) - np.abs(outputs - 1.0)) / scale))
        return np.asarray(ratio if direction == "present-first" else -ratio)

    return simulate


def _allocation(steps: int, std: float) -> Simulated:
    def simulate(rng: np.random.Generator, count: int, direction: Direction) -> Floats:
        outputs = rng.standard_normal((count, steps))
        if direction == "present-first":
            outputs[np.arange(count), rng.integers(steps, size=count)] += 1.0 / std
        ratio = logsumexp(outputs / std - 0.5 / std**2, axis=1) - math.log(steps)
        return np.asarray(ratio if direction == "present-first" else -ratio)

    return simulate


def _drawn(records: int, rate: float, sign: float = 1.0) -> tuple[Floats, Floats]:
    """Means and probabilities of a group of ``records`` in a Poisson batch."""
    numbers = np.arange(records + 1)
    chances = binom(records, rate).pmf(numbers)
    return sign * numbers, chances / chances.sum()


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def setting_of(seed: int, number: int) -> Setting:
    """The setting of a number: the same at each call."""
    rng = np.random.default_rng([seed, number])
    steps, rate, std = round(_log_uniform(rng, 1.0, 100.0)), _log_uniform(rng, 1e-3, 1.0), _log_uniform(rng, 0.4, 6.0)
    direction, quantile = DIRECTIONS[int(rng.integers(2))], _log_uniform(rng, 3e-3, 0.3)
    kind = ("group", "phases", "laplace", "replaced", "allocated")[number % 5]
    still = np.zeros(1), np.ones(1)
    phases: tuple[tuple[Pair, Simulated, int], ...]
    if kind in ("group", "phases"):
        chosen = []
        for i in range(1 if kind == "group" else 3):
            records, noise = int(rng.integers(1, 6)), std * (1.0 + 0.3 * i)
            simulated = _mixture(_drawn(records, rate), still, noise)
            chosen.append((Mixture.poisson(records, rate, noise), simulated, max(1, steps // (i + 1))))
        phases = tuple(chosen)
    elif kind == "laplace":
        phases = ((Laplace(std, rate=rate), _laplace(std, rate), steps),)
    elif kind == "replaced":
        removed, inserted = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        simulated = _mixture(_drawn(removed, rate), _drawn(inserted, rate, -1.0), std)
        phases = ((DoubleMixture.poisson(removed, inserted, rate, std), simulated, steps),)
    else:
        batches = int(rng.integers(2, 30))
        phases = ((Allocation(batches, std), _allocation(batches, std), max(1, steps // 10)),)
    words = ", ".join(f"{pair!r} x {count}" for pair, _, count in phases)
    return Setting(f"{kind}: {words}, {direction}", phases, direction, quantile)


def simulated_losses(setting: Setting, rng: np.random.Generator, samples: int) -> Floats:
    """Losses of the composition, (samples,)."""
    losses = np.zeros(samples)
    for _, simulate, steps in setting.phases:
        at_once = max(1, _CHUNK // samples // 30)
        for first in range(0, steps, at_once):
            count = min(at_once, steps - first)
            losses += simulate(rng, samples * count, setting.direction).reshape(samples, count).sum(axis=1)
    return losses


@dataclass(frozen=True)
class Comparison:
    """An epsilon, the certified delta there, and the simulated one; ``meets`` if the two intervals do."""

    epsilon: float
    certified: tuple[float, float]
    simulated: tuple[float, float]

    @property
    def meets(self) -> bool:
        return self.certified[0] <= self.simulated[1] and self.simulated[0] <= self.certified[1]

    @property
    def resolution(self) -> float:
        return (self.simulated[1] - self.simulated[0]) / self.certified[1]


def compare(setting: Setting, rng: np.random.Generator, samples: int) -> Comparison:
    loss = PrivacyLoss(tuple((pair, steps) for pair, _, steps in setting.phases), setting.direction)
    epsilon = loss.epsilon(setting.quantile, width=1e-2).upper
    delta = loss.delta(epsilon, width=1e-3)
    gains = -np.expm1(np.minimum(epsilon - simulated_losses(setting, rng, samples), 0.0))
    count = int((rng.random(samples) < gains).sum())
    low = float(beta.ppf(0.5 * ERROR, count, samples - count + 1)) if count else 0.0
    high = float(beta.isf(0.5 * ERROR, count + 1, samples - count)) if count < samples else 1.0
    return Comparison(epsilon, (delta.lower, delta.upper), (low, high))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="settings")
    parser.add_argument("--seed", type=int, default=0, help="of all settings")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this setting alone")
    parser.add_argument("--samples", type=int, default=20_000, help="simulated compositions of a setting")
    options = parser.parse_args()
    numbers = range(options.count) if options.only is None else [options.only]
    outside, resolutions = 0, []
    for number in numbers:
        setting = setting_of(options.seed, number)
        rng = np.random.default_rng([options.seed, number, 1])
        found = compare(setting, rng, options.samples)
        resolutions.append(found.resolution)
        outside += not found.meets
        if options.only is not None or not found.meets:
            print(f"{number} {setting.name}: {found}", flush=True)
    print(f"{len(resolutions)} settings, {outside} outside, median resolution {np.median(resolutions):.2f} of delta")
    sys.exit(outside > 0)


if __name__ == "__main__":
    main()
