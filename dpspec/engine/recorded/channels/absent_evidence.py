"""Evidence that the end of a recording lacks: an absent count is an open channel, and not a count of zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpspec.contract import Assumption
from dpspec.engine.recorded.recorded_run import RecordedRun

#: The keys of the end record that each channel needs.
_NEEDED = {
    "sensitivity": ("sums", "recomputed", "scaling", "replaced"),
    "noise": ("noise", "sum_type", "norm_type"),
    "sampling": ("drawn_batches", "passed_over", "unused_batches"),
    "update-rule": ("changed", "restated", "optimizer", "updates", "meddled", "outside", "gradients"),
    "gradient-parameters": ("passes",),
    "model-state": ("buffers", "state", "attributes", "unread"),
    "released-model": ("resumed", "untold", "left_over_rows", "noised_without_update"),
}


def with_absent_evidence(run: RecordedRun, assumptions: Sequence[Assumption]) -> tuple[Assumption, ...]:
    """The assumptions, and an unchecked one for each channel whose evidence the end record lacks.

    A recording without an end record is unchanged: it is open for another reason.
    """
    found = list(assumptions)
    for channel, keys in _NEEDED.items():
        absent = [] if run.end is None else [key for key in keys if key not in run.end]
        if not absent:
            continue
        why = f"the recording lacks {', '.join(absent)}: record again with this version of dpspec"
        at = next((i for i, one in enumerate(found) if one.name == channel), None)
        if at is None:
            found.append(Assumption(name=channel, status="unchecked", text=why))
        elif found[at].status != "false":
            found[at] = replace(found[at], status="unchecked", text=f"{found[at].text}; {why}")
    return tuple(found)
