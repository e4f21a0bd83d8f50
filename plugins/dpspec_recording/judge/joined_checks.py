"""Checks of a training in several processes or jobs: whether ranks and parts made one training.

Ranks draw one Poisson sample together, and one adds noise; each part of a resumed training starts with a saved state.
"""

from collections.abc import Iterator, Sequence

from dpspec.contract import Assumption
from dpspec.text import several
from dpspec_recording.folder.part import SUMMED
from dpspec_recording.folder.recording import Recording
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.observers.rules import Rules
from dpspec_recording.observers.sampling.batches import OF_RATE
from dpspec_recording.observers.update_rule import second_optimizer
from dpspec_recording.observers.update_rule.second_optimizer import OtherOptimizers
from dpspec_recording.outcomes.conditions import stated
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Issue
from dpspec_recording.watching.noise_statistics import spread

SHORTER = Fault(
    name="shorter-rank",
    condition="steps",
    title="ranks with fewer steps than others",
    observed="reported",
    source="https://github.com/meta-pytorch/opacus/issues/191",
    advice="All ranks must make all steps, an empty batch included.",
)
OTHER_SETUP = Fault(
    name="other-setup",
    condition="update",
    title="facts and options that differ between ranks",
    observed="reported",
    source="https://github.com/meta-pytorch/opacus/issues/191",
    advice="Give all ranks the same model, optimizer, loader and arguments of make_private.",
)
ONE_NOISE = Fault(
    name="noise-of-one-rank",
    condition="noise-scale",
    title="steps whose noise is not added by one rank, always the same",
    observed="reported",
    source="https://github.com/meta-pytorch/opacus/issues/191",
    advice="Leave add_noise and the attribute rank of Opacus' distributed optimizer unchanged.",
)
EACH_NOISE = Fault(
    name="noise-of-each-rank",
    condition="noise-scale",
    title="steps at which a rank adds no noise to its rows",
    observed="reported",
    source="https://github.com/meta-pytorch/opacus/issues/191",
    advice="Leave add_noise unchanged, and give all ranks the same noise multiplier.",
)
ALIKE = Fault(
    name="noise-of-two-ranks",
    condition="independent-noise",
    title="noise of two ranks' rows along each other",
    observed="reported",
    source="https://github.com/fedbiomed/fedbiomed/pull/794",
    advice="Draw noise of the whole shape on each rank, or seed each rank differently.",
)
UNEQUAL = Fault(
    name="unequal-ranks",
    condition="update",
    title="steps with different gradients or parameters on the ranks",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/191",
    advice="Call step() of make_private's optimizer on every rank, for every batch.",
)
NO_SUM = Fault(
    name="no-sum-of-ranks",
    condition="update",
    title="steps whose gradients are not the sum of all ranks'",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/191",
    advice=(
        "Leave reduce_gradients unchanged, and let exactly the ranks of the run take part in it. For FSDP2 "
        "with loss_reduction='sum', call set_gradient_divide_factor(1.0)."
    ),
)
SHARED = Fault(
    name="shared-records",
    condition="sampling",
    title="records drawn by several ranks at one step",
    observed="reported",
    source="https://github.com/meta-pytorch/opacus/pull/745",
    advice=("Give make_private a model in a wrapper for several processes, so that its loader divides the records."),
    explains=OF_RATE,
)
SEEDS = Fault(
    name="equal-seeds",
    condition="sampling",
    title="steps at which two ranks draw from one seed",
    observed="reported",
    source="https://github.com/fedbiomed/fedbiomed/pull/794",
    advice=(
        "Seed each rank differently, for example by torch.manual_seed(seed + rank): ranks draw together otherwise."
    ),
    explains=OF_RATE,
)
FOREIGN = Fault(
    name="foreign-records",
    condition="sampling",
    title="steps with records from outside of a rank's share",
    observed="reported",
    source="https://github.com/meta-pytorch/opacus/pull/745",
    advice="All ranks must draw from the loader of make_private, with the same shuffle_seed and epoch.",
    explains=OF_RATE,
)
RECOUNTED = Fault(
    name="recounted-part",
    condition="accounting",
    title="parts whose accountant does not continue the earlier history",
    observed="reported",
    source="https://github.com/adap/flower/tree/main/examples/opacus",
    advice=(
        "An accountant that starts again gives the epsilon of its last part alone: keep one engine over all "
        "rounds, or save the accountant's state with the checkpoint, and load it before dpspec.record "
        "begins."
    ),
)

