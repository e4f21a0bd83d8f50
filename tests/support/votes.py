"""A mechanism of a plugin's author: votes of teachers with Gaussian noise, and wrong variants of it."""

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

import dpspec.contract as dps
from dpspec import kit

EXAMPLE = """\
dpspec: 1
name: votes-example
mechanism: {kind: votes, sigma: 2.0}
data: {kind: synthetic, records: 60, classes: 2, seed: 1}
threat_model: {group_size: [1, 2]}
claims:
  - {id: proved, kind: approx-dp, epsilon: 9.0, delta: 1e-5}
audit: {method: many-run, runs: 2, releases: 1000, seed: 1}
"""


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism with effect ``mu`` at ``delta`` (Balle and Wang 2018)."""

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - delta)

    if delta == 0.0:
        return math.inf
    return 0.0 if excess(0.0) <= 0.0 else float(brentq(excess, 0.0, 4.0 * mu * (mu + 8.0)))


class Votes(kit.AttackedMechanism):
    """Two counts of votes, each with Gaussian noise; a record changes both by one (as a changed vote)."""

    kind = "votes"
    schema: ClassVar = {"sigma": kit.number("Standard deviation of the noise of each count.", least=1e-2, most=1e6)}
    example = EXAMPLE
    source = "Papernot et al. 2018; Balle and Wang 2018"
    noise = "gaussian"

    #: The noise that is drawn, in units of the declared one.
    drawn = 1.0

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return math.sqrt(2.0) * group_size / float(spec.mechanism["sigma"])

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return gaussian_epsilon(self.mu(spec, group_size), delta)

    def noise_numbers(self, spec: dps.Spec, facts: dps.Facts) -> int:
        return 2

    def generator(self, context: dps.Context, index: int, group_size: int) -> np.random.Generator:
        return np.random.default_rng(context.seed(index, "noise", str(group_size)))

    def release(
        self, inputs: dps.FrozenMap, context: dps.Context, index: int, group_size: int, coins: Any
    ) -> kit.Releases:
        sigma = self.drawn * float(inputs["mechanism"]["sigma"])
        counts = np.bincount(context.data.train_y, minlength=2)[:2]
        noise = self.generator(context, index, group_size).normal(size=(len(coins), 2))
        change = group_size * np.array([-1.0, 1.0])
        released = counts + coins[:, None] * change + sigma * noise
        scores = ((released - counts - change / 2) @ change) / sigma**2
        return kit.Releases(scores=scores, noise=noise.ravel(), values=released)


class HalvedMu(Votes):
    """Claims half of the effect."""

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return super().mu(spec, group_size) / 2.0


def offered(audit: type[Votes]) -> Iterable[dps.Mechanism]:
    yield audit.offer()
