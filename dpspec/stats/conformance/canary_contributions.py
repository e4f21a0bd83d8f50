"""Does a planted record add what it should? What was seen along the canaries' directions, held against the declared.

A planted record's gradient is clipped to the clip norm and enters a batch with the declared rate, so that the mean of
the projections on the directions of groups of k planted records exceeds that of groups left out by

    k * (sum over steps of the rate) clip norms.

Coins decide which groups are planted, so that whatever else lies along the directions is in both alike. Each sum over
the steps is close to normal (noise, and a binomial number of inclusions), and Welch's t statistic compares the two
means. No variance is taken to be below the declared one: where records are drawn rarely and noise is small, no planted
group may have been drawn at all, and what was seen would then vary far less than it does. What rounding can have
changed of the difference is taken off. Copies of a record and gradients that escape clipping add more; records that are
dropped, or canaries that share a clip norm or never reach the model, add less, which would make the attack blind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scipy import special

from dpspec.contract import Check
from dpspec.stats.conformance.evidence.measured import PlantedSums
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement, abstaining, check

#: Means of fewer groups than this are not compared.
LEAST = 12


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What a run says of the sums along the directions, in clip norms.

    draws: what one planted record adds on average, above 0.
    outside: the variance without planted records. inclusion: what each planted record adds to it.
    rounding: a bound on the length of what rounding changed, over all directions.
    """

    draws: float
    outside: float
    inclusion: float
    rounding: float = 0.0

    @classmethod
    def of(cls, runs: Sequence[PlantedSums]) -> Declared:
        """From the evidence of trials that share their declaration, pooled."""
        return cls(
            draws=float(runs[0].draws),
            outside=sum(run.outside for run in runs) / len(runs),
            inclusion=float(runs[0].inclusion),
            rounding=math.hypot(*(run.rounding for run in runs)),
        )


def checks(runs: Sequence[PlantedSums]) -> Iterator[Check]:
    """One check over all trials and group sizes.

    It abstains where too few groups were planted or left out, and where rounding hides every step.
    """
    note, test = "of a planted record, relative to rate * clip norm", "planted groups against those left out"
    if runs and not any(run.draws > 0.0 for run in runs) and any(run.hidden for run in runs):
        yield abstaining("contribution", test, "measured", note, "rounding hides every step")
        return
    pooled_runs, groups = _pooled(runs)
    if not groups:
        return
    if _too_few(groups):
        reason = f"of some size fewer than {LEAST} groups were planted, or left out"
        yield abstaining("contribution", test, "measured", note, reason)
        return
    yield check("contribution", contribution(groups, Declared.of(pooled_runs)), "measured", note)


def interval(runs: Sequence[PlantedSums], error: float) -> tuple[float, float] | None:
    """What a planted record adds, in units of rate * clip norm: low to high, each missing with ``error`` at most.

    Student's t around the estimate of :func:`contribution`, widened by what rounding can have changed. None where the
    check of it would abstain.
    """
    pooled_runs, groups = _pooled(runs)
    if not groups or _too_few(groups) or not any(run.draws > 0.0 for run in runs):
        return None
    found = _difference(groups, Declared.of(pooled_runs))
    if found is None:
        return None
    reach = -float(special.stdtrit(found.degrees, error)) * found.deviation + found.rounding
    return max(0.0, found.estimate - reach), found.estimate + reach


#: Per group size the moments (count, sum, sum of squares) of the groups left out and of those planted.
_Groups = list[tuple[int, list[float], list[float]]]


def _pooled(runs: Sequence[PlantedSums]) -> tuple[list[PlantedSums], _Groups]:
    """The runs that count, and their moments added up: trials share their declaration, but not the steps that rounding
    hides."""
    most = max((run.draws for run in runs), default=0.0)
    pooled_runs = [run for run in runs if run.draws == most]
    groups: dict[int, list[list[float]]] = {}
    for group in (group for run in pooled_runs for group in run.moments):
        moments = groups.setdefault(group.size, [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])[group.coin]
        for place, value in enumerate((group.count, group.total, group.squares)):
            moments[place] += value
    return pooled_runs, [(size, absent, present) for size, (absent, present) in sorted(groups.items())]


def _too_few(groups: _Groups) -> bool:
    return any(moments[0] < LEAST for _, *both in groups for moments in both)


def contribution(groups: Sequence[tuple[int, Sequence[float], Sequence[float]]], declared: Declared) -> Measurement:
    """Test that every planted record adds 1, in units of ``declared.draws`` clip norms; two-sided.

    groups: per group size k, the moments (count, sum, sum of squares) of the groups left out and of those planted.
    The sizes' differences are weighted by k over their declared variance, which no chance moves; p is by Student's t
    with the fewest degrees of freedom of any mean, which errs upwards. The directions are orthonormal, so that rounding
    changes the weighted sum by at most its own length times that of the weights. ``measured`` is the estimate,
    ``detectable`` in its unit.
    """
    test = "planted groups against those left out, Welch"
    found = _difference(groups, declared)
    if found is None:
        return Measurement(test=test, declared=1.0, measured=1.0, p_value=1.0, detectable=None)
    t = max(0.0, abs(found.estimate - 1.0) - found.rounding) / found.deviation
    threshold = -float(special.stdtrit(found.degrees, 0.5 * LEVEL)) + float(special.ndtri(POWER))
    return Measurement(
        test=test,
        declared=1.0,
        measured=found.estimate,
        p_value=min(1.0, 2.0 * float(special.stdtr(found.degrees, -t))),
        detectable=threshold * found.deviation + found.rounding,
    )


@dataclass(frozen=True, kw_only=True)
class _Difference:
    """An estimate with its standard deviation, by Student's t with ``degrees``; rounding: how far that can move it."""

    estimate: float
    deviation: float
    degrees: float
    rounding: float


def _difference(
    groups: Sequence[tuple[int, Sequence[float], Sequence[float]]], declared: Declared
) -> _Difference | None:
    """What :func:`contribution` tests; None where nothing would show it."""
    weighted = []
    fewest = math.inf
    for size, absent, present in groups:
        least_out, least_in = declared.outside, declared.outside + size * declared.inclusion
        expected = least_out / absent[0] + least_in / present[0]
        if expected <= 0.0:
            continue
        (mean_out, variance_out), (mean_in, variance_in) = _mean(absent, least_out), _mean(present, least_in)
        squared = 1.0 / absent[0] + 1.0 / present[0]
        weighted.append(
            (size, size * declared.draws / expected, mean_in - mean_out, variance_out + variance_in, squared)
        )
        fewest = min(fewest, absent[0] - 1, present[0] - 1)
    unit = sum(weight * size * declared.draws for size, weight, *_ in weighted)
    if unit == 0.0:
        return None
    shares = [(weight / unit, *rest) for _, weight, *rest in weighted]
    return _Difference(
        estimate=sum(share * difference for share, difference, _, _ in shares),
        deviation=math.sqrt(sum(share**2 * variance for share, _, variance, _ in shares)),
        degrees=fewest,
        rounding=declared.rounding * math.sqrt(sum(share**2 * squared for share, _, _, squared in shares)),
    )


def _mean(moments: Sequence[float], least: float) -> tuple[float, float]:
    """The mean, and the variance of it: as estimated, but not below that of numbers of variance ``least``."""
    count, total, squares = moments
    mean = total / count
    spread = max(0.0, squares - count * mean * mean) / (count - 1.0)
    return mean, max(spread, least) / count
