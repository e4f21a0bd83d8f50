"""A mechanism of a plugin's author: votes of teachers with Gaussian noise. ``wrong_votes`` has wrong variants."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

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
    import numpy as np
    from scipy.optimize import brentq
    from scipy.stats import norm

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

    #: The noise that is drawn, and the change of a record, in units of the declared ones.
    drawn = 1.0
    moved = 1.0

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return math.sqrt(2.0) * group_size / float(spec.mechanism["sigma"])

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return gaussian_epsilon(self.mu(spec, group_size), delta)

    def noise_numbers(self, spec: dps.Spec, facts: dps.Facts) -> int:
        return 2

    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return context.seed(index, "noise", str(group_size))

    def normals(self, context: dps.Context, index: int, group_size: int, count: int) -> Any:
        import numpy as np

        return np.random.default_rng(self.seed(context, index, group_size)).normal(size=(count, 2))

    def scale(self, sigma: float) -> float:
        return self.drawn * sigma

    def scores(self, released: Any, counts: Any, change: Any, sigma: float, coins: Any) -> Any:
        return ((released - counts - change / 2) @ change) / sigma**2

    def reported(self, noise: Any, context: dps.Context) -> Any:
        return noise.ravel()

    def release(
        self, inputs: Mapping[str, Any], context: dps.Context, index: int, group_size: int, coins: Any
    ) -> kit.Releases:
        import numpy as np

        sigma = float(inputs["mechanism"]["sigma"])
        counts = np.bincount(context.data.train_y, minlength=2)[:2]
        noise = self.normals(context, index, group_size, len(coins))
        change = group_size * np.array([-1.0, 1.0])
        released = counts + self.moved * coins[:, None] * change + self.scale(sigma) * noise
        scores = self.scores(released, counts, change, sigma, coins)
        return kit.Releases(scores=scores, noise=self.reported(noise, context), values=released)
