"""Poisson batches whose empty ones get a row that is not a record, as by Opacus' ``rand_on_empty``.

``docs/explanation/proofs/filled-batches.md`` has the theorems. If no record is drawn, the row is in the sum. With one
record more, this record may be drawn instead, up to two clip norms away.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.double_mixture import SymmetricMixture
from dpspec.accounting.grid import Pair
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.numerics import inside, positive, whole
from dpspec.accounting.truncated_poisson import Revealed, binomial_tail
from dpspec.renames import old_arguments

#: Relative rounding error charged for the probability of no drawn record: at least 745 units in the last place.
_ROUNDED = 1e-12

#: Relative error of weights, as for ``TruncatedPoisson``: the one of several others is an incomplete beta function.
_WEIGHTS = 4e-9

#: Rarer empty batches cost less than the error of weights, and so do batches that rarely lack a record.
_RARELY = 1e-9

#: A smaller probability counts as this, as underflow may have reduced it.
_SMALLEST = 1e-290


@old_arguments("dpspec.accounting.FilledPoisson")
@dataclass(frozen=True)
class FilledPoisson:
    """One step of Poisson batches; an empty batch gets one row, whose distribution does not depend on the records.

    The row's gradient is clipped like a record's. Bounds hold for groups of 1 to ``group_size`` records and for any
    number of other records from ``n``. Of several pairs, the one with the smallest answer counts.

    >>> from dpspec.accounting import PrivacyLoss
    >>> step = FilledPoisson(group_size=1, rate=2 / 64, n=63, noise_multiplier=1.0)
    >>> round(min(PrivacyLoss.of(pair).compose(200).epsilon(1e-5).upper for pair in step.added()), 1)
    7.2

    Args:
        group_size: the largest size of a group.
        rate: the probability in (0, 1] with which each record enters.
        n: the smallest number of records besides the group.
        noise_multiplier: the noise's standard deviation in clip norms, > 0.

    Raises:
        ValueError: an argument is out of range.
    """

    group_size: int
    rate: float
    n: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        whole("group_size", self.group_size, 1)
        whole("n", self.n, 0)
        inside("rate", self.rate, one=True)
        positive("noise_multiplier", self.noise_multiplier)

    @property
    def unfilled(self) -> float:
        """(1 - rate)^n, rounded up: the probability that none of the other records enters."""
        if self.n == 0:
            return 1.0
        if self.rate == 1.0:
            return 0.0
        return min(1.0, max(_SMALLEST, math.exp(self.n * math.log1p(-self.rate)) * (1.0 + _ROUNDED)))

    def added(self) -> tuple[Pair, ...]:
        """Pairs that each dominate the step if up to ``group_size`` records change (Theorems 61 and 62)."""
        drawn, empty = self._plain, self.unfilled
        revealed = _revealed([(1.0 - empty, drawn), (empty, self._replacing)])
        spread = self._spread()
        return (revealed,) if spread is None else (revealed, spread)

    def zeroed(self) -> tuple[Pair, ...]:
        """Pairs that each dominate the step if up to ``group_size`` records are zeroed (Theorems 63 and 64).

        A zeroed record still enters, and then keeps the row out.
        """
        drawn, empty = self._plain, self.unfilled
        if empty == 0.0:
            return (drawn,)
        chances = zip(drawn.sensitivities.tolist(), drawn.probabilities.tolist(), strict=True)
        # A weight that underflows counts as the smallest one.
        members = [
            (max(_SMALLEST, empty * p), Mixture([j], [1.0], self.noise_multiplier)) for j, p in chances if j > 0.0
        ]
        none = max(0.0, 1.0 - math.fsum(weight for weight, _ in members))
        revealed = _revealed([(none, drawn), *members])
        if self.group_size > 1:
            return (revealed,)
        cases = [(1.0 - empty, drawn), (empty, self._replacing)]
        return revealed, SymmetricMixture(*(case for case in cases if case[0] > 0.0))

    @property
    def _plain(self) -> Mixture:
        return Mixture.poisson(self.group_size, self.rate, self.noise_multiplier)

    @property
    def _replacing(self) -> Mixture:
        """The pair of a batch without other records: j drawn members are up to j + 1 clip norms away from the row."""
        drawn = self._plain
        return Mixture(drawn.sensitivities + np.sign(drawn.sensitivities), drawn.probabilities, self.noise_multiplier)

    def _spread(self) -> Revealed | None:
        """The pair of Theorem 62; None for groups, or if its weights are too small for it to help."""
        n, q = self.n, self.rate
        if self.group_size > 1 or n == 0 or min(self.unfilled, 1.0 - q) < _RARELY:
            return None
        none = math.exp(n * math.log1p(-q))
        ratio = n * q / (1.0 - q)  # of the probabilities that one other record enters, and that none does
        single, several = none * ratio, binomial_tail(n, q, 2)
        if single < _SMALLEST or (n > 1 and several < _SMALLEST):
            return None
        share = ratio / (1.0 + ratio)
        compared = q / (1.0 + ratio)  # q * share / ratio, per batch of one other record
        weights = [none * (1.0 - q * share), min(1.0, single * (1.0 + compared))]
        with_none = self._moved((2.0, q * (1.0 - share) / (1.0 - q * share)))
        with_single = self._moved((1.0, q / (1.0 + compared)), (2.0, compared / (1.0 + compared)))
        cases = [(none, with_none), (single, with_single)]
        if n > 1:
            cases.append((several, self._plain))
            weights.append(several)
        return Revealed(cases, weights, _WEIGHTS)

    def _moved(self, *moves: tuple[float, float]) -> Mixture:
        """N(0, sigma^2), and N(d, sigma^2) for the distance d of each (d, probability); probabilities rounded up."""
        distances, chances = [distance for distance, _ in moves], [chance * (1.0 + _ROUNDED) for _, chance in moves]
        return Mixture([0.0, *distances], [1.0 - math.fsum(chances), *chances], self.noise_multiplier)


def _revealed(cases: list[tuple[float, Mixture]]) -> Mixture | Revealed:
    """The pair that reveals which case of positive weight occurs; the case itself if there is one."""
    possible = [(weight, pair) for weight, pair in cases if weight > 0.0]
    return possible[0][1] if len(possible) == 1 else Revealed(possible)
