"""Whether ``dataset[i]`` reads other records than record i: pasted patches, neighbors, statistics of the dataset.

The mistake: a record is in the values of another, and so in two clipped gradients::

    def __getitem__(self, i):
        return 0.5 * self.x[i] + 0.5 * self.x[random.randrange(len(self.x))]

After the training, some records are read again from a copy of the dataset in which all other records have other values,
with the same random numbers. The copy shares nothing that it may change with the dataset. Two other records are read
before, since a dataset may keep a state of earlier reads: a running mean, the last record, a queue.

Values that the dataset computed from its records before, such as sorted columns, get other values as well
(:mod:`dpspec_recording.rules.derived_values`).
"""

import collections
import contextlib
import copy
import random
import statistics
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, TrainingRule
from dpspec.json_records import Count
from dpspec_recording.rules.derived_values import array_of, is_derived, with_other_values

RULE = Rule(
    name="mixing-dataset",
    summary="dataset[i] changes if other records of the dataset change, or values that it computed from them",
    why="A record is then in the inputs of others: it changes several contributions, of up to one clip norm each.",
    fix="Compute dataset[i] from record i and public constants; augment within a record.",
    code="dpspec_recording.rules.mixing_dataset:MixingDataset",
)

#: The number of records that are read again, and the largest numbers of values that are copied, of
#: tables or datasets, and of nested ones.
_READ, _MOST_VALUES, _MOST_TABLES, _DEPTH = 6, 2**24, 16, 4

#: The largest numbers of other arrays and numbers that are compared with the records, and of entries of a list
#: without a value for each record.
_MOST_CONSTANTS, _MOST_ENTRIES = 64, 64

#: The number of other records whose values a record gets until it changes: in a bin, it may not by the first.
_SHIFTS = 5

#: The change by the record's own row is larger than this multiple of the median one by several other rows: by
#: chance the record may read one of these.
_LARGER, _OTHERS = 3.0, 3

#: The factor of other records' features: a roll of the records keeps their mean and their range.
_SCALE = 1.5


@dataclass(frozen=True, kw_only=True)
class MixingFacts:
    """Records that were read again from the dataset of this class, and those that depend on the values of others."""

    read: Count = 0
    mixed: Count = 0
    dataset: str = ""


class MixingDataset(TrainingRule[MixingFacts]):
    kind = MixingFacts

    def __init__(self) -> None:
        self._loader: Any = None
        self._copies: list[Any] = []
        self._facts = MixingFacts()

    def start(self, setup: RuleSetup) -> None:
        """Copy the dataset without its records: it may compute statistics at its first record."""
        self._loader = setup.loader
        with contextlib.suppress(Exception):  # the dataset cannot be copied
            self._copies = [copied(dataset, len(dataset), unchanged) for dataset in datasets_of(setup.loader)]

    def stop(self) -> None:
        """Read some records again after the training."""
        loader, self._loader = self._loader, None
        copies, self._copies = self._copies, []
        if loader is None:
            return
        for dataset in (*copies, *datasets_of(loader)):
            with contextlib.suppress(Exception):  # the dataset cannot be read
                read, mixed = mixed_records(dataset)
                if mixed or read > self._facts.read:
                    self._facts = MixingFacts(read=read, mixed=mixed, dataset=type(dataset).__name__[:60])
            if self._facts.mixed:
                return

    def facts(self) -> MixingFacts:
        return self._facts

    @staticmethod
    def caution(facts: MixingFacts, run: RuleRun) -> str:
        if not facts.mixed:
            return ""
        return (
            f"{facts.mixed} of {facts.read} records that were read again from {facts.dataset} have other values if "
            "other records of the dataset change: __getitem__ mixes records, uses their ranks or statistics, or keeps "
            "a state of those that it read before."
        )


def datasets_of(loader: Any) -> list[Any]:
    """The datasets of a loader, inside of ``Subset`` and ``ConcatDataset``."""
    from torch.utils.data import ConcatDataset, Subset

    datasets, inner = [getattr(loader, "dataset", None)], list[Any]()
    while datasets:
        dataset = datasets.pop()
        if isinstance(dataset, Subset):
            datasets.append(dataset.dataset)
        elif isinstance(dataset, ConcatDataset):
            datasets += dataset.datasets
        elif hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
            inner.append(dataset)
    return inner[:_MOST_TABLES]