#: The largest number of parts or ranks that doubts name one by one.
_MOST_SUBJECTS = 2


def rank_checks(run: RecordedRun) -> Iterator[Issue]:
    comparison, world = run.folder.comparison, run.header.world
    if comparison is None:
        return
    short = [
        f"rank {rank}: {n} of {comparison.longest}"
        for rank, n in enumerate(comparison.lengths)
        if n < comparison.longest
    ]
    yield SHORTER.none_found(len(short), ", ".join(short[:5]) or f"{world} ranks")
    names = ", ".join(list(comparison.other)[:5]) or "equal on all ranks"
    yield OTHER_SETUP.none_found(len(comparison.other), names, None)
    noise = EACH_NOISE if run.header.shards else ONE_NOISE
    yield noise.none_found(comparison.noise, f"of {run.steps} steps", None)
    if not comparison.compared:
        return
    yield UNEQUAL.none_found(comparison.unequal, f"of {comparison.compared} steps, by digests", None)
    if comparison.parallel[1]:
        measured = spread(*comparison.parallel, ALIKE.title)
        yield ALIKE.measured(measured, f"at {comparison.compared} steps, along common directions")
    note = f"of {comparison.compared} steps, along random directions"
    yield NO_SUM.none_found(comparison.summed, note, SUMMED)
    yield SHARED.none_found(comparison.shared, "in total", None)
    if run.header.is_poisson:
        yield SEEDS.none_found(comparison.seeds, note, None)
        yield FOREIGN.none_found(comparison.foreign, note, None)


def resume_checks(run: RecordedRun) -> Iterator[Issue]:
    if run.resumed is None or not run.header.accountant:
        return
    named = [f"part {number}" for number, seam in run.resumed.joints if seam.recounted]
    note = ", ".join(named[:5]) or f"{len(run.resumed.parts)} parts"
    yield RECOUNTED.none_found(len(named), note, None)


def joined_parts(folder: Recording) -> Assumption:
    """The statement on all parts, with the differences between the end of a part and the next start."""
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
    script = folder.script
    if doubts and script is not None:
        doubts += dict.fromkeys(
            f"between parts the script made {_steps_of(counted.steps, counted.optimizer, True)} without privacy"
            for counted in script.between
            if counted.on_model
        )
    text += f", but {'; '.join(doubts)}" if doubts else ""
    return stated("joined-parts", text, "unchecked" if doubts else "declared")


def server_weights(run: RecordedRun) -> Iterator[Assumption]:
    """The statement on a server, if parts start with its weights.

    Steps without privacy leave it open: the server may have the tensors that they changed.
    """
    received = [] if run.resumed is None else received_parts(run.resumed)
    if not received:
        return
    script, rules = run.folder.script, run.fact(Rules)
    stepped = (
        []
        if script is None
        else [_steps_of(counted.steps, counted.optimizer, counted.on_model) for counted in script.between]
    )
    for facts in () if rules is None else rules.of(second_optimizer.RULE, OtherOptimizers):
        optimizers = () if facts is None else facts.optimizers
        stepped += [_steps_of(counted.steps, counted.name, counted.inside > 0) for counted in optimizers]
    text = f" ({several(len(received), 'part')})"
    if not stepped:
        yield stated("server-weights", text)
        return
    named = ", ".join(dict.fromkeys(stepped[:_MOST_SUBJECTS]))
    doubt = f", but the script also made steps without privacy: {named}. Did they read these records"
    yield stated("server-weights", f"{text}{doubt}?", "unchecked")


def received_parts(folder: Recording) -> list[int]:
    """The numbers of the parts that start with a server's weights."""
    return [number for number, seam in folder.joints if seam.is_received]


def _steps_of(steps: int, optimizer: str, on_model: bool) -> str:
    return f"{several(steps, 'step')} of {optimizer}{' on tensors of the model' if on_model else ''}"


def _together(predicate: str, subjects: Sequence[str]) -> list[str]:
    """Sentences on each part or rank with a predicate; of many on the first one, and the number of the others."""
    if len(subjects) <= _MOST_SUBJECTS:
        return [f"{subject} {predicate}" for subject in subjects]
    return [f"{subjects[0]} {predicate} (also {len(subjects) - 1} others)"]


def seam_notes(run: RecordedRun) -> Iterator[str]:
    received = [] if run.resumed is None else received_parts(run.resumed)
    if received:
        yield f"Weights that a server sent are the start of {several(len(received), 'part')}."
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
