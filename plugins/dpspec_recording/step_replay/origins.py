"""Origins of the values that a step reads: each names those from before the step of one source.

The mistakes: a few records, a table of all records, or weights that were trained on them are in the loss of each one::

    loss = criterion(embed(batch) @ embed(x[:10]).T, labels)                   # rows of the dataset
    loss = criterion((embed(batch) @ bank.T).softmax(1) @ bank, labels)        # a memory bank
    loss = kl_div(log_softmax(model(batch)), softmax(teacher(batch)))          # a teacher of the same records
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dpspec_recording.step_replay.calls import Pauses
from dpspec_recording.step_replay.dependencies import Origin, Region, TracedStep, dependencies, regions_of
from dpspec_recording.step_replay.facts import BATCH_BEFORE, DATASET, ROWS, TABLE, WEIGHTS
from dpspec_recording.step_replay.followed_values import BetweenSteps
from dpspec_recording.step_replay.python_numbers import PythonNumbers
from dpspec_recording.step_replay.trace import address_of

if TYPE_CHECKING:
    from dpspec_recording.watching.trained_weights import TrainedWeights

#: The largest tensor that is compared with rows of the records, in numbers, and the fewest values of a row.
_MOST_OF_ROWS, _FEWEST_VALUES = 2**18, 4

#: The number of records whose distances are compared, and the fewest.
MOST_RECORDS, _FEWEST = 256, 40

#: The largest table, and the number of permutations that estimate the null distribution.
_MOST_OF_TABLE, _PERMUTATIONS = 2**24, 50

#: The covariance of distances of dependent rows, in standard deviations of the one of permuted rows. The null
#: distribution is a weighted sum of chi-square variables: one alone exceeds 20 with probability 8e-8, or 3e-7 if the
#: estimated deviation is 10 % too small.
_DEPENDENT = 20.0

#: The largest length of a constant vector, and the largest number of constants of each kind that are kept.
_LONGEST, _MOST = 4096, 64


class OfBatchBefore:
    """Values that operations computed from the batch before."""

    def __init__(self, between: BetweenSteps) -> None:
        self._between = between

    def regions(self, _: TracedStep, tensor: Tensor) -> Iterator[Region]:
        if tensor in self._between.of_batch:
            yield Region(tensor)


class OfDataset:
    """Values that operations computed from the dataset or from earlier batches.

    Tensors with a row for each record of the batch or the dataset do not count: they may be labels, or tables that
    :class:`RecordTable` finds. Other parts of the loaded batch do not count either: they may be physical batches.
    """

    def __init__(self, between: BetweenSteps) -> None:
        self._between = between

    def regions(self, step: TracedStep, tensor: Tensor) -> Iterator[Region]:
        lengths = len(step.batch[0]), 0 if step.drawn is None else step.drawn.records
        loaded = self._between.loaded
        is_of_step = tensor in loaded and any(part in loaded for part in step.batch)
        if tensor in self._between.of_dataset and not is_of_step and not (tensor.dim() and len(tensor) in lengths):
            yield Region(tensor)


class RecordTable:
    """Rows of other records in a table with a row for each record of the dataset, if these depend on the records.

    A table that holds the records themselves is found by its values
    (:class:`~dpspec_recording.step_replay.held_records.HeldRecords`). Of a function of the records, such as an
    embedding or a score, rows are similar if the records are. Rows of a public table are independent of the records.
    """

    @staticmethod
    def regions(step: TracedStep, tensor: Tensor) -> Iterator[Region]:
        drawn = step.drawn
        if drawn is None or drawn.records < _FEWEST or tensor.dim() not in (1, 2) or tensor.numel() > _MOST_OF_TABLE:
            return
        for transposed in (False, True)[: tensor.dim()]:
            if tensor.shape[transposed] != drawn.records:
                continue
            value = step.trace.value_before(tensor)
            sampled = drawn.sample()
            if sampled is not None and depends_on_records(value.t() if transposed else value, *sampled):
                undrawn = torch.ones(drawn.records, dtype=torch.bool)
                undrawn[drawn.indices.cpu()] = False
                yield Region(tensor, undrawn, transposed)


def depends_on_records(table: Tensor, rows: Sequence[Tensor], indices: Tensor) -> bool:
    """Whether rows of a table (n, ...) depend on the records' ``rows``, each (k, ...), at a sample of the indices."""
    if len(indices) < _FEWEST:
        return False
    of_table = centered_distances(table[indices.to(table.device)])
    return any(covariance_of(of_table, centered_distances(row)) > _DEPENDENT for row in rows)