def mixed_records(dataset: Any) -> tuple[int, int]:
    """Read some records of a dataset in which others have other values.

    Only the tables of its records count: ``dataset[i]`` changes with row i by more than with another row.
    A public table may have as many rows.

    Returns:
        The number of records that were read, and of those that depend on the values of others.
    """
    count = len(dataset)
    tables: dict[int, Any] = {}
    constants: dict[int, Any] = {}

    def collect(values: Any, is_table: bool) -> Any:
        if not is_table or len(values) >= count:
            (tables if is_table else constants).setdefault(id(values), values)
        return values

    copied(dataset, count, collect)
    if count < 2 or not 0 < len(tables) <= _MOST_TABLES:
        return 0, 0
    source, of_records = random.SystemRandom(), set(tables)
    reads: list[tuple[int, int, Any]] = []
    changed: set[int] = set()
    with restored_generators():
        for index in source.sample(range(count), min(_READ, count)):
            shift, *further = (source.randrange(1, count) for _ in range(_SHIFTS))
            record, again = (_read(dataset, index, unchanged) for _ in range(2))
            if distance(record, again):  # random numbers of other generators
                continue
            reads.append((index, shift, record))
            for number, values in tables.items():
                if distance(values[index], values[(index + shift) % count]):
                    used_shift, by_own = _moving_shift(dataset, index, record, number, [shift, *further])
                    rows = source.choices([row for row in range(count) if row != index], k=_OTHERS)
                    by_others = (
                        distance(record, _read(dataset, index, _Change({number}, _with_row, row, used_shift)))
                        for row in rows
                    )
                    changed |= {number} if by_own else set()
                    of_records -= set() if by_own > _LARGER * statistics.median(by_others) else {number}
        of_records &= changed
        derived = _derived(of_records, tables, constants)
        mixed = 0
        for index, shift, record in reads:
            changed_others = _Change(of_records, _with_others, index, shift)
            before = [(index + step) % count for step in (1, 2) if step % count]
            alone = record, _read(dataset, index, changed_others)
            after = (_read(dataset, index, change, before) for change in (unchanged, changed_others))
            mixed += (
                distance(*alone) > 0.0
                or distance(*after) > 0.0
                or any(_reads(dataset, index, record, value, tables[number]) for value, number in derived)
            )
    return (len(reads), mixed) if of_records else (0, 0)


def _moving_shift(dataset: Any, index: int, record: Any, number: int, shifts: list[int]) -> tuple[int, float]:
    """The first shift by which the record's own row of a table changes it, and its change; the last one if none."""
    by_own = 0.0
    for shift in shifts:
        by_own = distance(record, _read(dataset, index, _Change({number}, _with_row, index, shift)))
        if by_own:
            break
    return shift, by_own


def _derived(of_records: Collection[int], tables: Mapping[int, Any], constants: Mapping[int, Any]) -> list[Any]:
    """Pairs of a value that the dataset computed from its records, and the number (``id``) of their table."""
    candidates = [values for number, values in tables.items() if number not in of_records]
    candidates += [*constants.values()][:_MOST_CONSTANTS]
    return [(value, number) for value in candidates for number in of_records if is_derived(value, tables[number])]


def _reads(dataset: Any, index: int, record: Any, value: Any, table: Any) -> bool:
    """Whether a record changes if a value that follows from the table of all records does."""

    def change(values: Any, _: bool) -> Any:
        return with_other_values(values, table[index]) if values is value else values

    try:
        return distance(record, _read(dataset, index, change)) > 0.0
    except Exception:  # the dataset cannot be read with other values
        return False


@dataclass(frozen=True)
class _Change:
    """Gives some records of the tables with these numbers (``id``) other values."""

    tables: Collection[int]
    change: Callable[[Any, int, int], Any]
    index: int
    shift: int

    def __call__(self, values: Any, _: bool) -> Any:
        return self.change(values, self.index, self.shift) if id(values) in self.tables else values


