"""Assumptions about the contribution of each record, and about the end of the recording, with what supports them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dpspec.contract import Assumption
from dpspec.engine.recorded.channels.gradient_checks import counts, numbers
from dpspec.engine.recorded.recorded_run import RecordedRun

#: The assumption of runs in which no single contribution was observed, such as those with ghost clipping.
PER_RECORD_CLIPPING = "per-record-clipping"

#: A slope shows a wrong reduction if it is this close to -1 or 1, or three standard errors more, and this many
#: standard errors from 0.
_CLOSE, _ERRORS = 0.25, 5.0

_CLASS = re.compile(r"[A-Za-z_][\w.]{0,99}", re.ASCII)


def contribution_assumptions(run: RecordedRun, group_size: int) -> Iterator[Assumption]:
    """group_size: the number of records that the claim covers."""
    text = (
        "each index of the dataset is one record, and nothing that the gradients depend on is computed from other "
        "records: dataset, transforms, labels, collate function, constants of the loss"
    )
    yield Assumption(name="one-record", status="declared", text=text)
    yield _unmixed_batches(run)
    repeats = run.header.repeats
    if repeats > 1:
        known = group_size >= repeats
        text = f"a record occurs {repeats} times in the dataset of the loader"
        text += "; the claim covers groups of that size" if known else f": use --group-size {repeats}"
        yield Assumption(name="repeated-records", status="reported" if known else "false", text=text)
    mismatch = reduction_mismatch(run)
    if mismatch:
        yield Assumption(name="loss-reduction", status="unchecked", text=mismatch)
    text = (
        "every pass that computes gradients calls the recorded model itself in training mode: the recorder does not "
        "compare parameters in a pass that calls the layers one by one or sets the model to evaluation mode"
    )
    yield Assumption(name="observed-passes", status="declared", text=text)
    passes = counts(run, "passes", 4)
    if run.header.source == "opacus" and passes is not None and passes[3]:
        text = f"no pass that computes gradients was observed at {passes[3]} of {passes[2]} steps"
        yield Assumption(name="gradient-parameters", status="unchecked", text=text)
    error = run.said("error")
    if isinstance(error, str) and error:
        named = f" ({error})" if _CLASS.fullmatch(error) else ""
        text = f"an exception{named} ended the block after {run.steps} steps"
        text += ": the recording does not show how the script continued"
        yield Assumption(name="ended-by-error", status="unchecked", text=text)


def _unmixed_batches(run: RecordedRun) -> Assumption:
    text = "no layer or loss mixes the records of a batch, at any step"
    failure, found = run.said("probe_failure"), numbers(run, "probe", 6)
    if isinstance(failure, str) and failure:
        text += f"; the sensitivity probe failed: {failure[:200]}"
    elif found is not None and found[0] >= 1.0:
        probed, removed, _, _, confirmed, _ = found
        text += f"; the sensitivity probe removed {removed:.0f} records at {probed:.0f} steps"
        if removed >= 1.0 and confirmed == probed >= run.steps:
            return Assumption(name="unmixed-batches", status="reported", text=text)
        text += f", and its loss gives the gradients of the training at {confirmed:.0f} of these steps"
    return Assumption(name="unmixed-batches", status="declared", text=text)


def clipping_assumption(run: RecordedRun, *, observed: bool) -> Iterator[Assumption]:
    """Yield the assumption that contributions are clipped, unless each of them was ``observed`` and so checked."""
    if observed:
        return
    text = "no contribution is longer than the clip norm; single contributions were not observed"
    found = numbers(run, "probe", 6)
    if run.header.clipping == "ghost" and found is not None and 1.0 <= found[0] == found[4]:
        text += f", and the sensitivity probe computed the same clipped sums at all {found[0]:.0f} steps that it chose"
        text += f"; the other {max(0.0, run.steps - found[0]):.0f} steps are assumed to clip in the same way"
        yield Assumption(name=PER_RECORD_CLIPPING, status="declared", text=text)
        return
    if run.header.clipping == "ghost":
        text += (
            ", because ghost clipping never forms them, and a loss term outside its criterion is not clipped: give "
            "dpspec.record loss=, for the sensitivity probe"
        )
    yield Assumption(name=PER_RECORD_CLIPPING, status="unchecked", text=text)


def reduction_mismatch(run: RecordedRun) -> str:
    """Why the loss does not seem to have the reduction that Opacus expects, and what to do; "" if nothing shows it."""
    found = numbers(run, "scaling", 3)
    if found is None:
        return ""
    pairs, slope, error = found
    if abs(abs(slope) - 1.0) > _CLOSE + 3.0 * error or abs(slope) < _ERRORS * error or pairs < 8.0:
        return ""
    given, right = ("mean", "sum") if slope < 0.0 else ("sum", "mean")
    return (
        f"per-sample gradients change with the batch size b as b^{slope:.2f} (+- {error:.2f}), as if the loss were a "
        f'{given} over the batch, but loss_reduction="{run.header.reduction}": give the loss reduction="{right}", or '
        f'make_private loss_reduction="{given}"'
    )