def covariance_of(first: Tensor, second: Tensor) -> float:
    """The covariance of two matrices of centered distances (n, n), in standard deviations of permuted ones."""
    generator = torch.Generator().manual_seed(0)
    orders = (torch.randperm(len(first), generator=generator) for _ in range(_PERMUTATIONS))
    values = torch.stack([(first[order][:, order] * second).sum() for order in orders])
    deviation = float(values.std())
    return float((first * second).sum() - values.mean()) / deviation if deviation > 0.0 else 0.0


def centered_distances(rows: Tensor) -> Tensor:
    """The distances (n, n) of rows, with the mean 0 in each row and column."""
    flat = rows.detach().reshape(len(rows), -1).double().cpu()
    distances = torch.cdist(flat, flat)
    return distances - distances.mean(0) - distances.mean(1, keepdim=True) + distances.mean()


class DatasetRows:
    """Rows of the dataset, outside of the batch: anchors, exemplars, a support set."""

    def __init__(self, tables: Callable[[], Iterable[Tensor]]) -> None:
        """tables: returns the tensors (n, ...) of the dataset."""
        self._tables = tables

    def regions(self, step: TracedStep, tensor: Tensor) -> Iterator[Region]:
        if step.drawn is None or not tensor.dim() or tensor.numel() > _MOST_OF_ROWS:
            return
        width = tensor.numel() if tensor.dim() == 1 else tensor[0].numel()
        tables = [table for table in self._tables() if table.is_floating_point() and table.dim() > 1 and len(table)]
        tables = [_flat(table) for table in tables if table[0].numel() == width]
        if width >= _FEWEST_VALUES and tables:
            rows = _flat(step.trace.value_before(tensor))
            drawn = set[bytes]().union(*(_bytes(table[step.drawn.indices.to(table.device)]) for table in tables))
            outside = torch.tensor([row not in drawn for row in _bytes(rows)])
            if bool(outside.any()) and any(_are_rows(rows[outside.to(rows.device)], table) for table in tables):
                yield Region(tensor, outside)


def _flat(rows: Tensor) -> Tensor:
    """Rows (n, ...) as (n, d); a vector (d,) is one row."""
    return rows.detach().reshape(1, -1) if rows.dim() == 1 else rows.detach().reshape(len(rows), -1)


def _bytes(rows: Tensor) -> list[bytes]:
    return [bytes(row.numpy().data) for row in rows.cpu().float().contiguous()]


def _are_rows(rows: Tensor, table: Tensor) -> bool:
    """Whether one of ``rows`` (n, d), which has different values, is a row of a table."""
    column = int((table != table[:1]).sum(0).argmax())
    keys = torch.isin(table[:, column].float(), rows[:, column].float().to(table.device))
    of_table = set(_bytes(table[keys]))
    records = [row for key, row in zip(_bytes(rows), rows, strict=True) if key in of_table]
    return any(row.unique().numel() >= _FEWEST_VALUES for row in records)


class EarlierWeights:
    """Weights of another model that the script trained before."""

    def __init__(self, earlier: Sequence[TrainedWeights]) -> None:
        """earlier: all such weights."""
        self._earlier = earlier

    def regions(self, step: TracedStep, tensor: Tensor) -> Iterator[Region]:
        if any(True for _ in self.of(step, tensor)):
            yield Region(tensor)

    def of(self, step: TracedStep, tensor: Tensor) -> Iterator[TrainedWeights]:
        """The weights with the values of a tensor."""
        if self._earlier:
            value = step.trace.value_before(tensor)
            yield from (weights for weights in self._earlier if weights.include(value))


