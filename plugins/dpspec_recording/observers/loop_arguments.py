"""The arguments of ``dpspec.record`` that a custom loop omits.

All are optional, but a report without its argument is compared with nothing: the noise of a loop that declares no
noise multiplier has no declared size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import Array, JudgedRun

#: By the name of an argument, its value in words.
_VALUES = {
    "noise_multiplier": "the standard deviation of the noise in the sum over clip_norm",
    "clip_norm": "the norm that no clipped gradient exceeds",
    "rate": "the probability with which each record enters a batch, independently of others",
    "records": "the number of records of the dataset",
}


#: The quantity that the reports of an argument determine at a step.
_REPORTS = {"noise_multiplier": "noise_squares", "clip_norm": "rows", "rate": "drawn", "records": "drawn"}


def omitted_arguments(run: JudgedRun, *names: str) -> str:
    """Which of these arguments a loop with their reports omits, and what to pass; empty if none.

    A loop that omits ``rate`` has no loader either: of a loader the sampler is known.
    """
    omitted = [name for name in names if _is_omitted(run, name)]
    if not omitted:
        return ""
    named = " and no ".join(f"{name}= ({_VALUES[name]})" for name in omitted)
    return f"dpspec.record got no {named}: pass {'it' if len(omitted) == 1 else 'them'}"


def _is_omitted(run: JudgedRun, name: str) -> bool:
    header = run.header
    if not header.is_reported or (name == "rate" and not header.has_rates):
        return False
    reported: Array = np.isfinite(run[_REPORTS[name]])
    if name == "records":
        return header.records is None and bool(reported.any())
    return bool((reported & np.isnan(run[name])).any())
