"""Checks of a training in several processes or jobs: whether ranks and parts made one training.

Ranks draw one Poisson sample together, and one adds noise; each part of a resumed training starts with a saved state.
"""

from collections.abc import Iterator, Sequence

from dpspec.contract import Assumption, Check
from dpspec.engine.recorded.channels import stated
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.recording.folder.joined_folder import SUMMED
from dpspec.recording.folder.resumed_folder import ResumedFolder
from dpspec.stats import gaussian_noise
from dpspec.stats.conformance.measurement import Observed, exactly

SHORTER = "ranks with fewer steps than others"
OTHER_SETUP = "facts and options that differ between ranks"
ONE_NOISE = "steps whose noise is not added by one rank, always the same"
EACH_NOISE = "steps at which a rank adds no noise to its rows"
ALIKE = "noise of two ranks' rows along each other"
UNEQUAL = "steps with different gradients or parameters on the ranks"
NO_SUM = "steps whose gradients are not the sum of all ranks'"
SHARED = "records drawn by several ranks at one step"
SEEDS = "steps at which two ranks draw from one seed"
FOREIGN = "steps with records from outside of a rank's share"
#: The largest number of parts or ranks that doubts name one by one.
_MOST_SUBJECTS = 2

RECOUNTED = "parts whose accountant does not continue the earlier history"

#: A likely cause of a rejected test and its fix, by the beginning of the test's name.
ADVICE = {
    SHORTER: "All ranks must make all steps, an empty batch included.",
    OTHER_SETUP: "Give all ranks the same model, optimizer, loader and arguments of make_private.",
    ONE_NOISE: "Leave add_noise and the attribute rank of Opacus' distributed optimizer unchanged.",
    EACH_NOISE: "Leave add_noise unchanged, and give all ranks the same noise multiplier.",
    ALIKE: "Draw noise of the whole shape on each rank, or seed each rank differently.",
    UNEQUAL: "Call step() of make_private's optimizer on every rank, for every batch.",
    NO_SUM: "Leave reduce_gradients unchanged, and let exactly the ranks of the run take part in it. For FSDP2 with "
    "loss_reduction='sum', call set_gradient_divide_factor(1.0).",
    SHARED: "Give make_private a model in a wrapper for several processes, so that its loader divides the records.",
    SEEDS: "Seed each rank differently, for example by torch.manual_seed(seed + rank): ranks draw together otherwise.",
    FOREIGN: "All ranks must draw from the loader of make_private, with the same shuffle_seed and epoch.",
    RECOUNTED: "An accountant that starts again gives the epsilon of its last part alone: keep one engine over all "
    "rounds, or save the accountant's state with the checkpoint, and load it before dpspec.record begins.",
}


def none_found(
    assumption: str, test: str, observed: Observed, count: float, note: str = "", detectable: float | None = 0.0
) -> Check:
    """The check that a count is zero."""
    return exactly(test, count == 0, 0, count, detectable).check(assumption, observed, note)


def rank_checks(run: RecordedRun) -> Iterator[Check]:
    comparison, world = run.folder.comparison, run.header.world
    if comparison is None:
        return
    short = [
        f"rank {rank}: {n} of {comparison.longest}"
        for rank, n in enumerate(comparison.lengths)
        if n < comparison.longest
    ]
    yield none_found("steps", SHORTER, "reported", len(short), ", ".join(short[:5]) or f"{world} ranks")
    names = ", ".join(list(comparison.other)[:5]) or "equal on all ranks"
    yield none_found("update", OTHER_SETUP, "reported", len(comparison.other), names, None)
    sharded = bool(run.header.shards)
    test = EACH_NOISE if sharded else ONE_NOISE
    yield none_found("noise-scale", test, "reported", comparison.noise, f"of {run.steps} steps", None)
    if not comparison.compared:
        return
    yield none_found(
        "update", UNEQUAL, "measured", comparison.unequal, f"of {comparison.compared} steps, by digests", None
    )
    if comparison.parallel[1]:
        measured = gaussian_noise.spread(*comparison.parallel, ALIKE)
        yield measured.check(
            "independent-noise", "reported", f"at {comparison.compared} steps, along common directions"
        )
    note = f"of {comparison.compared} steps, along random directions"
    yield none_found("update", NO_SUM, "measured", comparison.summed, note, SUMMED)
    yield none_found("sampling", SHARED, "reported", comparison.shared, "in total", None)
    if run.header.is_poisson:
        yield none_found("sampling", SEEDS, "reported", comparison.seeds, note, None)
        yield none_found("sampling", FOREIGN, "reported", comparison.foreign, note, None)


def resume_checks(run: RecordedRun) -> Iterator[Check]:
    if run.resumed is None or not run.header.accountant:
        return
    named = [f"part {number}" for number, seam in run.resumed.joints if seam.recounted]
    note = ", ".join(named[:5]) or f"{len(run.resumed.parts)} parts"
    yield none_found("accounting", RECOUNTED, "reported", len(named), note, None)


def joined_parts(folder: ResumedFolder) -> Assumption:
    text = f" ({len(folder.parts)} parts)"
    if lost := sum(folder.lengths) - sum(folder.covered):
        text += f"; no model of the {lost} steps after the last checkpoint of a killed part is released"
    subjects: dict[str, list[str]] = {}
    for subject, predicate in (doubt for seam in folder.seams for doubt in seam.doubts):
        subjects.setdefault(predicate, []).append(subject)
    for number in folder.missing:
        predicate = "was killed, and not all that its checkpoint contains was observed"
        subjects.setdefault(predicate, []).append(f"part {number}")
    doubts = [doubt for predicate, named in subjects.items() for doubt in _together(predicate, named)]
    text += f", but {'; '.join(doubts)}" if doubts else ""
    return stated("joined-parts", text, "unchecked" if doubts else "declared")


def _together(predicate: str, subjects: Sequence[str]) -> list[str]:
    """Sentences on each part or rank with a predicate; of many on the first one, and the number of the others."""
    if len(subjects) <= _MOST_SUBJECTS:
        return [f"{subject} {predicate}" for subject in subjects]
    return [f"{subjects[0]} {predicate} (also {len(subjects) - 1} others)"]


def seam_notes(run: RecordedRun) -> Iterator[str]:
    for number, seam in () if run.resumed is None else run.resumed.joints:
        if seam.source is not None and run.resumed is not None:
            part_index, step = seam.source
            part, after = run.resumed.numbers[part_index], run.resumed.lengths[part_index] - step
            steps = f"{after} steps" if after > 1 else "step"
            charged = (
                f"; the {steps} of part {part} after it {'are' if after > 1 else 'is'} charged too" if after else ""
            )
            yield f"Part {number} continues step {step} of part {part}{charged}."
        if seam.fresh:
            yield f"The optimizer of part {number} starts without state, which costs no privacy."