class Constants:
    """Short vectors from before the steps, numbers of Python, and tables of the dataset's records.

    The mistake: a function of the loss, or a line of the loop, has a statistic of all records::

        mean, prior = x.mean(0), (torch.bincount(y) / len(y)).log()
        loss = cross_entropy(model(batch - mean) + prior, labels)

    Rules compare them with statistics of the records, so that no replay needs to change them.

    Attributes:
        vectors: Copies (k,) in double precision, by the address of their memory.
        numbers: Numbers of Python that are not integers.
        tables: Tensors (n, ...) with a row for each of the n records of the dataset, likewise.
    """

    def __init__(self) -> None:
        self.vectors: dict[int, Tensor] = {}
        self.numbers: set[float] = set()
        self.tables: dict[int, Tensor] = {}

    def note(self, step: TracedStep, records: int | None = None) -> None:
        """Note the constants of a step. records: the number n of records of the dataset, if it is known."""
        for tensor in step.unknown:
            address, size = address_of(tensor), tensor.numel()
            is_table = tensor.dim() > 0 and len(tensor) == records
            is_vector = tensor.is_floating_point() and size <= _LONGEST and size == max(tensor.shape, default=1)
            if size and is_table and len(self.tables) < _MOST:
                self.tables.setdefault(address, tensor.detach())
            elif size and is_vector and address not in self.vectors and len(self.vectors) < _MOST:
                self.vectors[address] = step.trace.value_before(tensor).reshape(-1).double().cpu()
        for operation in step.trace.operations:
            for leaf in tree_leaves((operation.args, dict(operation.kwargs))):
                if type(leaf) is float and math.isfinite(leaf) and leaf != round(leaf) and len(self.numbers) < _MOST:
                    self.numbers.add(leaf)


class SumOrigins:
    """The origins of the values that move the sums of traced steps.

    Attributes:
        between: Follows values from one step to the next.
        steps: The number of steps whose sum moves with values of an origin, by its name.
        constants: Those that steps read.
        numbers: Numbers of Python in the operations of steps.
        weights: Weights of earlier trainings that move a sum.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        pauses: Pauses,
        dataset: Sequence[Tensor] | None = None,
        earlier: Sequence[TrainedWeights] = (),
    ) -> None:
        """Begin with no step.

        Args:
            parameters: Of the model: they hold noisy sums alone.
            pauses: Of the recorder's own operations.
            dataset: The tensors in memory that hold the records; None if values computed from them are not followed.
            earlier: The weights that the script trained before.
        """
        self.between = BetweenSteps(parameters, pauses, dataset)
        self.steps: Counter[str] = Counter()
        self.constants, self.numbers = Constants(), PythonNumbers()
        self.weights: list[TrainedWeights] = []
        self._of_weights = EarlierWeights(earlier)
        self._origins: dict[str, Origin] = {
            BATCH_BEFORE: OfBatchBefore(self.between),
            DATASET: OfDataset(self.between),
            TABLE: RecordTable(),
            ROWS: DatasetRows(lambda: dataset or self.constants.tables.values()),
            WEIGHTS: self._of_weights,
        }
        self._asked = 1

    def note_numbers(self, step: TracedStep, parameters: Sequence[Tensor]) -> None:
        """Follow the numbers of the batch that the script read before the sum: replays of the step then know them."""
        step.trace.followed = self.numbers.note(step, parameters)

    def choose_step(self, step: int) -> bool:
        """Whether to trace the step of this number, as it may read the dataset: one in each doubling of the steps."""
        if not self.between.of_dataset or step < 2 * self._asked:
            return False
        self._asked = step
        return True

    def read(self, step: TracedStep, origin: str) -> bool:
        """Whether a step reads values of an origin."""
        return bool(regions_of(step, self._origins[origin]))

    def note(
        self, step: TracedStep, sums: Sequence[Tensor], records: int | None = None, omitted: Collection[str] = ()
    ) -> None:
        """Find what moves the clipped sum of a step.

        Args:
            step: The step.
            sums: Its clipped sum.
            records: The number of records of the dataset, if its tables are constants of the step.
            omitted: The names of origins that are not searched.
        """
        self.constants.note(step, records)
        origins = {name: origin for name, origin in self._origins.items() if name not in omitted}
        moving = dependencies(step, sums, origins)
        self.steps.update(name for name in moving if name != WEIGHTS)
        weights = (
            weights for region in moving.get(WEIGHTS, ()) for weights in self._of_weights.of(step, region.tensor)
        )
        self.weights += [new for new in dict.fromkeys(weights) if new not in self.weights]
