"""Conformance evidence of a recorded run, aggregated in one pass over its records."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any, TypeAlias

import numpy as np

from dpspec.contract import Phase
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.errors import RecordingError
from dpspec.recording.folder.run_folder import INTERNAL
from dpspec.recording.folder.step_record import InternalStep
from dpspec.stats.conformance import sampling, step_tests
from dpspec.stats.conformance.batch_checks import BatchSums, Common, SamplingSums
from dpspec.stats.conformance.evidence import NoiseSums, NormSums, ReportedSteps, RunEvidence

Array: TypeAlias = np.ndarray[Any, Any]

#: Maximum number of records whose inclusions are counted one by one: 256 MiB.
MOST_COUNTED = 2**26

#: Maximum total number of records in the batches that are kept for comparison.
_REMEMBERED = 2**23


class BatchLog:
    def __init__(
        self, phase: Phase, records: int, among: int = 1, *, places: int | None = None, lags: Collection[int] = ()
    ) -> None:
        """lags: distances of further batches to compare with."""
        self._records, places = records, places or records
        scheme, rate = phase.sampling.scheme, phase.sampling.rate
        self._rate = rate if scheme == "poisson" and rate is not None else 1.0
        self._random = 0.0 < self._rate < 1.0
        self._sizes: list[int] = []
        self.repeats = 0
        self._counts = np.zeros(places, dtype=np.int32) if places * among <= MOST_COUNTED else None
        self._lags = self._compared(phase.steps, lags)
        self._earlier: deque[Array] = deque(maxlen=max(self._lags, default=1))
        self._overlaps = dict.fromkeys(self._lags, (0, 0))

    def add(self, members: Array, *, lost: bool = False) -> None:
        """lost: a later part may draw the same batch again, so a random one is not compared."""
        if lost and self._random:
            return
        self._sizes.append(len(members))
        once = np.unique(members)
        self.repeats += len(members) - len(once)
        if self._counts is not None:
            np.add.at(self._counts, members, 1)
        for lag in self._lags:
            if lag <= len(self._earlier):
                self._compare(lag, self._earlier[-lag], once)
        self._earlier.append(once)

    def _compare(self, lag: int, earlier: Array, once: Array) -> None:
        """Count the records that a batch shares with an earlier one; both are sorted and distinct."""
        places = np.minimum(np.searchsorted(once, earlier), max(0, len(once) - 1))
        common, chances = (int((once[places] == earlier).sum()) if len(once) else 0), len(earlier)
        total, of = self._overlaps[lag]
        self._overlaps[lag] = total + common, of + chances

    def sums(self) -> BatchSums:
        sizes = np.array(self._sizes, dtype=np.int64)
        spread = None if self._counts is None else int((self._counts.astype(np.int64) ** 2).sum())
        above = None if self._counts is None else sampling.excess(self._counts, len(sizes) * self._rate)
        return BatchSums(
            steps=len(sizes),
            total=int(sizes.sum()),
            squares=int((sizes**2).sum()),
            spread=spread,
            above=above,
            sizes=step_tests.summary(sizes) if self._random and len(sizes) else None,
            overlaps=tuple(Common(lag, *told) for lag, told in self._overlaps.items() if told[1]),
        )

    def most_often(self) -> int | None:
        return None if self._counts is None or not len(self._counts) else int(self._counts.max())

    def _compared(self, steps: int, further: Collection[int]) -> Sequence[int]:
        if not self._random:
            return ()
        lags = {lag for lag in (1, 2, floor(1.0 / self._rate), ceil(1.0 / self._rate)) if lag <= 10_000}
        batch = self._rate * self._records
        return sorted(lag for lag in {*lags, *further} if 0 < lag < steps and lag * batch <= _REMEMBERED)


_HUGE = 1e300

#: Maximum number of phases that are tested one by one.
MOST_PHASES = 100


@dataclass(frozen=True, kw_only=True)
class InternalSums:
    """Aggregates of the internal part of a recording.

    Attributes:
        largest: (T,) largest norm after clipping, in clip norms.
        sum_norm: (T,) norm of the sum.
        reported: (T,) upper bound on the sum of the contributions' norms, in clip norms, from their quartiles.
        update: (T,) norm of the parameter change by the optimizer.
        outside: (T,) norm of the parameter change outside the optimizer.
        sampling: Sampling evidence; None unless every step lists its records.
        most_often: Maximum number of batches of one record; None if unknown.
    """

    largest: Array
    sum_norm: Array
    reported: Array
    update: Array
    outside: Array
    sampling: SamplingSums | None
    most_often: int | None


def internal_sums(run: RecordedRun, phases: Sequence[Phase]) -> InternalSums | None:
    if not run.folder.has_internal:
        return None
    records, present, among = run.header.records, run.header.present or 1, len(phases)
    counted = records is not None and among <= MOST_PHASES
    logs = [BatchLog(phase, present, among, places=records, lags=run.lags) for phase in phases] if counted else []
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
        logs[int(np.searchsorted(ends, step.step))].add(step.members, lost=run.is_lost(step.step))
    largest, sum_norm, update, outside = (np.array(column) for column in columns)
    sampling, most = None, None
    if members_seen and run.steps:
        batches = tuple(log.sums() for log in logs)
        sampling = SamplingSums(records=present, repeats=sum(log.repeats for log in logs), batches=batches)
        often = [log.most_often() for log in logs]
        most = None if None in often else sum(count for count in often if count is not None)
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
    """(T,) squared noise of each step in units of the configured variance; None unless all were observed."""
    deviation, squares = run["deviation"], run["noise_squares"]
    if not run.steps or not np.all(deviation > 0.0) or np.isnan(squares).any() or not np.isfinite(deviation).all():
        return None
    with np.errstate(over="ignore"):
        found: Array = np.clip(squares / deviation / deviation, 0.0, _HUGE / run.steps)
    return found


def layers_without_noise(run: RecordedRun) -> list[str]:
    if scaled_squares(run) is None:
        return []
    return [name for (name, size), least in zip(run.header.layers, run.quietest, strict=True) if size and least == 0.0]


def _noise(run: RecordedRun) -> NoiseSums | None:
    scaled, count = scaled_squares(run), run.header.parameters
    if scaled is None or count < 1 or run.header.width < 1:
        return None
    return NoiseSums.of(scaled, run.rows, count)


def _norms(run: RecordedRun, internal: InternalSums | None) -> NormSums | None:
    if internal is None or not np.isfinite(internal.largest).any():
        return None
    largest = float(np.clip(np.nan_to_num(internal.largest, nan=0.0, posinf=_HUGE).max(), 0.0, _HUGE))
    if np.isposinf(internal.largest).any():
        largest = _HUGE
    largest /= 1.0 + run.norm_excess
    missing, astray = contribution_gaps(run)
    return NormSums(largest=largest, missing=missing, astray=astray)


def contribution_gaps(run: RecordedRun) -> tuple[int | None, int | None]:
    both = np.isfinite(run["drawn"]) & np.isfinite(run["rows"])
    if not both.any():
        return None, None
    apart = (run["drawn"] - run["rows"])[both]
    return int(apart.sum()), int((apart != 0).sum())
