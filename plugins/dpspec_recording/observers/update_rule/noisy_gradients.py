"""The noisy gradients between Opacus' noise and the optimizer's update.

The mistake: a gradient of the records joins the noisy sum after its noise::

    optimizer.pre_step()                  # clips, adds noise and divides
    for p in model.parameters():
        p.grad += clean[p]
    optimizer.original_optimizer.step()

At audited steps the gradients must be the noisy sum over the declared divisor. A map of the noisy gradient alone (a
mask, a projection) costs no privacy: :mod:`dpspec_recording.observers.update_rule.gradient_map` judges those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dpspec_recording.folder.merging import Count, join_by
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Statement

if TYPE_CHECKING:
    from torch import Tensor

    from dpspec_recording.observers.judged_run import JudgedRun

_SUM = join_by(sum)


@dataclass(frozen=True, kw_only=True)
class NoisyGradientFacts:
    """Updates whose gradients were compared. changed: with others than the noisy sum over a divisor; scaled: with one
    factor beyond the declared divisor, or after such ones; explained: of these, whose factor a map explains."""

    compared: Count = field(metadata=_SUM)
    changed: Count = field(metadata=_SUM)
    scaled: Count = field(metadata=_SUM)
    explained: Count = field(metadata=_SUM)


MEDDLED = Fault(
    name="other-gradients",
    condition="update",
    title="updates with gradients other than the noisy sum",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/634",
    advice=(
        "Gradients changed between the noise and the update: add nothing of the records there. A map of the "
        "noisy gradient alone (a mask, a projection, weight decay) and a public gradient are allowed: make "
        "them in the inner optimizer, on a copy of p.grad."
    ),
)


class NoisyGradients(Observer[NoisyGradientFacts]):
    """Compares the gradients of audited steps after the noise, before the update and after it."""

    name, kind, needs = "noisy_gradients", NoisyGradientFacts | None, "after_noise"

    def start(self, training: Training) -> None:
        """Keep the gradients of Opacus' optimizer."""
        from dpspec_recording.sums.stepped_gradients import SteppedGradients

        # replays of steps, which start later, give the maps
        def explain(stage: str, values: Sequence[Tensor], gradients: Sequence[Tensor], is_changed: bool) -> bool:
            return training.explain(stage, values, gradients, is_changed)

        def finds_maps() -> bool:
            return training.replayer is not None and bool(training.replayer.finds_maps)

        self._training = training
        self._gradients = SteppedGradients(training.private_optimizer, explain, finds_maps)

    def after_noise(self) -> None:
        """Keep the noisy sum of an audited step."""
        if self._training.audits.audited:
            self._gradients.keep()

    def before_reduction(self) -> None:
        """Compare this rank's part, which is divided before the ranks add up theirs."""
        self._gradients.divide(self._training.step)

    def after_reduction(self) -> None:
        """Keep the sum of all ranks."""
        if self._training.audits.audited:
            self._gradients.keep_divided()

    def before_update(self) -> None:
        """Compare the divided gradients with the noisy sum, and measure the divisor."""
        self._gradients.compare()
        self._gradients.divide(self._training.step)

    def after_update(self) -> None:
        """Compare the gradients with those before the update."""
        self._training.is_gradient_compared = self._gradients.end()

    def facts(self) -> NoisyGradientFacts:
        """The comparisons until now."""
        stepped = self._gradients
        return NoisyGradientFacts(
            compared=stepped.compared, changed=int(stepped.changed), scaled=stepped.scaled, explained=stepped.explained
        )

    @staticmethod
    def judge(facts: NoisyGradientFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """No update may have other gradients, unless they are asked about as a map of the noisy ones."""
        if facts is not None and run.internal is not None and run.audits is not None:
            changed = 0 if run.mapped_steps else facts.changed
            yield MEDDLED.audited(run.audits, changed, "", run.audits.limit)
