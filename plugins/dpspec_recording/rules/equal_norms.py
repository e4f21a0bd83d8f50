"""Whether a custom loop clips a sum or a mean of records, and reports its norm for each record.

The mistake: a mean over the batch, or over each microbatch of it, is clipped, which bounds no single record::

    means = gradients.unflatten(0, (-1, microbatch)).mean(1)
    means *= (clip_norm / means.norm(dim=1, keepdim=True)).clamp_max(1.0)
"""

import math
from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleStep, TrainingRule
from dpspec.json_records import Count

RULE = Rule(
    name="equal-norms",
    summary="in almost every batch all contributions, or equally many at a time, have one norm, which differs between "
    "batches: a sum or a mean of the records was clipped as one",
    why="Clipping a mean over the batch or a microbatch bounds no record: with the clip norm's noise, a record moves "
    "the release by up to two clip norms.",
    fix="Compute the gradient of each record by itself (vmap, microbatches of one record), clip it, and add them up.",
    code="dpspec_recording.rules.equal_norms:EqualNorms",
)

#: The fewest batches, the share with equal norms, the fewest different norms, and their relative difference. A loop
#: that normalizes each gradient has one norm in all batches, so the norms of batches must differ.
_BATCHES, _SHARE, _DIFFERENT, _APART = 20, 0.9, 10, 1e-4

#: The fewest groups of equal norms in a batch. Records of few kinds also have equal gradients, but as many of each kind
#: are in a batch only by chance, and one group may be smaller: the rest of the batch.
_GROUPS = 3


@dataclass(frozen=True, kw_only=True)
class EqualNormsFacts:
    """Batches with norms below the clip norm, those with equal norms, and the number of different ones.

    grouped: of the equal ones, batches with several norms, each of equally many records. group: the number of records
    that share a norm, in the last of these batches.
    """

    batches: Count
    equal: Count
    grouped: Count
    group: Count
    different: Count


class EqualNorms(TrainingRule[EqualNormsFacts]):
    """Norms at the clip norm do not count, unless the loop reports those before clipping.

    Clipped ones are equal if all gradients of a batch are longer.
    """

    kind = EqualNormsFacts

    def __init__(self) -> None:
        self._batches = self._equal = self._grouped = self._group = 0
        self._norms: set[float] = set()

    def after_step(self, step: RuleStep) -> None:
        norms = step.norms if step.unclipped_norms is None else step.unclipped_norms
        if norms is None or len(norms) < 3 or not step.clip_norm > 0.0:
            return
        least_clipped = (1.0 - _APART) * step.clip_norm if step.unclipped_norms is None else math.inf
        low, high = float(norms.min()), float(norms.max())
        if low >= least_clipped or not high > 0.0:  # clipped, or without gradients
            return
        self._batches += 1
        group = 0
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
        )

    @staticmethod
    def caution(facts: EqualNormsFacts, run: RuleRun) -> str:
        if facts.batches < _BATCHES or facts.equal < _SHARE * facts.batches or facts.different < _DIFFERENT:
            return ""
        if 2 * facts.grouped > facts.equal:
            return (
                f"In {facts.equal} of {facts.batches} batches the contributions have norms that {facts.group} records "
                "share each, as microbatches that are clipped as one do."
            )
        return f"In {facts.equal} of {facts.batches} batches all contributions have one norm."


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
