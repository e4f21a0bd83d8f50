"""The sum of clipped gradients between the calls that make it.

The mistake: a script writes to the sum after clipping, and so multiplies the sensitivity::

    optimizer.clip_and_accumulate()
    for p in model.parameters():
        p.summed_grad *= 2.0
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpspec.contract.rules import MADE_TWICE
from dpspec_recording.folder.events import UNSEEN
from dpspec_recording.folder.merging import Count, join_by
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Statement

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun

#: The share of a sum that an edit changes at least, if the comparison of all its bits finds it.
_FOUND = 1e-4


@dataclass(frozen=True, kw_only=True)
class SumFacts:
    """Clipped sums that were compared before the noise, and those that changed after clipping."""

    compared: Count = field(metadata=join_by(sum))
    edited: Count = field(metadata=join_by(sum))


EDITED = Fault(
    name="edited-sum",
    condition="clipping",
    title="changes of the summed gradient outside of clipping",
    observed="measured",
    source=MADE_TWICE,
    advice="Remove what writes to p.summed_grad: a factor on it is a factor on the sensitivity.",
)


class Sums(Observer[SumFacts]):
    """Compares the sums of audited steps between calls: code outside of clipping may not change them."""

    name, kind, needs = "sums", SumFacts | None, "before_sum"

    def start(self, training: Training) -> None:
        """Keep the parameters whose sums Opacus' optimizer makes."""
        from dpspec_recording.fingerprints import Tally, TensorSnapshot

        self._training, self._parameters = training, list(training.private_optimizer.params)
        self._left, self._changed, self._compared = TensorSnapshot(), Tally(), 0

    def before_sum(self) -> None:
        """The first physical batch of a step finds no sum, a later one the sum that the one before left."""
        training = self._training
        if self._left.exists:
            self._compare()
        elif training.audits.audited and training.step.rows == UNSEEN and any(s is not None for s in self._sums()):
            self._compared += 1
            self._changed.add(True)

    def after_sum(self) -> None:
        """Keep the sum."""
        self._left.keep(self._sums())

    def before_noise(self) -> None:
        """The noise finds the sum that the last physical batch left."""
        if self._left.exists:
            self._compare()
        self._left.forget()

    def _compare(self) -> None:
        self._compared += 1
        self._changed.add(self._left.differ(self._sums()))

    def _sums(self) -> list[Any]:
        from dpspec_recording.sums.clipped_sums import summed_gradients

        return summed_gradients(self._training.private_optimizer, self._parameters)

    def facts(self) -> SumFacts:
        """The comparisons until now."""
        return SumFacts(compared=self._compared, edited=int(self._changed))

    @staticmethod
    def judge(facts: SumFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """No sum may change."""
        if facts is not None and facts.compared and run.audits is not None:
            yield EDITED.audited(run.audits, facts.edited, f"compared {facts.compared} times, ", _FOUND)
