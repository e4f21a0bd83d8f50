"""Pictures of what was hidden and what was named, small enough to be kept with a trial."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

import dpspec.contract as dps

Array = np.ndarray[Any, Any]

#: The first so many trials keep pictures, each of its target and of so many of its best candidates.
TRIALS, NAMED = 8, 4

#: Larger pictures are thinned out to at most so many pixels a side.
_SIDE = 64

#: The columns of the candidates, best first.
COLUMNS = tuple(f"guess {place}" for place in range(1, NAMED + 1))


def kept(records: Array) -> dict[str, dps.Json] | None:
    """The target and the best candidates, ``records`` (1 + NAMED at most, ...), as a trial keeps them.

    None where records are no pictures: (height, width) in grey, (1, height, width) or (3, height, width). Bytes in
    base64, row by row and colours side by side, on one scale for all.
    """
    if records.ndim == 3:
        records = records[:, None]
    if records.ndim != 4 or records.shape[1] not in (1, 3) or min(records.shape[2:]) < 2:
        return None
    step = -(-max(records.shape[2:]) // _SIDE)
    thin = np.nan_to_num(records[:, :, ::step, ::step])
    low, high = float(thin.min()), float(thin.max())
    pixels = np.rint((thin - low) * (255.0 / max(high - low, 1e-30))).astype(np.uint8)
    return {
        "shape": [*pixels.shape[2:], pixels.shape[1]],
        "pixels": [base64.b64encode(one.transpose(1, 2, 0).tobytes()).decode() for one in pixels],
    }


def series(spec: dps.Spec, trials: Sequence[dps.Trial], source: str) -> dps.Series | None:
    """The first trials' targets beside what the adversary named; None where no trial kept pictures."""
    found = [(t, t.evidence["internal"]["pictures"]) for t in trials if "pictures" in t.evidence.get("internal", {})]
    if not found:
        return None
    shape = found[0][1]["shape"]
    columns: dict[str, list[dps.Json]] = {
        "trial": [trial.index for trial, _ in found],
        "place of the target": [int(trial.evidence["rank"]) + 1 for trial, _ in found],
    }
    for at, name in enumerate(("target", *COLUMNS)):
        columns[name] = [pictures["pixels"][at] if at < len(pictures["pixels"]) else None for _, pictures in found]
    return dps.Series(
        name="reconstructions",
        title=f"What was hidden, framed where the adversary named it: trials 0 to {max(columns['trial'])}",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap({name: "" if name in ("trial", "place of the target") else "picture" for name in columns}),
        rigor="statistical",
        source=source,
        privacy="public" if spec.data_privacy == "public" else "per-record",
        plot=dps.FrozenMap(
            {"kind": "pictures", "y": ["target", *COLUMNS], "shape": shape, "frame": "place of the target"}
        ),
    )
