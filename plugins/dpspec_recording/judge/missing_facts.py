"""Facts that the recorder always notes, and an edited recording lacks: without them, a check would be omitted."""

from collections.abc import Iterator

import numpy as np

from dpspec.contract import Assumption
from dpspec_recording.judge.conditions import stated
from dpspec_recording.judge.recorded_run import RecordedRun

#: Of each run with Opacus' optimizer: the condition that the fact tests, and the subject of the omitted check.
_OF_OPACUS = {
    "meddled": ("update", "whether gradients changed between the noise and the update"),
    "restated": ("update-rule", "whether the state of the optimizer changed between its steps"),
    "sums": ("clipping", "whether the clipped sums changed before the noise"),
    "seeds": ("secret-randomness", "whether two generators have one seed"),
}


def missing_facts(run: RecordedRun) -> Iterator[Assumption]:
    """Yield an open assumption for each condition whose facts are missing; none for a run without an end.

    Facts of several parts are joined over the parts that have them, so the number of updates is compared with the
    number of audited steps.
    """
    end, header = run.end, run.header
    if end is None:
        return
    if header.optimizer and not end.optimizer:  # it has a name if its updates are not recomputed
        noted = 0 if end.updates is None else end.updates.steps
        if noted < end.audits.steps * max(1, header.world):
            yield _missing("update-rule", "whether each update is the one that the optimizer computes")
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
