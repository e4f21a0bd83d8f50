"""Whether a custom loop clips a sum or a mean of its records, and reports its norm for each record.

The mistake: a mean over the batch is clipped, which bounds no single record::

    mean = gradients.mean(0)
    mean *= min(1.0, clip_norm / mean.norm())
"""

from dataclasses import dataclass

from dpspec.contract.rules import Rule, RuleRun, RuleStep, TrainingRule
from dpspec.json_records import Count

RULE = Rule(
    name="equal-norms",
    summary="in almost every batch all contributions have one norm, which differs between batches: a sum or a mean of "
    "the records was clipped as one",
    why="Clipping a mean over the batch bounds no record: with the clip norm's noise, a record in a small batch moves "
    "the release by up to two clip norms.",
    fix="Compute the gradient of each record by itself (vmap, microbatches of one record), clip it, and add them up.",
    code="dpspec_recording.rules.equal_norms:EqualNorms",
)

#: The fewest batches, the share with equal norms, the fewest different norms, and their relative difference. A loop
#: that normalizes each gradient has one norm in all batches, so the norms of batches must differ.
_BATCHES, _SHARE, _DIFFERENT, _APART = 20, 0.9, 10, 1e-4


@dataclass(frozen=True, kw_only=True)
class EqualNormsFacts:
    """Batches with norms below the clip norm, those with equal norms, and the number of different ones."""

    batches: Count
    equal: Count
    different: Count


class EqualNorms(TrainingRule[EqualNormsFacts]):
    """Norms at the clip norm do not count: they are equal if all gradients of a batch are longer."""

    kind = EqualNormsFacts

    def __init__(self) -> None:
        self._batches = self._equal = 0
        self._norms: set[float] = set()

    def after_step(self, step: RuleStep) -> None:
        if step.norms is None or len(step.norms) < 3 or not step.clip_norm > 0.0:
            return
        low, high = float(step.norms.min()), float(step.norms.max())
        if low >= (1.0 - _APART) * step.clip_norm or not high > 0.0:  # clipped, or without gradients
            return
        self._batches += 1
        if high - low <= 1e-2 * _APART * high:
            self._equal += 1
            self._norms.add(round(high / step.clip_norm / _APART))

    def facts(self) -> EqualNormsFacts:
        return EqualNormsFacts(batches=self._batches, equal=self._equal, different=len(self._norms))

    @staticmethod
    def caution(facts: EqualNormsFacts, run: RuleRun) -> str:
        if facts.batches < _BATCHES or facts.equal < _SHARE * facts.batches or facts.different < _DIFFERENT:
            return ""
        return f"In {facts.equal} of {facts.batches} batches all contributions have one norm, below the clip norm."
