"""A recorded run with the checks of what was executed against what its own options and its accountant say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpspec.contract import Check
from dpspec.engine.recorded.own_checks import own_checks
from dpspec.engine.recorded.recorded_run import RecordedRun, read_run
from dpspec.engine.recorded.run_sums import InternalSums, evidence, internal_sums
from dpspec.engine.recorded.schedule import poisson_rates, sampling_phases
from dpspec.errors import NothingToRunError
from dpspec.stats.conformance import table


@dataclass(frozen=True, kw_only=True)
class ObservedRun:
    """A run, the sums of its internal part (None if that was kept back), and all checks of it."""

    run: RecordedRun
    internal: InternalSums | None
    checks: tuple[Check, ...]


def observe(path: Path) -> ObservedRun:
    """Read the folder of a recorded run and make all checks.

    Raises:
        RecordingError: The folder holds no recorded run, or was changed.
        NothingToRunError: No step was recorded.
    """
    run = read_run(path)
    if run.steps == 0:
        raise NothingToRunError(f"{path}: no step was recorded: the optimizer that was given never stepped")
    phases = sampling_phases(run)
    internal = internal_sums(run, phases)
    poisson = all(rate is not None for rate in poisson_rates(run))
    found = table.of_runs(phases, [evidence(run, internal, poisson=poisson)])
    return ObservedRun(run=run, internal=internal, checks=(*found, *own_checks(run, internal)))
