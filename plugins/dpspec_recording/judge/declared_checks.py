"""The tests that the recorded steps are those that the phases of a spec declare."""

from collections.abc import Iterator, Sequence

import numpy as np

from dpspec.contract import Phase
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.observers.sampling.batches import OF_RATE
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Issue


def _declared(name: str, condition: str, quantity: str) -> Fault:
    """Another quantity than the phases of the spec declare."""
    return Fault(
        name=name,
        condition=condition,
        title=f"{quantity} that the spec declares",
        observed="reported",
        source="https://github.com/google-deepmind/jax_privacy/issues/288",
        explains=OF_RATE if condition == "sampling" else (),
        advice=f"Train with the {quantity} of the spec, or declare the executed one.",
    )


STEPS = _declared("declared-steps", "steps", "updates")
NOISE = _declared("declared-noise", "noise-scale", "noise multiplier")
RATE = _declared("declared-rate", "sampling", "sampling rate")
CLIP = _declared("declared-clip-norm", "clipping", "clip norm")
RECORDS = _declared("declared-records", "sampling", "records")


def declared_checks(run: RecordedRun, phases: Sequence[Phase], records: int) -> Iterator[Issue]:
    """Compare steps, noise, rate, clip norm and number of records with the phases; none without phases."""
    if not phases:
        return
    steps = sum(phase.steps for phase in phases)
    yield STEPS.compared(steps == run.steps, steps, run.steps, "recorded")
    compared: tuple[tuple[Fault, list[float], Sequence[float | None]], ...] = (
        (NOISE, [phase.noise_multiplier for phase in phases], run.configured_multipliers),
        (RATE, [phase.rate(records) for phase in phases], run.rates),
        (CLIP, [phase.clip_norm for phase in phases], run["clip_norm"].tolist()),
    )
    for fault, values, executed in compared:
        declared = np.repeat(values, [min(phase.steps, run.steps) for phase in phases])[: run.steps]
        yield fault.compared_at_steps(declared, executed[: len(declared)])
    if run.header.records is not None:
        right = run.header.records == records
        yield RECORDS.compared(right, records, run.header.records, "of the loader's data")
