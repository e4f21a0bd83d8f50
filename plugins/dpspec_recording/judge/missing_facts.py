"""Facts that the recorder always notes, and an edited recording lacks: without them, a check would be omitted."""

from collections.abc import Iterator

import numpy as np

from dpspec.contract import Assumption
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.outcomes.conditions import stated
from dpspec_recording.outcomes.outcome import missing_of

#: Of each run with Opacus' optimizer: the condition that the fact tests, and the subject of the omitted check.
_OF_OPACUS = {
    "meddled": ("update", "whether gradients changed between the noise and the update"),
    "sums": ("clipping", "whether the clipped sums changed before the noise"),
}


def missing_facts(run: RecordedRun) -> Iterator[Assumption]:
    """Yield an open assumption for each condition whose facts are missing; none for a run without an end."""
    end, header = run.end, run.header
    if end is None:
        return
    yield from missing_of(run.all_outcomes)
    if header.source != "opacus":
        return
    for name, (condition, subject) in _OF_OPACUS.items():
        if getattr(end, name) is None:
            yield _missing(condition, subject)
    if header.world:  # a rank may have clipped no batch
        return
    if end.clip_limits is None and bool((run["rows"] > 0.0).any()):
        yield _missing("clipping", "whether gradients are clipped to the norm that scales the noise")
    if end.noise is None and bool(np.any(run["noise_squares"] > 0.0)):
        yield _missing("noise-law", "the distribution of the noise")


def _missing(condition: str, subject: str) -> Assumption:
    text = f"the recording does not show {subject}: record again with this version of dpspec"
    return stated(condition, status="unchecked", text=text)
