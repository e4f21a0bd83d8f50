"""Ghost clipping: the gradients that the second backward pass of Opacus' criterion leaves.

The mistakes: a term of the loss is not the criterion's, so that its gradient is not clipped; or a layer gets its norm
from a formula that is not the norm of the gradient that autograd sums::

    loss = criterion(model(x), y)              # of make_private
    (loss + 0.1 * penalty(model, x)).backward()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpspec_recording.folder.merging import Count, Names, join_by, union
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.observers.sensitivity.replays import why_not_replayed
from dpspec_recording.outcomes.conditions import PER_RECORD_CLIPPING, stated
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Issue, Statement, asked, doubted

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun, Terms


@dataclass(frozen=True, kw_only=True)
class GhostFacts:
    """Batches of ghost clipping. unobserved: whose second pass was not; changed: with other gradients than it left.

    unverified: the layers whose norms may be too small.
    """

    batches: Count = field(metadata=join_by(sum))
    unobserved: Count = field(metadata=join_by(sum))
    changed: Count = field(metadata=join_by(sum))
    unverified: Names = field(metadata=join_by(union))


ADDED = Fault(
    name="added-gradients",
    condition="clipping",
    title="batches with other gradients than the second backward pass left",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/692",
    advice="Give every term of the loss to make_private's criterion, and change no gradient before the step.",
)


class Ghost(Observer[GhostFacts]):
    """Notes what :class:`dpspec_recording.sums.ghost_sums.GhostSums` observes of both backward passes."""

    name, kind = "ghost", GhostFacts | None

    def start(self, training: Training) -> None:
        """Keep the observer of the sums; of other clipping it has no passes."""
        self._passes: Any = None if training.clipped is None else training.clipped.passes

    def facts(self) -> GhostFacts | None:
        """None for other clipping."""
        passes = self._passes
        if passes is None:
            return None
        return GhostFacts(
            batches=passes.batches,
            unobserved=passes.unobserved,
            changed=int(passes.changed),
            unverified=tuple(passes.unverified),
        )

    @staticmethod
    def judge(facts: GhostFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """Gradients must come from the second pass, and each norm must be the one of its gradient."""
        if run.header.clipping != "ghost":
            return
        if facts is not None and facts.batches and run.audits is not None:
            yield ADDED.audited(run.audits, facts.changed, f"{facts.batches} batches, ", None)
        reason = _why_unsure(facts, run)
        if reason:
            text = f"; single contributions were not observed, {reason}"
            yield doubted(PER_RECORD_CLIPPING, text)
        else:
            text = (
                "at every batch the gradient norms that ghost clipping computes are right, and its second backward "
                "pass gives the weighted sum of the gradients"
            )
            yield stated(PER_RECORD_CLIPPING, text=text)

    @staticmethod
    def ask(facts: GhostFacts | None, run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """Without replays, a weight that is used twice does not show."""
        if run.header.clipping == "ghost" and why_not_replayed(run):
            yield asked(
                PER_RECORD_CLIPPING,
                "each trained weight is used once, by the layer that holds it: Opacus computes the norms layer by "
                "layer",
            )


def _why_unsure(facts: GhostFacts | None, run: JudgedRun) -> str:
    """Why single contributions may be longer than the clip norm, and the fix; empty if all norms are sure."""
    if facts is not None and facts.unverified:
        count = len(facts.unverified)
        layers = f"{', '.join(facts.unverified[:5])}{f' and {count - 5} more' if count > 5 else ''}"
        return (
            f"and ghost clipping has no sure norm for {layers}: Opacus counts an index that a record of EmbeddingBag "
            "repeats once, pads convolutions with zeros, ignores scale_grad_by_freq, and takes formulas of scripts: "
            "use grad_sample_mode='hooks', which sums the gradients whose norms it computes"
        )
    if run.half_excess:
        return "because ghost clipping computes norms in half precision: compute the loss in float32"
    if facts is not None and run.has_contributions and facts.unobserved == 0:
        return ""
    return (
        "because a loss term outside the criterion of make_private is not clipped: call backward() on the criterion's "
        "loss, in float32"
    )
