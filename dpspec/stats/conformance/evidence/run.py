"""All evidence of a run, and the only ways from it to JSON and back.

Reading refuses what no run writes: numbers out of range, lists that do not fit each other. It refuses nothing that a
faulty backend can do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from dpspec import json_records
from dpspec.contract import FrozenMap, Json, Phase
from dpspec.json_records import Count, Record
from dpspec.stats.conformance.evidence.measured import (
    OutsideNoise,
    PlantedSums,
    ReplayedStep,
    ResidualSums,
    States,
)
from dpspec.stats.conformance.evidence.reported import NoiseSums, NormSums, SamplingSums, Told
from dpspec.stats.independence import layer_noise
from dpspec.stats.independence.step_luck import Luck

#: Evidence that speaks of gradients, and not only of noise and batches, and so of the rows.
OF_ROWS = ("noise", "measured", "signal", "norm_log", "replayed")


@dataclass(frozen=True, kw_only=True)
class RunEvidence(Record):
    """All that is kept of one run; None for what it does not show.

    steps: how many states were released after the first. replayed: what the first trial looks at beside its run; of
        trials of version 0.1.0, and of all others, it is not there.
    """

    told: Told | None = None
    sampling_log: SamplingSums | None = None
    noise_log: NoiseSums | None = None
    norm_log: NormSums | None = None
    steps: Count | None = None
    states: States | None = None
    noise: OutsideNoise | None = None
    measured: ResidualSums | None = None
    signal: PlantedSums | None = None
    replayed: ReplayedStep | None = None


def write_run(run: RunEvidence) -> dict[str, Json]:
    """The JSON of a run as trials keep it."""
    return arranged(json_records.write(run))


def arranged(found: Mapping[str, Json]) -> dict[str, Json]:
    """Evidence of a run as trials keep it: what speaks of the rows under ``internal``, which no report shows."""
    kept: dict[str, Json] = {key: value for key, value in found.items() if key not in OF_ROWS}
    return kept | {"internal": {key: found[key] for key in OF_ROWS if key in found}}


def read_run(evidence: Mapping[str, Json], where: str = "evidence") -> RunEvidence:
    """A run from what a trial keeps of it, beside whatever else the trial keeps.

    Raises ``ValueError`` that names the place where the JSON is not that of a run.
    """
    internal = evidence.get("internal", {})
    if not isinstance(internal, Mapping):
        raise ValueError(f"{where}.internal must be a mapping, got {internal!r:.60}")
    names = {one.name for one in fields(RunEvidence)}
    public = {key: evidence[key] for key in names - set(OF_ROWS) if key in evidence}
    run = json_records.read(RunEvidence, public, where)
    rows = json_records.read(
        RunEvidence, {key: internal[key] for key in OF_ROWS if key in internal}, f"{where}.internal"
    )
    return RunEvidence(**{name: getattr(rows if name in OF_ROWS else run, name) for name in names})


def read_runs(phases: Sequence[Phase], evidence: Sequence[FrozenMap]) -> list[RunEvidence]:
    """The runs of several trials that were declared to have these phases; ``ValueError`` where they did not."""
    runs = [read_run(one, f"evidence of trial {number}") for number, one in enumerate(evidence, start=1)]
    layers = [_layers(run) for run in runs]
    named = next((names for names in layers if names), None)
    sizes = next((_sizes(run) for run in runs if run.signal is not None), None)
    for number, (run, names) in enumerate(zip(runs, layers, strict=True), start=1):
        problem = next(_undeclared(phases, run), None)
        if problem is None and names is not None and names != named:
            problem = "internal.measured.layers must be those of the other trials"
        if problem is None and run.signal is not None and _sizes(run) != sizes:
            problem = "internal.signal.moments must be of the sizes of the other trials"
        if problem is not None:
            raise ValueError(f"evidence of trial {number}.{problem}")
    return runs


def luck_of_size(evidence: Sequence[Mapping[str, Json]], size: int) -> list[Luck]:
    """What groups of ``size`` shared within steps, of all runs that looked; ``ValueError`` as for :func:`read_run`."""
    runs = (read_run(one, f"evidence of trial {number}") for number, one in enumerate(evidence, start=1))
    found = (one for run in runs if run.signal is not None for one in run.signal.luck or ())
    return [Luck(one.count, one.degrees, one.means, one.spreads) for one in found if one.size == size]


def layers_share(evidence: Sequence[Mapping[str, Json]]) -> float | None:
    """The p-value of two layers sharing noise in no run, Bonferroni over runs; None where layers were not compared.

    Raises ``ValueError`` as :func:`read_run` does.
    """
    runs = (read_run(one, f"evidence of trial {number}") for number, one in enumerate(evidence, start=1))
    found = [run.measured.shared for run in runs if run.measured is not None and run.measured.shared is not None]
    if not found:
        return None
    return min(1.0, len(found) * min(layer_noise.p_value(one.shared, one.pairs) for one in found))


def _sizes(run: RunEvidence) -> list[int] | None:
    return None if run.signal is None else [one.size for one in run.signal.moments]


def _layers(run: RunEvidence) -> set[str] | None:
    if run.measured is None or run.measured.everywhere is None or not run.measured.everywhere.layers:
        return None
    return set(run.measured.everywhere.layers)


def _undeclared(phases: Sequence[Phase], run: RunEvidence) -> Iterator[str]:
    """Where a run has more phases or steps than are declared, although no more are ever kept."""
    if run.sampling_log is not None:
        batches = run.sampling_log.batches
        if len(batches) != len(phases):
            yield f"sampling_log.batches must be of {len(phases)} phases, got {len(batches)}"
        for number, (phase, batch) in enumerate(zip(phases, batches, strict=False)):
            if batch.steps > phase.steps:
                yield f"sampling_log.batches[{number}].steps must be at most {phase.steps}, got {batch.steps}"
            epoch_steps = phase.sampling.epoch_steps
            if epoch_steps is not None and (batch.epochs is None or batch.epochs.whole != batch.steps // epoch_steps):
                yield f"sampling_log.batches[{number}].epochs must be of {batch.steps // epoch_steps} whole epochs"
    declared = sum(phase.steps for phase in phases)
    if run.noise_log is not None and run.noise_log.steps != declared:
        yield f"noise_log.steps must be {declared}, got {run.noise_log.steps}"
    if run.noise is not None and run.noise.hidden + (run.noise.each.steps if run.noise.each else 0) > declared:
        yield f"internal.noise must be of at most {declared} steps"
    if run.measured is not None and max(run.measured.hidden + run.measured.steps, run.measured.steps_seen) > declared:
        yield f"internal.measured must be of at most {declared} steps"
    if run.signal is not None and run.signal.by_step is not None and run.signal.by_step.steps > declared:
        yield f"internal.signal.by_step must be of at most {declared} steps, got {run.signal.by_step.steps}"
    if run.measured is not None and run.measured.shared is not None:
        size, planned = run.measured.shared.count // run.measured.steps_seen, run.measured.shared.planned
        if planned > declared * size or planned % size:
            yield f"internal.measured.shared.planned must be {size} for each of at most {declared} steps, got {planned}"
