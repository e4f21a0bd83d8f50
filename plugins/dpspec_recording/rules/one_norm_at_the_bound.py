"""Whether gradients are scaled by the largest norm of their batch instead of each by its own.

The mistake: the largest norm of the batch scales all gradients, so that each record changes the others' contributions::

    gradients *= clip_norm / norms.max()
"""

from dataclasses import dataclass

from dpspec.contract.rules import Rule, RuleRun, RuleStep, TrainingRule
from dpspec.json_records import Count

RULE = Rule(
    name="one-norm-at-the-bound",
    summary="in almost every batch exactly one contribution has the clip norm, as if all were scaled by the largest",
    why="A record then changes the scale of all others, so the sum moves by more than the clip norm.",
    fix="Clip each gradient by its own norm: gradient * min(1, clip_norm / norm).",
    code="dpspec_recording.rules.one_norm_at_the_bound:OneNormAtTheBound",
)


#: The fewest batches and their share with one norm at the bound: a correct clipping leaves many norms there or none,
#: and one in few batches. A norm that is scaled to the bound differs from it by a rounding of float32.
_BATCHES, _SHARE, _ROUNDING = 20, 0.9, 1e-5


@dataclass(frozen=True, kw_only=True)
class OneNormFacts:
    """Batches of at least three norms, and those in which exactly one norm is the clip norm."""

    batches: Count
    single: Count


class OneNormAtTheBound(TrainingRule[OneNormFacts]):
    kind = OneNormFacts

    def __init__(self) -> None:
        self._batches = self._single = 0

    def after_step(self, step: RuleStep) -> None:
        import numpy as np

        if step.norms is None or len(step.norms) < 3 or not step.clip_norm > 0.0:
            return
        self._batches += 1
        self._single += int((np.abs(step.norms / step.clip_norm - 1.0) < _ROUNDING).sum() == 1)

    def facts(self) -> OneNormFacts:
        return OneNormFacts(batches=self._batches, single=self._single)

    @staticmethod
    def caution(facts: OneNormFacts, run: RuleRun) -> str:
        if facts.batches < _BATCHES or facts.single < _SHARE * facts.batches:
            return ""
        return f"In {facts.single} of {facts.batches} batches exactly one norm, the largest, equals the clip norm."