#: Returns the values (n, ...) of all records, or others; with False, likewise for another array or number.
_Changes = Callable[[Any, bool], Any]


def unchanged(values: Any, _: bool) -> Any:
    """Leave all values."""
    return values


def _read(dataset: Any, index: int, change: _Changes, before: Collection[int] = ()) -> Any:
    """The record of a copy of the dataset whose values are changed, always with the same random numbers.

    before: the records that are read from the copy before.
    """
    clone = copied(dataset, len(dataset), change)
    for earlier in before:
        clone[earlier]
    return seeded_record(clone, index)


def seeded_record(dataset: Any, index: int) -> Any:
    """``dataset[index]``, with seeded generators, which :func:`restored_generators` restores."""
    import numpy as np
    import torch

    torch.default_generator.manual_seed(0)  # torch.manual_seed would seed devices too, whose noise is to stay secret
    np.random.seed(0)
    random.seed(0)
    return dataset[index]


def copied(dataset: Any, count: int, change: _Changes, depth: int = 0) -> Any:
    """A copy of a dataset, with changes of all attributes and global variables that have a value for each record."""
    kind = type(dataset)
    if has_records(dataset, count):
        return change(dataset, True)
    if depth > _DEPTH or hasattr(kind, "__del__") or not hasattr(dataset, "__dict__"):
        return dataset
    count = len(dataset) if hasattr(kind, "__len__") else count  # a nested dataset may have other records
    clone = object.__new__(_with_globals(kind, count, change, depth))
    for name, value in vars(dataset).items():
        clone.__dict__[name] = copied_value(value, count, change, depth)
    return clone


def copied_value(value: Any, count: int, change: _Changes, depth: int) -> Any:
    """A copy of an attribute or variable, with changes of those that have a value for each record, and of arrays."""
    import numpy as np
    import torch

    if has_records(value, count):
        return change(value, True)

    if array_of(value) is not None and (replaced := change(value, False)) is not value:
        return replaced
    if isinstance(value, torch.Generator):
        return value.clone_state()
    if isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
        return copy.deepcopy(value)
    if isinstance(value, torch.Tensor | np.ndarray):  # such as a running mean, which the dataset may write
        size = value.numel() if isinstance(value, torch.Tensor) else value.size
        return _cloned(value) if size <= _MOST_VALUES else value
    if isinstance(value, list | dict | set | collections.deque):  # such as a cache
        if isinstance(value, dict):
            return {key: copied_value(entry, count, change, _DEPTH) for key, entry in value.items()}
        if type(value) is list and len(value) <= _MOST_ENTRIES:  # such as the sorted columns
            return [copied_value(entry, count, change, _DEPTH) for entry in value]
        return copy.copy(value)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(copied_value(entry, count, change, depth) for entry in value)
    is_plain = getattr(type(value), "__new__", None) is object.__new__ and not isinstance(value, types.ModuleType)
    return copied(value, count, change, depth + 1) if is_plain and hasattr(value, "__dict__") else value


def _with_globals(kind: Any, count: int, change: _Changes, depth: int) -> Any:
    """A class whose methods see changed values of those global variables that have a value for each record."""
    functions = {
        name: function
        for base in reversed(kind.__mro__)
        if base.__module__.partition(".")[0] not in ("builtins", "torch", "typing", "abc")
        for name, function in vars(base).items()
        if isinstance(function, types.FunctionType)
    }
    changed: dict[str, Any] = {}
    for name, function in functions.items():
        read = {key: function.__globals__[key] for key in function.__code__.co_names if key in function.__globals__}
        replaced_globals = {
            key: copied_value(value, count, change, depth) for key, value in read.items() if _is_data(value, count)
        }
        cells = tuple(_cell(cell, count, change, depth) for cell in function.__closure__ or ())
        if replaced_globals or any(
            cell is not old for cell, old in zip(cells, function.__closure__ or (), strict=True)
        ):
            values = {**function.__globals__, **replaced_globals}
            replaced = types.FunctionType(function.__code__, values, name, function.__defaults__, cells or None)
            replaced.__kwdefaults__ = function.__kwdefaults__
            changed[name] = replaced
    return type(kind.__name__, (kind,), changed) if changed else kind


