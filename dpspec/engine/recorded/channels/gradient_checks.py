"""Checks of the clipped sum of a recorded run: what changed it, and at which parameters its gradients were computed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dpspec.contract import Check
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.recording.folder.step_record import ROUNDING
from dpspec.stats.conformance.measurement import exact

EDITED = "changes of the summed gradient outside of clipping"
SUMS = "clipped sums that differ from the recomputed sum"
CHANGE = "change of the clipped sum if a record is removed, in clip norms"
INFLUENCE = "change of other contributions if a record is removed, in clip norms"
SCALED = "steps whose per-sample gradients are scaled by the batch size"
REPLACED = "methods of the optimizer that the script replaced"
ELSEWHERE = "gradients computed at other parameters than the last step left"
UPDATES = "updates that differ from the recomputed update"

#: What to do about a rejected check, by the beginning of its name.
ADVICE = {
    EDITED: "Remove what writes to p.summed_grad: a factor on it is a factor on the sensitivity, which no accountant "
    "counts.",
    SUMS: "The sum must consist of the per-sample gradients, each scaled to the clip norm if it is longer. The factor "
    "of a record must not depend on other records.",
    CHANGE: "The sum must change by at most one clip norm if a record is removed: see loss_reduction, and layers or "
    "losses that mix records.",
    INFLUENCE: "A contribution must not depend on other records: replace batch normalization (for example by group "
    "normalization), and losses that compare or weigh the records of a batch.",
    SCALED: "Give the loss the reduction that make_private got as loss_reduction: otherwise every contribution depends "
    "on the number of records in the batch.",
    REPLACED: "Call the methods of Opacus unchanged, or record a plain loop (run.clipped, run.summed, "
    "run.noised, run.stepped).",
    ELSEWHERE: "The accountant counts one noisy gradient per step, at parameters that earlier noisy gradients "
    "determine. Remove what moves the parameters before the forward pass and back (for example SAM).",
    UPDATES: "Code inside step() changed the update. Remove hooks, replaced methods, and options or state of custom "
    "types from the optimizer.",
}

#: A dotted name of a method.
_NAME = re.compile(r"[A-Za-z_][\w.]{0,99}", re.ASCII)


def gradient_checks(run: RecordedRun) -> Iterator[Check]:
    """All checks for which the recording has the numbers."""
    sums = counts(run, "sums", 2)
    if sums is not None and sums[0]:
        note = f"compared {sums[0]} times, by fingerprints"
        yield exact("clipping", EDITED, "measured", sums[1] == 0, 0, sums[1], note, detectable=1e-4)
    again = numbers(run, "recomputed", 4)
    if again is not None and again[1] >= 1.0:
        calls, recomputed, different, limit = again
        note = f"at {recomputed:.0f} of {calls:.0f} calls, chosen at random"
        limit = max(limit, 1e-9)
        yield _sampled("clipping", SUMS, different == 0, 0.0, different, note, limit)
    yield from _probe(run)
    names = run.said("replaced")
    if isinstance(names, list):
        known = [name for name in names if isinstance(name, str) and _NAME.fullmatch(name)]
        note = ", ".join(known[:5]) if known else "no method was replaced"
        yield exact("clipping", REPLACED, "reported", not names, 0, len(names), note, detectable=None)
    passes = counts(run, "passes", 4)
    if passes is not None and passes[0]:
        seen, other, steps, without = passes
        note = f"{seen} passes, at {steps - without} of {steps} steps"
        yield exact("gradient-parameters", ELSEWHERE, "measured", other == 0, 0, other, note)
    updates = counts(run, "updates", 4)
    if updates is not None and updates[1]:
        steps, recomputed, different, _ = updates
        note = f"at {recomputed} of {steps} steps, chosen at random"
        yield _sampled("update-rule", UPDATES, different == 0, 0.0, different, note, 2.0**-22)


def _probe(run: RecordedRun) -> Iterator[Check]:
    found = numbers(run, "probe", 6)
    if found is None or found[0] < 1.0:
        return
    probed, removed, change, influence, _, scaled = found
    note = f"{removed:.0f} records at {probed:.0f} steps, chosen at random"
    if removed >= 1.0:
        yield _sampled("unmixed-batches", CHANGE, change <= 1.0 + ROUNDING, 1.0, change, note, ROUNDING)
        yield _sampled("unmixed-batches", INFLUENCE, influence <= ROUNDING, 0.0, influence, note, ROUNDING)
    yield _sampled("loss-reduction", SCALED, scaled == 0.0, 0.0, scaled, f"{probed:.0f} steps", None)


def _sampled(
    assumption: str, test: str, right: bool, declared: float, seen: float, note: str, detectable: float | None
) -> Check:
    """A property that was computed at random steps: it tests the other steps, and does not verify them."""
    return Check(
        assumption=assumption,
        test=test,
        p_value=1.0 if right else 0.0,
        observed="measured",
        declared=declared,
        measured=seen,
        detectable=detectable,
        note=note,
    )


def counts(run: RecordedRun, name: str, length: int) -> list[int] | None:
    """Counts that the recorder writes at the end; None for anything else."""
    found = run.said(name)
    fits = isinstance(found, list) and len(found) == length and all(type(one) is int and one >= 0 for one in found)
    return found if fits else None


def numbers(run: RecordedRun, name: str, length: int) -> list[float] | None:
    """Numbers up to 1e9 that the recorder writes at the end; None for anything else."""
    found = run.said(name)
    fits = isinstance(found, list) and len(found) == length and all(type(one) in (int, float) for one in found)
    return [float(one) for one in found] if fits and all(abs(one) <= 1e9 for one in found) else None
