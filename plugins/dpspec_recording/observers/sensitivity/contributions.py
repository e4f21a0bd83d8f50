"""The contributions of a step: their number, their lengths, the length of their sum, and their precision.

The mistakes: a record has two rows of gradients, or none; a sum is longer than its reported contributions; or norms
are computed in half precision, whose rounding lets a contribution exceed the clip norm::

    for view in (x, flipped(x)):                 # two rows of each record
        criterion(model(view), y).backward()
    optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpspec.stats.conformance.measurement import CLIP_TOLERANCE
from dpspec.text import several
from dpspec_recording.folder.merging import join_by, word
from dpspec_recording.observers.loop_arguments import omitted_arguments
from dpspec_recording.observers.observer import Observer, Training, emits
from dpspec_recording.outcomes.conditions import PER_RECORD_CLIPPING
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Statement, doubted

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun


@dataclass(frozen=True, kw_only=True)
class ContributionFacts:
    """The half precisions in which Opacus computed norms and sums; empty for full precision."""

    norm_type: str = field(metadata=join_by(word))
    sum_type: str = field(metadata=join_by(word))


CONTRIBUTIONS = Fault(
    name="other-contributions",
    condition="clipping",
    title="steps with more or fewer contributions than drawn records",
    observed="reported",
    source="https://github.com/tensorflow/privacy/issues/81",
    advice=(
        "Report one norm for each record of the batch that run.sampled reported, of a record without "
        "gradient 0: missing or additional contributions have another sensitivity."
    ),
)
UNCLIPPED = Fault(
    name="unclipped-sum",
    condition="clipping",
    title="gradient sums without an observed clipping",
    observed="reported",
    source="package dp-lora 0.1.0",
    advice=(
        "Call backward() on the loss of make_private's criterion only: the gradient of a plain loss enters "
        "the sum without clipping. Create the criterion once, by make_private, and use it for every batch."
    ),
)
LONGER = Fault(
    name="longer-sum",
    condition="clipping",
    title="steps with a sum longer than its clipped contributions allow",
    observed="reported",
    source="https://github.com/illidanlab/dpgan/issues/4",
    advice=(
        "The reported norms do not belong to the contributions of the reported sum: give run.clipped the "
        "norm of each record's whole gradient, over all layers together, after clipping. Clipping each "
        "coordinate or layer to the bound leaves longer gradients, whose norm is up to the root of their "
        "number times longer."
    ),
)
#: The difference of a sum's length, in clip norms, that rounding explains; of a sum that was scaled, in float32.
_ROUNDING, _SCALED = 1e-6, 1e-5

#: The fewest steps with several contributions, the share of these whose sum has the clip norm, and the smallest total
#: of their norms. Contributions that are clipped alone have such a sum by chance only, unless all but one are 0.
_STEPS, _SHARE, _TOGETHER = 20, 0.9, 1.5


class Contributions(Observer[ContributionFacts]):
    """Judges the numbers and norms that each step states, and notes their precision."""

    name, kind = "contributions", ContributionFacts

    def start(self, training: Training) -> None:
        """Keep the observer of Opacus' sums."""
        self._clipped: Any = training.clipped

    def facts(self) -> ContributionFacts:
        """A custom loop states its own norms, in a precision that the recorder does not see."""
        clipped = self._clipped
        norm_type, sum_type = ("", "") if clipped is None else (clipped.norm_type, clipped.sum_type)
        return ContributionFacts(norm_type=norm_type, sum_type=sum_type)

    @staticmethod
    def judge(facts: ContributionFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """One contribution of each drawn record, none longer than the clip norm."""
        internal, (_, steps) = run.internal, run.contribution_gaps
        if not run.has_contributions and steps is not None:
            yield CONTRIBUTIONS.none_found(steps, "", None)
        if internal is not None:
            yield from _of_sums(internal.sum_norm, internal.reported, run)
        if run.header.clipping != "ghost" and not run.has_contributions:
            doubt = "; single contributions were not observed"
            if emits(run.header, "after_report"):
                doubt += ": give their norms after clipping to run.clipped in each step"
            if omitted := omitted_arguments(run, "clip_norm"):
                doubt = f", but norms have no limit, because {omitted}"
            yield doubted(PER_RECORD_CLIPPING, doubt)
        if rows := run.further_rows:
            text = f"; every step has {several(rows, 'row')} beyond its records: if public, --assume public-rows"
            yield doubted("public-rows", text)
        if run.sums_type:
            fix = "use float32, with torch's matmul precision 'highest'"
            yield doubted("precision", f"; sums in {run.sums_type} have no error bound: {fix}")


def _of_sums(lengths: np.ndarray[Any, Any], reported: np.ndarray[Any, Any], run: JudgedRun) -> Iterator[Statement]:
    """Whether sums have clipped contributions alone. lengths: (T,) of the sums; reported: (T,) sums of norms."""
    if run.header.clipping == "ghost":
        unclipped = int((~np.isfinite(run["rows"]) & (np.nan_to_num(lengths, nan=0.0) > 0.0)).sum())
        yield UNCLIPPED.none_found(unclipped, "by the criterion of make_private")
    both = np.isfinite(lengths) & np.isfinite(run["rows"])
    if both.any():
        clipped = run["rows"][both]
        if emits(run.header, "after_report"):  # a sum is at most as long as its contributions together
            clipped = np.fmin(clipped, reported[both])
        limit = clipped * (1.0 + CLIP_TOLERANCE) * (1.0 + run.norm_excess) + _ROUNDING
        yield LONGER.none_found(int((lengths[both] > limit).sum()), "length of the sum", None)
    several_records = both & (np.nan_to_num(run["rows"]) >= 3.0) & (np.nan_to_num(reported) >= _TOGETHER)
    at_bound = int((np.abs(lengths[several_records] - 1.0) < _SCALED).sum())
    if at_bound >= _SHARE * several_records.sum() and at_bound >= _STEPS:
        # A loop may clip each record, and then the sum: that changes no sensitivity, and its sums look the same.
        doubt = (
            f", but {at_bound} of {int(several_records.sum())} sums of several records have the clip norm itself: the "
            "sum was clipped, which alone bounds no record. Clip the gradient of each record, and add them up"
        )
        yield doubted(PER_RECORD_CLIPPING, doubt)
