"""Whether a custom loop clips a sum or a mean of records, and reports its norm for each record.

The mistake: a mean over the batch, or over each microbatch of it, is clipped, which bounds no single record::

    means = gradients.unflatten(0, (-1, microbatch)).mean(1)
    means *= (clip_norm / means.norm(dim=1, keepdim=True)).clamp_max(1.0)

Or each record is clipped, but to a limit that follows from the batch, such as the median of its norms. Several records
then have the largest norm of the batch, and it rises and falls from batch to batch, unlike a schedule::

    limit = min(clip_norm, norms.median())

A loop may scale such a limit to the clip norm. Then the largest norm is constant, and the same share of each batch has
it, up to one record. With a constant limit this share is random::

    contributions *= clip_norm / norms.median()
"""

import math
from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleStep, TrainingRule
from dpspec.json_records import Count

RULE = Rule(
    name="equal-norms",
    summary="in almost every batch all contributions, or equally many at a time, have one norm, which differs between "
    "batches: a sum or a mean of the records was clipped as one, or each record to a limit that follows from the batch",
    why="Clipping a mean over the batch or a microbatch bounds no record: with the clip norm's noise, a record moves "
    "the release by up to two clip norms.",
    fix="Compute the gradient of each record by itself (vmap, microbatches of one record), clip it to a constant norm, "
    "and add them up.",
    code="dpspec_recording.rules.equal_norms:EqualNorms",
)

#: The fewest batches, the share with equal norms, the fewest different norms, and their relative difference. A loop
#: that normalizes each gradient has one norm in all batches, so the norms of batches must differ.
_BATCHES, _SHARE, _DIFFERENT, _APART = 20, 0.9, 10, 1e-4

#: The fewest groups of equal norms in a batch. Records of few kinds also have equal gradients, but as many of each kind
#: are in a batch only by chance, and one group may be smaller: the rest of the batch.
_GROUPS = 3

#: The fewest records that share the largest norm of a batch that is clipped to a separate limit, and the fewest batches
#: whose limit is larger, and smaller, than the one before.
_SHARING, _TURNS = 3, 3

#: The fewest batches that a quantile limits, the distance of their numbers of longest norms from the share, in records,
#: and the minimum variance of these numbers with a constant limit. Such a number is within this distance with
#: probability 0.43 at most, so that nine tenths of 30 batches are with probability 1e-7. It varies less if batches have
#: more than this part of all records.
_LIMITED, _WITHIN, _VARIANCE, _PART = 30, 0.75, 4.5, 0.25


@dataclass(frozen=True, kw_only=True)
class EqualNormsFacts:
    """Batches with norms below the clip norm, those with equal norms, and the number of different ones.

    grouped: of the equal ones, batches with several norms, each of equally many records. group: the number of records
    that share a norm, in the last of these batches. limited: batches whose largest norm several records share; larger,
    smaller: the number of these whose largest norm is above, and below, the one in the batch before. mixed: batches in
    which several norms, but not all, are the largest one. even: mixed batches with the same share of these norms.
    """

    batches: Count
    equal: Count
    grouped: Count
    group: Count
    different: Count
    limited: Count = 0
    larger: Count = 0
    smaller: Count = 0
    mixed: Count = 0
    even: Count = 0