def _cell(cell: Any, count: int, change: _Changes, depth: int) -> Any:
    try:
        value = cell.cell_contents
    except ValueError:  # empty
        return cell
    return types.CellType(copied_value(value, count, change, depth)) if _is_data(value, count) else cell


def _is_data(value: Any, count: int) -> bool:
    import numpy as np
    import torch

    kinds = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState, torch.utils.data.Dataset)
    return has_records(value, count) or isinstance(value, kinds)


def has_records(value: Any, count: int) -> bool:
    """Whether a value is a sequence with an entry for each record, and small enough to be copied."""
    import numpy as np
    import torch

    if isinstance(value, list | tuple):
        return len(value) == count
    if not isinstance(value, torch.Tensor | np.ndarray) or not value.ndim or len(value) != count:
        return False
    size = value.numel() if isinstance(value, torch.Tensor) else value.size
    return bool(size <= _MOST_VALUES)


def _with_row(values: Any, index: int, shift: int) -> Any:
    """Give a record the values of the one ``shift`` places on."""
    donor = (index + shift) % len(values)
    changed = _cloned(values)
    changed[index] = values[donor]
    return tuple(changed) if isinstance(values, tuple) else changed


def _with_others(values: Any, index: int, shift: int) -> Any:
    """Give all other records the values of the one ``shift`` places on, numbers times a factor."""
    import numpy as np
    import torch

    if isinstance(values, list | tuple):
        changed = [*values[shift:], *values[:shift]]
        changed[index] = values[index]
        return tuple(changed) if isinstance(values, tuple) else changed
    if isinstance(values, torch.Tensor):
        rolled = values.detach().roll(-shift, 0)
        rolled = rolled * _SCALE if values.is_floating_point() else rolled
    else:
        rolled = np.roll(values, -shift, axis=0)
        rolled = rolled * values.dtype.type(_SCALE) if values.dtype.kind == "f" else rolled
    rolled[index] = values[index]
    return rolled


def _cloned(values: Any) -> Any:
    import torch

    if isinstance(values, torch.Tensor):
        return values.detach().clone()
    return list(values) if isinstance(values, tuple) else copy.copy(values)


def distance(first: Any, second: Any) -> float:
    """The sum of the absolute differences of two records; 1 for other texts or shapes, 0 for values of other types."""
    import numpy as np
    import torch

    if isinstance(first, dict) and isinstance(second, dict):
        return sum(distance(first[key], second[key]) for key in first) if first.keys() == second.keys() else 1.0
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return sum(map(distance, first, second)) if len(first) == len(second) else 1.0
    if isinstance(first, str | bytes) and isinstance(second, str | bytes):
        return float(first != second)
    if not all(isinstance(value, torch.Tensor | np.ndarray | np.generic | int | float) for value in (first, second)):
        return 0.0
    if _are_equal_tensors(first, second):
        return 0.0
    numbers = [
        np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value) for value in (first, second)
    ]
    if numbers[0].shape != numbers[1].shape:
        return 1.0
    if any(array.dtype.kind not in "fiub" for array in numbers):
        return float(not np.array_equal(numbers[0], numbers[1]))
    return float(np.nansum(np.abs(numbers[0].astype(np.float64) - numbers[1].astype(np.float64))))


def _are_equal_tensors(first: Any, second: Any) -> bool:
    """Whether two tensors have the same values; several times faster than their distance."""
    import torch

    if not (type(first) is type(second) is torch.Tensor and first.dtype == second.dtype):
        return False
    return first.device == second.device and torch.equal(first, second)


@contextlib.contextmanager
def restored_generators() -> Iterator[None]:
    """Restore the states of the generators of torch, NumPy and Python."""
    import numpy as np
    import torch

    host_states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(host_states[0])
        np.random.set_state(host_states[1])
