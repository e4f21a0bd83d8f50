"""Checks of a recorded run against the phases that a spec declares."""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from dpspec.contract import Check, Phase
from dpspec.engine.recorded.recorded_run import Array, RecordedRun
from dpspec.stats.conformance.measurement import exactly

#: Relative difference up to which multipliers, rates and norms are equal.
_SAME = 1e-9


def declared_checks(run: RecordedRun, phases: Sequence[Phase], records: int) -> Iterator[Check]:
    """Compare steps, noise, rate, clip norm and number of records with the phases; none without phases."""
    if not phases:
        return
    steps = sum(phase.steps for phase in phases)
    test = "updates that the spec declares"
    yield exactly(test, steps == run.steps, steps, run.steps).check("steps", "reported", "recorded")
    executed = np.array([math.nan if sigma is None else sigma for sigma in run.noise_multipliers])
    declared = _each(phases, [phase.noise_multiplier for phase in phases], run.steps)
    yield _same("noise-scale", "noise multiplier that the spec declares", declared, executed)
    rates = np.array([math.nan if rate is None else rate for rate in run.rates])
    declared = _each(phases, [phase.rate(records) for phase in phases], run.steps)
    yield _same("sampling", "sampling rate that the spec declares", declared, rates)
    declared = _each(phases, [phase.clip_norm for phase in phases], run.steps)
    yield _same("clipping", "clip norm that the spec declares", declared, run["clip_norm"])
    loader_records = run.header.records
    if loader_records is not None:
        test = "records that the spec declares"
        yield exactly(test, loader_records == records, records, loader_records).check(
            "sampling", "reported", "of the loader's data"
        )


def _each(phases: Sequence[Phase], values: Sequence[float], steps: int) -> Array:
    """The value of each phase at each of the first ``steps`` steps."""
    phase_values = (itertools.repeat(value, phase.steps) for phase, value in zip(phases, values, strict=True))
    return np.fromiter(itertools.islice(itertools.chain.from_iterable(phase_values), steps), dtype=np.float64)


def _same(assumption: str, test: str, declared: Array, executed: Array) -> Check:
    """Compare at the first step with a difference; another check counts steps that the spec does not declare."""
    executed = executed[: len(declared)]
    wrong = ~np.isclose(executed, declared, rtol=_SAME, atol=0.0)
    first_wrong = int(np.argmax(wrong)) if wrong.any() else 0
    values = (float(declared[first_wrong]), float(np.nan_to_num(executed[first_wrong], nan=0.0)))
    note = f"first at step {first_wrong + 1}" if wrong.any() else "recorded"
    return exactly(test, not wrong.any(), *values).check(assumption, "reported", note)
