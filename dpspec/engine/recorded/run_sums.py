"""From a recorded run to the evidence that the checks of conformance are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dpspec.contract import Phase
from dpspec.engine.recorded.batch_log import BatchLog
from dpspec.engine.recorded.half_precision import norm_excess
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.errors import RecordingError
from dpspec.recording.folder.run_folder import INTERNAL
from dpspec.recording.folder.step_record import InternalStep
from dpspec.stats.conformance import freshness, step_tests
from dpspec.stats.conformance.evidence import (
    LagProducts,
    NoiseSums,
    NormSums,
    ReportedSteps,
    RunEvidence,
    SamplingSums,
)

Array: TypeAlias = np.ndarray[Any, Any]

_HUGE = 1e300

#: A run whose rate changes more often is not tested phase by phase.
MOST_PHASES = 100


@dataclass(frozen=True, kw_only=True)
class InternalSums:
    """What the internal part says, summed up; None for what was not seen.

    largest (T,): the largest norm after clipping, in clip norms. sum_norm (T,): that of the sum. reported (T,): an
    upper bound on the sum of the norms of contributions, in clip norms, from their quartiles. update, outside (T,):
    how far the parameters moved, by the optimizer and without it. sampling: who was drawn, where every step says so.
    most_often: in how many batches a record was at most.
    """

    largest: Array
    sum_norm: Array
    reported: Array
    update: Array
    outside: Array
    sampling: SamplingSums | None
    most_often: int | None


def internal_sums(run: RecordedRun, phases: Sequence[Phase]) -> InternalSums | None:
    """One pass over the internal part; None where it was kept back."""
    if not run.folder.has_internal:
        return None
    records, present, among = run.header.records, run.header.present or 1, len(phases)
    counted = records is not None and among <= MOST_PHASES
    logs = [BatchLog(phase, present, among, places=records) for phase in phases] if counted else []
    ends = np.cumsum([phase.steps for phase in phases])
    columns: list[list[float]] = [[], [], [], []]
    reported = []
    members_seen = bool(logs)
    for step in run.folder.internal():
        for column, name in zip(columns, ("largest", "sum_norm", "update_norm", "outside"), strict=True):
            column.append(float(getattr(step, name)))
        reported.append(_summed_norms(step, run["rows"][step.step - 1]))
        if step.members is None or records is None or not counted:
            members_seen = False
            continue
        where = f"{run.folder.path / INTERNAL}: step {step.step}"
        if len(step.members) and step.members[-1] >= records:
            raise RecordingError(f"{where}: record {step.members[-1]} was drawn, of {records}")
        if len(step.members) != run["drawn"][step.step - 1]:
            raise RecordingError(f"{where}: lists {len(step.members)} records, and the step counts another number")
        logs[int(np.searchsorted(ends, step.step))].add(step.members)
    largest, sum_norm, update, outside = (np.array(column) for column in columns)
    sampling, most = None, None
    if members_seen and run.steps:
        batches = tuple(log.sums() for log in logs)
        sampling = SamplingSums(records=present, repeats=sum(log.repeats for log in logs), batches=batches)
        often = [log.most_often() for log in logs]
        most = None if None in often else sum(one for one in often if one is not None)
    return InternalSums(
        largest=largest,
        sum_norm=sum_norm,
        reported=np.array(reported),
        update=update,
        outside=outside,
        sampling=sampling,
        most_often=most,
    )


def _summed_norms(step: InternalStep, rows: float) -> float:
    """An upper bound on the sum of n norms, in clip norms; NaN if norms or n are unknown.

    The quantile at q interpolates between sorted norms, so norms 0 to floor(q (n - 1)) are at most the quantile.
    """
    if not np.isfinite(rows):
        return np.nan
    counts = [int(q * (rows - 1.0)) + 1 if rows else 0 for q in (0.25, 0.5, 0.75, 1.0)]
    upper = (step.lower, step.middle, step.upper, step.largest)
    return float(sum(count * norm for count, norm in zip(np.diff([0, *counts]).tolist(), upper, strict=True)))


def evidence(run: RecordedRun, internal: InternalSums | None, *, poisson: bool) -> RunEvidence:
    """What is held against the schedule; ``poisson``: whether every step is a Poisson sample, which is tested."""
    seen = {
        "batches": int(np.isfinite(run["drawn"]).sum()),
        "noise": int((run["noise_squares"] > 0.0).sum()),
        "norms": int(np.isfinite(run["rows"]).sum()),
    }
    return RunEvidence(
        told=ReportedSteps(**{name: count for name, count in seen.items() if count}),
        sampling_log=internal.sampling if internal is not None and poisson else None,
        noise_log=_noise(run),
        norm_log=_norms(run, internal),
    )


def scaled_squares(run: RecordedRun) -> Array | None:
    """(T,) the squares of each step's noise in units of the deviation asked for; None where not all were seen."""
    deviation, squares = run["deviation"], run["noise_squares"]
    if not run.steps or not np.all(deviation > 0.0) or np.isnan(squares).any() or not np.isfinite(deviation).all():
        return None
    with np.errstate(over="ignore"):
        found: Array = np.clip(squares / deviation / deviation, 0.0, _HUGE / run.steps)
    return found


def bare_layers(run: RecordedRun) -> list[str]:
    """Names of trained tensors of the model that got no noise at all at some step, where all noise was seen."""
    if scaled_squares(run) is None:
        return []
    return [name for (name, size), least in zip(run.header.layers, run.quietest, strict=True) if size and least == 0.0]


def _noise(run: RecordedRun) -> NoiseSums | None:
    scaled, count = scaled_squares(run), run.header.parameters
    if scaled is None or count < 1 or run.header.width < 1:
        return None
    rows = run.rows
    steps, width = rows.shape
    products = freshness.products(rows)
    lag = freshness.worst_lag(products.lags)
    return NoiseSums(
        statistic=float(scaled.sum()),
        degrees=count * len(scaled),
        each=step_tests.summary(scaled, count=count),
        steps=steps,
        width=width,
        lag=LagProducts(lag=lag, products=float(products.lags[lag])),
        pair=products.largest,
    )


def _norms(run: RecordedRun, internal: InternalSums | None) -> NormSums | None:
    if internal is None or not np.isfinite(internal.largest).any():
        return None
    largest = float(np.clip(np.nan_to_num(internal.largest, nan=0.0, posinf=_HUGE).max(), 0.0, _HUGE))
    if np.isposinf(internal.largest).any():
        largest = _HUGE
    largest /= 1.0 + norm_excess(run)
    missing, astray = uncounted(run)
    return NormSums(largest=largest, missing=missing, astray=astray)


def uncounted(run: RecordedRun) -> tuple[int | None, int | None]:
    """How many more records were drawn than contributions added up, and at how many steps they differ."""
    both = np.isfinite(run["drawn"]) & np.isfinite(run["rows"])
    if not both.any():
        return None, None
    apart = (run["drawn"] - run["rows"])[both]
    return int(apart.sum()), int((apart != 0).sum())
