"""A recorded run in memory: one column for each number of a step, and sums of the rest. Bounded, whatever is read."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dpspec.engine.recorded.channels.options import OptionHistory
from dpspec.recording.folder.header import Header
from dpspec.recording.folder.run_folder import RunFolder, Scored
from dpspec.recording.folder.step_record import COLUMNS, UNSEEN

Array: TypeAlias = np.ndarray[Any, Any]

#: The noise along directions is kept of so many of the first steps, and of so many of the last.
KEPT = 4096

#: No recorder writes larger whole numbers.
_LARGEST = 2**63

#: What stands for numbers that are not finite.
_HUGE = 1e70


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """What a folder says of a run.

    columns: by name, (T,) float64, NaN where nothing was seen; counts too. layers: of each the sum over the steps of
    its noise's squares in units of the deviation that the options ask for; quietest: the same of its quietest
    step. rows (k, W): the noise along the directions, in these units, of the first and the last steps, those in
    between left out where there are many. options: those of the optimizer, and what changed them. end: what was
    known at the end; None where the recording came to none. scored: that canaries were scored, None where they
    were not.
    """

    folder: RunFolder
    columns: Mapping[str, Array]
    layers: Array
    quietest: Array
    rows: Array
    end: Mapping[str, Any] | None
    options: OptionHistory
    scored: Scored | None = None

    @property
    def header(self) -> Header:
        """What the run is made of."""
        return self.folder.header

    @property
    def steps(self) -> int:
        """How many steps were recorded."""
        return len(self.columns["step"])

    def __getitem__(self, name: str) -> Array:
        """A column."""
        return self.columns[name]

    def said(self, name: str) -> Any:
        """What was known at the end under a name; None where it was not, or is of no kind that a recorder writes."""
        value = None if self.end is None else self.end.get(name)
        if isinstance(value, int) and abs(value) > _LARGEST:
            return None
        return value if isinstance(value, bool | int | float | str | list) else None

    def names(self, key: str) -> list[str]:
        """The names that the recorder wrote at the end under a key."""
        value = self.said(key)
        return [one for one in value if isinstance(one, str) and one.isprintable()] if isinstance(value, list) else []


def read_run(path: Path) -> RecordedRun:
    """The run in a folder; ``RecordingError`` that names file and place where it is none, or was changed."""
    folder = RunFolder.open(path)
    header = folder.header
    kept = {name: array("d") for name in COLUMNS}
    layers = np.zeros(len(header.layers))
    quietest = np.full(len(header.layers), np.inf)
    first: list[Array] = []
    last: deque[Array] = deque(maxlen=KEPT)
    end: Mapping[str, Any] | None = None
    scored: Scored | None = None
    options = OptionHistory()
    for step in folder.steps():
        if isinstance(step, Scored):
            scored = step
            continue
        if isinstance(step, Mapping):
            end = step
            continue
        options.add(step.step, step.options)
        for name, column in kept.items():
            column.append(float(getattr(step, name)))
        if step.deviation > 0.0:
            squares = np.zeros(len(layers))
            if len(step.layers):
                with np.errstate(over="ignore"):
                    squares = step.layers.astype(np.float64) / step.deviation / step.deviation
            squares = np.nan_to_num(squares, nan=0.0, posinf=_HUGE)
            layers += squares
            quietest = np.minimum(quietest, squares)
        if header.width:
            row = np.zeros(header.width, dtype=np.float16)
            if len(step.directions):
                row = step.directions
            (first if len(first) < KEPT else last).append(row)
    columns = {name: np.array(column) for name, column in kept.items()}
    for name in ("drawn", "batches", "rows", "virtual", "updates", "told_steps"):
        columns[name][columns[name] == UNSEEN] = np.nan
    rows = np.stack([*first, *last]).astype(np.float64) if first else np.zeros((0, header.width))
    rows = np.nan_to_num(rows, nan=0.0, posinf=65504.0, neginf=-65504.0)
    return RecordedRun(
        folder=folder,
        columns=columns,
        layers=layers,
        quietest=quietest,
        rows=rows,
        options=options,
        end=end,
        scored=scored,
    )
