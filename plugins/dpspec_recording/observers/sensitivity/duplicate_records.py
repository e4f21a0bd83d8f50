"""Whether records are equal: all of a dataset in memory, or some of another dataset, also within a batch.

The mistake: copies of a rare class, each clipped by itself, so that one person moves the sum by several clip norms::

    data = ConcatDataset([data, rare, rare, rare])

Records that nearly equal another one, as copies with noise do, raise a question of ``dpspec check``, not a caution. So
does a column whose values occur in equally many rows, as the ids of persons with several records do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep
from dpspec.json_records import Count
from dpspec_recording.observers.own_rule import OwnRule
from dpspec_recording.observers.sensitivity.model_inputs import InputRule
from dpspec_recording.outcomes.issue import Issue, asked
from dpspec_recording.watching.memory_rows import near_copies_within, tensors_of

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun, Terms

RULE = Rule(
    name="duplicate-records",
    summary="rows of a dataset are equal",
    why="A person whose record occurs k times changes each sum by k clip norms: epsilon holds for a group of k.",
    fix="Remove the copies, claim for groups (--group-size K), or accept if equal rows are different persons.",
    source="https://github.com/meta-pytorch/opacus/issues/198",
    code="dpspec_recording.observers.sensitivity.duplicate_records:DuplicateRecords",
)

#: The fewest values of a column of ids, and the largest number of columns that are searched for them.
_FEWEST_IDS, _MOST_COLUMNS = 20, 16

#: Step n is inspected with probability min(1, _STEPS / n), and rows with at least _VALUES values.
_STEPS, _VALUES = 20.0, 4


@dataclass(frozen=True, kw_only=True)
class CopyFacts:
    """Equal records.

    Attributes:
        rows: The number of records of a dataset in memory; 0 for others.
        repeated: The number of different records among them that occur more than once.
        most: The largest number of occurrences of a record.
        ids, rows_of_an_id: The number of values of a column of integers whose values occur in equally many rows, and
            this number; 0 without such a column.
        inspected, near_copies: Records that were compared with all others, and those with a near copy.
        batches, with_copies: Inspected batches of other datasets, and those with equal records.
        most_in_batch: The largest number of equal records in one batch.
    """

    rows: Count = 0
    repeated: Count = 0
    most: Count = 0
    ids: Count = 0
    rows_of_an_id: Count = 0
    inspected: Count = 0
    near_copies: Count = 0
    batches: Count = 0
    with_copies: Count = 0
    most_in_batch: Count = 0


class DuplicateRecords(InputRule[CopyFacts], OwnRule[CopyFacts]):
    kind, early = CopyFacts, True

    def __init__(self) -> None:
        super().__init__()
        self._of_dataset = CopyFacts()
        self._input: Any = None
        self._random = random.SystemRandom()
        self._batches = self._with_copies = self._most_in_batch = 0

    def start(self, setup: RuleSetup) -> None:
        from dpspec_recording.planting.planted import Planted

        tensors = tensors_of(setup.loader)
        if tensors is None:
            if not isinstance(getattr(setup.loader, "dataset", None), Planted):  # which counts copies of canaries
                super().start(setup)
            return
        counts = _row_counts(tensors)
        inspected, near_copies = near_copies_within(tensors[0])
        ids, rows_of_an_id = ids_in(tensors)
        self._of_dataset = CopyFacts(
            rows=int(counts.sum()),
            repeated=int((counts > 1).sum()),
            most=int(counts.max()),
            ids=ids,
            rows_of_an_id=rows_of_an_id,
            inspected=inspected,
            near_copies=near_copies,
        )

    def observe(self, inputs: Mapping[str, Any]) -> None:
        self._input = next(iter(inputs.values()), None)

    def after_step(self, step: RuleStep) -> None:
        """Count equal rows. Poisson and fixed batches contain an index once, so equal rows have different indices."""
        rows, self._input = self._input, None
        if rows is None or step.drawn is None or len(rows) != len(step.drawn) or len(rows) < 2:
            return
        if rows[0].numel() < _VALUES or len(set(step.drawn.tolist())) < len(step.drawn):
            return
        if self._random.random() * step.number < _STEPS:
            most = int(_row_counts((rows.detach(),)).max())
            self._batches += 1
            self._with_copies += most > 1
            self._most_in_batch = max(self._most_in_batch, most)

    def facts(self) -> CopyFacts:
        return replace(
            self._of_dataset,
            batches=self._batches,
            with_copies=self._with_copies,
            most_in_batch=self._most_in_batch,
        )

    @staticmethod
    def caution(facts: CopyFacts, run: RuleRun) -> str:
        most, repeated = facts.most, facts.repeated
        if most > max(1, run.group_size):
            occurs = f"each of {repeated} records occurs" if repeated > 1 else "one record occurs"
            times = f"up to {most} times" if repeated > 1 else f"{most} times"
            return f"Of {facts.rows} rows, {occurs} {times}: --group-size {most} counts all copies."
        if facts.with_copies and facts.most_in_batch > run.group_size:
            return (
                f"In {facts.with_copies} of {facts.batches} inspected batches, drawn records are equal, up to "
                f"{facts.most_in_batch} in one batch: does the dataset hold copies of a record? --group-size K counts "
                "them."
            )
        return ""

    @staticmethod
    def ask(noted: Sequence[CopyFacts | None], run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """The number of records of a person."""
        records = f"{run.header.records:,} records" if run.header.records else "records"
        facts = [fact for fact in noted if fact is not None]
        if terms.group_size == 1:
            no_copies = _no_copies(facts) if len(facts) == len(noted) else ""
            text = f"one person has one of the {records}{no_copies}; no record packs several persons"
        else:
            text = f"one person has at most {terms.group_size} of the {records}"
        yield asked("repeated-records", f"{text}{_ids(facts, terms.group_size)}")


def _no_copies(noted: Sequence[CopyFacts]) -> str:
    """The fact that no two records are equal, if the rule read the dataset and no part has any.

    Half of the inspected records with a near copy are a sign of copies with noise.
    """
    if not noted or not all(facts.rows and facts.most == 1 for facts in noted):
        return ""
    inspected, nearly_equal = sum(facts.inspected for facts in noted), sum(facts.near_copies for facts in noted)
    if 2 * nearly_equal >= inspected > 0:
        text = f"{nearly_equal} of {inspected} inspected ones nearly equal another: copies with noise?"
        return f" (no two are equal, but {text})"
    return " (no two are equal)"


def _ids(noted: Sequence[CopyFacts], group_size: int) -> str:
    """A question about a column of the dataset that may hold the ids of persons with several records; empty without."""
    for facts in noted:
        if facts.rows_of_an_id > group_size:
            values = f"a column has {facts.ids} values in {facts.rows_of_an_id} rows each"
            return f"; {values}: are these ids of persons, or of other groups (--group-size {facts.rows_of_an_id})?"
    return ""


def _row_counts(tensors: tuple[Any, ...]) -> Any:
    """The number of occurrences of each distinct row of the tensors (n, ...)."""
    import numpy as np
    import torch

    columns = [tensor.cpu().reshape(len(tensor), -1).contiguous() for tensor in tensors]
    columns = [column.view(torch.int16) if column.dtype is torch.bfloat16 else column for column in columns]
    rows = np.concatenate([np.ascontiguousarray(c.numpy()).view(np.uint8) for c in columns if c.numel()], axis=1)
    _, counts = np.unique(rows.view(np.dtype((np.void, rows.shape[1]))).reshape(-1), return_counts=True)
    return counts


def ids_in(tensors: tuple[Any, ...]) -> tuple[int, int]:
    """The numbers of values, and of rows of each value, of a column of ids; zeros without one.

    Each of at least 20 different integers occurs in equally many rows, two or more, and not more than there are values.
    Ages, counts and tokens occur in different numbers of rows, and balanced labels mostly have fewer classes than rows
    of a class.
    """
    import torch

    numbers = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.float32, torch.float64)
    for tensor in tensors:
        if tensor.dim() not in (1, 2) or tensor.dtype not in numbers:
            continue
        for column in tensor.reshape(len(tensor), -1).T[:_MOST_COLUMNS].cpu():
            if column.is_floating_point() and not bool((column == column.round()).all()):
                continue
            counts = column.unique(return_counts=True)[1]
            rows = int(counts[0])
            if max(_FEWEST_IDS, rows) <= len(counts) and rows > 1 and bool((counts == rows).all()):
                return len(counts), rows
    return 0, 0