class EqualNorms(TrainingRule[EqualNormsFacts]):
    """Norms at the clip norm do not count, unless the loop reports those before clipping.

    Clipped ones are equal if all gradients of a batch are longer.
    """

    kind = EqualNormsFacts

    def __init__(self) -> None:
        self._batches = self._equal = self._grouped = self._group = 0
        self._norms: set[float] = set()
        self._limited = self._larger = self._smaller = 0
        self._limit = math.nan
        self._longest: list[tuple[int, int]] = []

    def after_step(self, step: RuleStep) -> None:
        norms = step.norms if step.unclipped_norms is None else step.unclipped_norms
        if norms is None or len(norms) < 3 or not step.clip_norm > 0.0:
            return
        if step.norms is not None and (longest := _longest(step.norms)) < len(step.norms):
            self._longest.append((longest, len(step.norms)))
        least_clipped = (1.0 - _APART) * step.clip_norm if step.unclipped_norms is None else math.inf
        low, high = float(norms.min()), float(norms.max())
        if low >= least_clipped or not high > 0.0:  # clipped, or without gradients
            return
        self._batches += 1
        group = 0
        if high < least_clipped < math.inf and _are_limited(norms, high):
            self._limited += 1
            self._larger += high > (1.0 + _APART) * self._limit
            self._smaller += high < (1.0 - _APART) * self._limit
            self._limit = high
        if high - low > 1e-2 * _APART * high:
            group = _group_size(norms, least_clipped)
            if not group:
                return
            self._grouped, self._group = self._grouped + 1, group
        self._equal += 1
        self._norms.add(round((low if group else high) / step.clip_norm / _APART))

    def facts(self) -> EqualNormsFacts:
        return EqualNormsFacts(
            batches=self._batches,
            equal=self._equal,
            grouped=self._grouped,
            group=self._group,
            different=len(self._norms),
            limited=self._limited,
            larger=self._larger,
            smaller=self._smaller,
            mixed=sum(longest > 1 for longest, _ in self._longest),
            even=_of_one_share(self._longest),
        )

    @staticmethod
    def caution(facts: EqualNormsFacts, run: RuleRun) -> str:
        drawn = run.drawn_records
        is_part = run.records is not None and drawn is not None and drawn <= _PART * run.records * run.steps
        if facts.mixed >= _LIMITED and facts.even >= _SHARE * facts.mixed and is_part:
            return (
                f"In {facts.even} of {facts.mixed} batches the same share of the contributions, up to one, has the "
                "largest norm: a quantile of the batch's norms limits them, so that each record changes the others."
            )
        if facts.batches < _BATCHES:
            return ""
        if facts.equal < _SHARE * facts.batches or facts.different < _DIFFERENT:
            is_turning = min(facts.larger, facts.smaller) >= _TURNS
            if facts.limited < _SHARE * facts.batches or not is_turning or 2 * facts.grouped > facts.batches:
                return ""
            return (
                f"In {facts.limited} of {facts.batches} batches several contributions share the largest norm, which is "
                "below the clip norm, and rises and falls between batches: does the limit follow from the batch?"
            )
        if 2 * facts.grouped > facts.equal:
            return (
                f"In {facts.equal} of {facts.batches} batches the contributions have norms that {facts.group} records "
                "share each, as microbatches that are clipped as one do."
            )
        return f"In {facts.equal} of {facts.batches} batches all contributions have one norm."


def _longest(norms: Any) -> int:
    """The number of norms that are the largest one."""
    return int((norms >= (1.0 - _APART) * norms.max()).sum())


def _of_one_share(longest: list[tuple[int, int]]) -> int:
    """The number of batches with the same share of longest norms, where a constant limit would let it vary.

    longest: for each batch the number of longest norms, and of all.
    """
    total = sum(size for _, size in longest)
    share = sum(count for count, _ in longest) / total if total else 0.0
    return sum(
        abs(count - share * size) <= _WITHIN and share * (1.0 - share) * size >= _VARIANCE for count, size in longest
    )


def _are_limited(norms: Any, high: float) -> bool:
    """Whether several norms are the largest one, and most others differ, unlike with few kinds of records."""
    import numpy as np

    below = norms[norms < (1.0 - 1e-2 * _APART) * high]
    return bool(len(norms) - len(below) >= _SHARING <= len(below) and 2 * len(np.unique(below)) > len(below))


def _group_size(norms: Any, clipped: float) -> int:
    """The number of records that share each norm below ``clipped``, if it is above 1, and 3 norms or more; else 0."""
    import numpy as np

    values = np.sort(norms[(norms < clipped) & (norms > 0.0)])
    ends = np.flatnonzero(np.diff(values) > 1e-2 * _APART * values[1:])
    sizes = np.diff([-1, *ends, len(values) - 1])
    largest = int(sizes.max(initial=0))
    # numpy.array_split gives groups whose sizes differ by 1; pairs among single records may be copies
    least = largest if largest == 2 else largest - 1
    return largest if largest > 1 and len(sizes) >= _GROUPS and (sizes < least).sum() <= 1 else 0
