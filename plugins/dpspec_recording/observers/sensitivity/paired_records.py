"""Whether rows have parts in common: pairs, triplets, and overlapping windows.

The mistake: pairs for a Siamese or contrastive loss, drawn from the records with replacement. A pair is one clipped
gradient, so a record in k pairs moves the sum by k clip norms::

    i, j = torch.randint(len(x), (2, 2000))
    data = TensorDataset(x[i], x[j], (y[i] == y[j]).float())

Parts are fields of one type and shape, or the two or three entries of the second dimension. Other fields, such as
masks and labels, repeat values too: the rule ignores parts with less than three different values, and needs one that is
in different columns of two rows.

Windows of a series or a text overlap if they begin at a smaller distance than their length::

    windows = series.unfold(0, 20, 1)

The last values of a row are then in other rows, at other places. The rule searches the ends of 16 rows.
"""

import random
from dataclasses import dataclass, replace
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, TrainingRule
from dpspec.json_records import Count
from dpspec_recording.watching.memory_rows import tensors_of

RULE = Rule(
    name="paired-records",
    summary="rows of a dataset, such as pairs, triplets and overlapping windows, have parts in common",
    why="A person whose record is in k pairs or windows changes each sum by k clip norms: epsilon holds for k records.",
    fix="Use each record once, in windows without overlap, claim for groups (--group-size K), or accept if equal "
    "parts are different persons.",
    source="https://arxiv.org/abs/2310.03104",
    code="dpspec_recording.observers.sensitivity.paired_records:PairedRecords",
)

#: The largest number of parts of a row, and the smallest number of values of a part.
_MOST_PARTS, _VALUES = 3, 4

#: The number of rows whose ends are searched in others, and the number of values of an end.
_INSPECTED, _END = 16, 8


@dataclass(frozen=True, kw_only=True)
class PairFacts:
    """Parts of rows.

    Attributes:
        rows: The number of rows of a dataset in memory whose rows have parts; 0 for others.
        shared: The number of different parts that are in more than one row, if one is in different columns.
        most: The largest number of rows that have one of these parts.
        windows: The number of windows that have a value, if most inspected rows of a dataset overlap others; else 0.
    """

    rows: Count = 0
    shared: Count = 0
    most: Count = 0
    windows: Count = 0


class PairedRecords(TrainingRule[PairFacts]):
    kind = PairFacts

    def __init__(self) -> None:
        self._facts = PairFacts()

    def start(self, setup: RuleSetup) -> None:
        tensors = tensors_of(setup.loader)
        if tensors is None:
            return
        for columns in _members_of(tensors):
            facts = _shared(columns)
            if facts.most >= self._facts.most:
                self._facts = facts
        windows = max(map(windows_of_a_value, tensors), default=0)
        self._facts = replace(self._facts, windows=windows)

    def facts(self) -> PairFacts:
        return self._facts

    @staticmethod
    def caution(facts: PairFacts, run: RuleRun) -> str:
        if facts.windows > max(1, run.group_size) and facts.windows >= facts.most:
            return (
                f"Rows overlap like windows of a series: a value is in up to {facts.windows} rows. --group-size "
                f"{facts.windows} counts them, unless a person has several values, and so more rows."
            )
        if facts.most <= max(1, run.group_size):
            return ""
        occur = f"{facts.shared} parts occur" if facts.shared > 1 else "one part occurs"
        return (
            f"Of {facts.rows} rows of several parts, {occur} in more than one row, up to {facts.most}: "
            f"--group-size {facts.most} counts all rows of a part."
        )


def _members_of(tensors: tuple[Any, ...]) -> list[list[Any]]:
    """Lists of columns (n, ...) with the parts of the rows, each of one type and shape."""
    by_form: dict[Any, list[Any]] = {}
    for tensor in tensors:
        if tensor.dim() > 1 and tensor[0].numel() >= _VALUES:
            by_form.setdefault((tensor.dtype, tensor.shape), []).append(tensor)
    of_fields = [columns for columns in by_form.values() if 2 <= len(columns) <= _MOST_PARTS]
    stacked = [t for t in tensors if t.dim() > 2 and 2 <= t.shape[1] <= _MOST_PARTS and t[0, 0].numel() >= _VALUES]
    return [*of_fields, *(list(tensor.unbind(1)) for tensor in stacked)]


def _shared(columns: list[Any]) -> PairFacts:
    """The parts in several rows; none if all rows have them in one column."""
    import numpy as np
    import torch

    rows = len(columns[0])
    flat = torch.cat([column.cpu().reshape(rows, -1) for column in columns])
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    varied = ((flat > low) & (flat < high)).any(1).numpy()
    flat = flat.view(torch.int16) if flat.dtype is torch.bfloat16 else flat
    values = np.ascontiguousarray(flat.numpy()[varied])
    if not len(values):
        return PairFacts(rows=rows)
    column_of, row_of = np.divmod(np.arange(len(columns) * rows)[varied], rows)
    void = values.view(np.dtype((np.void, values.shape[1] * values.itemsize))).reshape(-1)
    names = np.unique(void, return_inverse=True)[1].reshape(-1)
    in_rows = np.unique(np.stack([names, row_of]), axis=1)[0]  # a part counts once in a row
    counts = np.bincount(in_rows)
    first, last = np.full(len(counts), len(columns)), np.full(len(counts), -1)
    np.minimum.at(first, names, column_of)
    np.maximum.at(last, names, column_of)
    repeated = counts > 1
    if not (repeated & (first < last)).any():
        return PairFacts(rows=rows)
    return PairFacts(rows=rows, shared=int(repeated.sum()), most=int(counts.max()))


def windows_of_a_value(rows: Any) -> int:
    """The number of ``rows`` (n, ...) that have a value, if most rows overlap others as windows do; else 0.

    The end of an inspected row is in a row that begins ``distance`` values later, so a value is in length / distance
    rows. The length of a window of several channels is the last dimension. Ends of equal values, such as padding, do
    not count.
    """
    if rows.dim() < 2 or len(rows) < 2 or rows[0].numel() <= _END:
        return 0
    flat = rows.detach().reshape(len(rows), -1).cpu()
    chosen = random.SystemRandom().sample(range(len(flat)), min(_INSPECTED, len(flat)))
    distances = [distance for index in chosen if (distance := _distance(flat, index))]
    if 2 * len(distances) <= len(chosen):
        return 0
    length = rows.shape[-1] if min(distances) < rows.shape[-1] else flat.shape[1]
    return int(-(-length // min(distances)))


def _distance(rows: Any, index: int) -> int:
    """The smallest distance from the end of row ``index``, in values, at which another row of ``rows`` (n, d) has it.

    0 if no other row has it at another place, or if it has too few different values.
    """
    import torch

    end, last = rows[index, -_END:], rows.shape[1] - _END  # the values, and their place
    if end.unique().numel() < _VALUES:
        return 0
    row_of, place_of = torch.nonzero(rows[:, :last] == end[0], as_tuple=True)
    is_equal = row_of != index
    for step in range(1, _END):
        is_equal &= rows[row_of, place_of + step] == end[step]
    return int(last - place_of[is_equal].max()) if bool(is_equal.any()) else 0
