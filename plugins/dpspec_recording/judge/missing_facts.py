"""Facts that the recorder always notes, and an edited recording lacks: without them, a check would be omitted."""

from collections.abc import Iterator

import numpy as np

from dpspec.contract import Assumption
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.outcomes.outcome import Missing, missing_of


def missing_facts(run: RecordedRun) -> Iterator[Assumption]:
    """Yield an open assumption for each condition whose facts are missing; none for a run without an end."""
    if run.end is None:
        return
    yield from missing_of(run.all_outcomes)
    if run.header.source != "opacus" or run.header.world:
        return
    if run.end.noise is None and bool(np.any(run["noise_squares"] > 0.0)):
        yield from missing_of([Missing(condition="noise-law", subject="the distribution of the noise")])
