"""From what observers kept of a run to the JSON that :mod:`dpspec.stats.conformance` holds against the declaration.

``reported`` boils down what the backend said of itself, ``measured`` what was seen from outside, ``signal`` what the
planted canaries added along their directions. Only Gaussian noise is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor
from typing import Any, TypeAlias

import numpy as np
import torch

from dpspec.contract.frozen import Json
from dpspec.contract.providers import Observer, TrainingJob
from dpspec.stats import freshness
from dpspec.stats.conformance import arranged
from dpspec.training.clipping import Flat, clipper
from dpspec.training.logs import NoiseLog, NormLog, SamplingLog
from dpspec.training.measured import ResidualLog
from dpspec.training.observers import ProjectionObserver
from dpspec.training.residuals import Residuals
from dpspec.training.schedule import Schedule

Array: TypeAlias = np.ndarray[Any, Any]

#: What stands for measurements that are not finite: evidence is JSON, which has none.
_HUGE, _LARGE = 1e300, 1e70

#: Batches further back than hold so many records are not kept for comparison.
_REMEMBERED = 2**24

#: So many coordinates of the first step tell whether two runs share their noise.
_FIRST = 1024


class RunLogs:
    """The three logs of one run, held against the schedule that its job declares."""

    def __init__(self, job: TrainingJob) -> None:
        records = len(job.x) + (job.canaries.count if job.canaries is not None else 0)
        self.schedule = Schedule.of(job.phases, records)
        steps = [phase.steps for phase in self.schedule.phases]
        self.sampling = SamplingLog(records, steps, compared_lags(self.schedule))
        self.noise = NoiseLog(self.schedule.total)
        self.norms = NormLog()

    @property
    def observers(self) -> tuple[Observer, ...]:
        """All logs, for a job."""
        return (self.sampling, self.noise, self.norms)


def compared_lags(schedule: Schedule) -> tuple[int, ...]:
    """Lags at which batches of a loader exclude each other or are alike: within an epoch, and one epoch apart."""
    found = {1, 2}
    for phase in schedule.phases:
        rate = phase.sampler.inclusion
        if 0.0 < rate < 1.0:
            found |= {floor(1.0 / rate), ceil(1.0 / rate)}
    batch = max(phase.sampler.inclusion * phase.sampler.records for phase in schedule.phases)
    return tuple(sorted(lag for lag in found if lag < schedule.total and lag * batch <= _REMEMBERED)[:8])


def evidence_of(
    logs: RunLogs,
    twin: RunLogs | None,
    watcher: Residuals | None,
    job: TrainingJob,
    sizes: Array,
    coins: Array,
) -> dict[str, Json]:
    """All that a trial says of the run that it made; ``sizes`` and ``coins`` (m,) are those of its canary groups.

    What was seen of gradients speaks of the rows and comes under ``internal``: a step with a single record less its
    noise, which the seed gives away, is that record's gradient.

    twin: the logs of another run with seeds of its own. watcher: who saw the released models, if anybody did.
    """
    found = _reported(logs, twin)
    if watcher is not None:
        scale = watcher.noise_scale()
        found["steps"] = watcher.steps
        found["noise"] = {"statistic": number(scale.statistic), "degrees": scale.degrees}
        if watcher.log is not None and watcher.log.steps:
            found["measured"] = measured(watcher.log)
        if isinstance(watcher, ProjectionObserver):
            found |= signal(watcher, job, sizes, coins)
    return arranged(found)


def reported(logs: RunLogs, twin: RunLogs | None = None) -> dict[str, Json]:
    """What the backend said of a run, and of another with seeds of its own; without what it does not report."""
    return arranged(_reported(logs, twin))


def _reported(logs: RunLogs, twin: RunLogs | None) -> dict[str, Json]:
    found: dict[str, Json] = {}
    if logs.sampling.sizes:
        found["sampling_log"] = {
            "records": len(logs.sampling.inclusions),
            "repeats": logs.sampling.repeats,
            "batches": list(_batches(logs.schedule, logs.sampling)),
        }
    scaled = _scaled(logs)
    if scaled is not None:
        other = _scaled(twin) if twin is not None else None
        found["noise_log"] = _noise(logs, scaled, other)
    if logs.norms.largest:
        clips = np.array([phase.clip_norm for phase in logs.schedule])
        count = min(len(clips), len(logs.norms.largest))
        largest = np.max(np.asarray(logs.norms.largest[:count]) / clips[:count])
        found["norm_log"] = {"largest": number(float(largest))}
        if logs.sampling.sizes:
            found["norm_log"]["missing"] = int(sum(logs.sampling.sizes) - sum(logs.norms.counts))
    return found


def measured(log: ResidualLog) -> dict[str, Json]:
    """What was seen from outside: sums of squares per layer, and sums along predictable directions."""
    variances = np.array(log.variances)
    rows = _tame(np.stack(log.rows))
    lengths = np.linalg.norm(rows, axis=1)
    directions = rows / np.maximum(lengths, 1e-300)[:, None]
    products = freshness.products(rows, directions)
    lag = freshness.worst_lag(products.lags)
    noise = np.sqrt(variances[:, 0])
    width = rows.shape[1]

    def again(later: Array, earlier: Array) -> Array:
        """What the same noise again would add along the directions of earlier residuals."""
        added: Array = noise[later] * noise[earlier] * width / np.maximum(lengths[earlier], 1e-300)
        return added

    steps = np.arange(log.steps)
    late, early = products.steps
    return {
        "steps": log.steps,
        "rounding": number(log.rounding),
        "least": float(variances[:, 0].sum()),
        "variance": number(float(variances[:, 1].sum())),
        "layers": {name: [number(total), degrees] for name, (total, degrees) in log.layers.items()},
        "coordinates": {"least": number(float(log.coordinates.min())), "count": len(log.coordinates)},
        "drift": {"total": number(log.drift), "unit": number(log.pull)},
        "lag": {
            "lag": lag,
            "total": number(float(products.lags[lag])),
            "unit": float(again(steps[lag:], steps[: log.steps - lag]).sum()),
        },
        "pair": {
            "total": number(products.largest),
            "unit": float(again(steps[late : late + 1], steps[early : early + 1]).sum()),
            "least": float(variances[late, 0]),
            "variance": number(float(variances[late, 1])),
        },
        "first": {"row": _first(rows), "least": float(variances[0, 0]), "variance": number(float(variances[0, 1]))},
    }


def signal(watcher: ProjectionObserver, job: TrainingJob, sizes: Array, coins: Array) -> dict[str, Json]:
    """Moments of what was seen along the canaries' directions, per group size and coin; sizes and coins (m,).

    Projections are summed over the steps that were looked at, in clip norms. One planted record is expected to add
    ``draws`` of them: as many as there are batches with it among those, on average, times how far its gradient points
    along its direction. ``outside`` is the variance of such a sum without planted records, the deviation of the drawn
    real records taken to lie in no direction more than in others; each planted record adds ``inclusion`` to it.
    ``rounding`` bounds the length of what rounding changed of the sum of all looked-at residuals. Empty where clipping
    turns gradients.
    """
    schedule = RunLogs(job).schedule
    flat = all(isinstance(clipper(phase.clip), Flat) for phase in schedule.phases)
    if not flat or job.canaries is None or job.canaries.count == 0:
        return {}
    row = job.canaries.gradients(torch.tensor([0]))[0]
    along = float(watcher.directions.project(row).max() / row.norm())
    sums = watcher.projections.double().sum(0).numpy()
    moments: list[Json] = []
    for size in np.unique(sizes):
        for coin in (0, 1):
            some = _tame(sums[(sizes == size) & (coins == coin)])
            moments.append([int(size), coin, len(some), float(some.sum()), float((some**2).sum())])
    looked = [phase for phase, seen in zip(schedule, watcher.looked.tolist(), strict=True) if seen]
    rates = np.array([phase.sampler.inclusion for phase in looked])
    noise = sum(phase.noise_multiplier**2 for phase in looked)
    return {
        "signal": {
            "draws": along * float(rates.sum()),
            "moments": moments,
            "outside": number(noise + float(watcher.spread.sum()) / watcher.directions.parameters),
            "inclusion": along**2 * float((rates * (1.0 - rates)).sum()),
            "rounding": number(float(watcher.rounding.sum())),
        }
    }


def number(value: float) -> float:
    """The value, or a huge one where it is not finite: more than was ever declared."""
    return float(value) if np.isfinite(value) else _HUGE


def _tame(values: Array) -> Array:
    """In float64, 0 for what is not a number and large where it is infinite."""
    tame: Array = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=_LARGE, neginf=-_LARGE)
    return tame


def _first(rows: Array) -> list[Json]:
    return [round(float(v), 3) for v in np.clip(rows[0, :_FIRST], -1e6, 1e6)]


def _batches(schedule: Schedule, log: SamplingLog) -> Iterator[Json]:
    start = 0
    for index, phase in enumerate(schedule.phases):
        sizes = np.asarray(log.sizes[start : start + phase.steps], dtype=np.int64)
        start += phase.steps
        found: dict[str, Json] = {"steps": len(sizes), "total": int(sizes.sum()), "squares": int((sizes**2).sum())}
        if index < len(log.spreads):
            found["spread"] = log.spreads[index]
        overlaps = log.overlaps[index].tolist()
        found["overlaps"] = [[lag, *o] for lag, o in zip(log.lags, overlaps, strict=True) if o[1]]
        yield found


def _scaled(logs: RunLogs) -> Array | None:
    """The kept noise (steps, width) in units of its declared deviation; None where that is not what is tested."""
    deviations = np.array([phase.deviation for phase in logs.schedule])
    gaussian = all(phase.noise == "gaussian" for phase in logs.schedule.phases)
    if len(logs.noise.squares) != len(deviations) or not gaussian or not np.all(deviations > 0):
        return None
    rows: Array = np.stack(logs.noise.rows).astype(np.float64) / deviations[:, None]
    return _tame(rows)


def _noise(logs: RunLogs, rows: Array, other: Array | None) -> dict[str, Json]:
    deviations = np.array([phase.deviation for phase in logs.schedule])
    steps, width = rows.shape
    squares = (rows**2).sum(axis=0)
    half = width // 2
    products = freshness.products(rows)
    lag = freshness.worst_lag(products.lags)
    found: dict[str, Json] = {
        "statistic": number(float(np.sum(np.asarray(logs.noise.squares) / deviations**2))),
        "degrees": logs.noise.count * len(deviations),
        "products": number(float(np.sum(np.asarray(logs.noise.products) / (deviations[1:] * deviations[:-1])))),
        "pairs": logs.noise.count * len(logs.noise.products),
        "steps": steps,
        "width": width,
        "quietest": number(float(squares.min())),
        "halves": number(float((rows[:, :half] * rows[:, half : 2 * half]).sum())),
        "lag": {"lag": lag, "products": number(float(products.lags[lag]))},
        "pair": number(products.largest),
        "first": _first(rows),
    }
    if other is not None and other.shape == rows.shape:
        aligned, largest = freshness.across(rows, other)
        found["twin"] = {"aligned": number(aligned), "largest": number(largest)}
    return found
