"""Whether the row of a record in a batch depends on other records: a ``collate_fn`` that mixes, or keeps a state.

The mistake: a record is in the inputs of others, and so in several clipped gradients::

    def collate(rows):
        x = torch.stack(rows)
        running.lerp_(x.mean(0), 0.1)
        return x - running

After the training, copies of the function collate a record with two sets of others, and after two other batches, with
the same random numbers. The record's row must be in both results.
"""

import contextlib
import functools
import random
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, TrainingRule
from dpspec.json_records import Count
from dpspec_recording.rules.mixing_dataset import copied_value, restored_generators, unchanged

RULE = Rule(
    name="mixing-collate",
    summary="the collate function gives a record another row if other records are in its batch, or in earlier ones",
    why="A record is then in the inputs of others: it changes several contributions, of up to one clip norm each.",
    fix="Compute each row from its record and public constants, without statistics of a batch or of earlier ones.",
    code="dpspec_recording.rules.mixing_collate:MixingCollate",
)

#: The number of records whose rows are compared, and of the others in a batch.
_READ, _OTHERS = 4, 7

#: Relative difference up to which two rows are equal: of sums of floats in another order.
_ROUNDING = 1e-5

#: Packages whose functions keep no state of a script.
_LIBRARIES = ("torch", "numpy")

#: The functions that an object calls, as Opacus' collate function calls the script's.
_FUNCTIONS = types.FunctionType, types.MethodType, functools.partial


@dataclass(frozen=True, kw_only=True)
class CollateFacts:
    """Records that were collated again, and those whose row depends on others, of a batch or of earlier batches."""

    read: Count = 0
    mixed: Count = 0
    carried: Count = 0


class MixingCollate(TrainingRule[CollateFacts]):
    kind = CollateFacts

    def __init__(self) -> None:
        self._loader: Any = None
        self._facts = CollateFacts()

    def start(self, setup: RuleSetup) -> None:
        """Keep the loader."""
        self._loader = setup.loader

    def stop(self) -> None:
        """Collate some records again after the training."""
        loader, self._loader = self._loader, None
        if getattr(loader, "batch_sampler", None) is not None:
            with contextlib.suppress(Exception):  # records that cannot be read or collated again
                self._facts = _collated_again(loader)

    def facts(self) -> CollateFacts:
        return self._facts

    @staticmethod
    def caution(facts: CollateFacts, run: RuleRun) -> str:
        if facts.mixed:
            return (
                f"{facts.mixed} of {facts.read} records that were collated again have another row if other records are "
                "in the batch: the collate function mixes records, or scales by their statistics."
            )
        if facts.carried:
            return (
                f"{facts.carried} of {facts.read} records that were collated again have another row after other "
                "batches: the collate function keeps a state of records, as a running mean."
            )
        return ""


def _collated_again(loader: Any) -> CollateFacts:
    from dpspec_recording.step_replay.loaded_batch import original_collate

    dataset, collate = loader.dataset, original_collate(loader)
    count, source = len(dataset), random.SystemRandom()
    if count < 1 + 2 * _OTHERS:
        return CollateFacts()
    read = mixed = carried = 0
    with restored_generators():
        for _ in range(_READ):
            record, *further = (dataset[index] for index in source.sample(range(count), 1 + 2 * _OTHERS))
            companions = further[:_OTHERS], further[_OTHERS:]
            batches = [[record, *records] for records in companions]
            first, again = (_rows(FunctionCopies().of(collate), batches[0]) for _ in range(2))
            if not first or not _share_rows(first, again):  # random numbers of other generators
                continue
            read += 1
            mixed += not _share_rows(first, _rows(FunctionCopies().of(collate), batches[1]))
            after = []
            for before in companions:
                copied = FunctionCopies().of(collate)
                _rows(copied, before)
                after.append(_rows(copied, batches[0]))
            carried += not _share_rows(*after)
    return CollateFacts(read=read, mixed=mixed, carried=carried)


def _rows(collate: Callable[[Any], Any], records: Sequence[Any]) -> list[Any]:
    """The tensors of a batch with a row for each record, always with the same random numbers."""
    import numpy as np
    import torch

    from dpspec_recording.step_replay.loaded_batch import rows_of

    torch.default_generator.manual_seed(0)  # torch.manual_seed would seed devices too, whose noise is to stay secret
    np.random.seed(0)
    random.seed(0)
    return [tensor.detach().clone() for tensor in rows_of(collate([*records]), len(records))]


def _share_rows(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether each tensor has a row that is in both batches; their order may differ, and other widths are padding."""
    return all(
        left.shape != right.shape or _has_common_row(left, right) for left, right in zip(first, second, strict=False)
    )


def _has_common_row(first: Any, second: Any) -> bool:
    left, right = (tensor.reshape(len(tensor), 1, -1).double() for tensor in (first, second))
    largest = left.abs().amax(dim=2) + right.transpose(0, 1).abs().amax(dim=2)
    distances = (left - right.transpose(0, 1)).abs().amax(dim=2)
    return bool((distances <= _ROUNDING * largest).any())


class FunctionCopies:
    """Copies of functions with the state that a call may write: global variables, closures and objects."""

    def __init__(self) -> None:
        self._globals: dict[int, dict[str, Any]] = {}

    def of(self, value: Any) -> Any:
        """A copy of a function, a method, a partial function, a callable object or data."""
        if isinstance(value, functools.partial):
            arguments = {name: self.of(argument) for name, argument in value.keywords.items()}
            return functools.partial(self.of(value.func), *map(self.of, value.args), **arguments)
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self.of(value.__self__))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        copied = copied_value(value, -1, unchanged, 0)  # as if without records, so that no table is shared
        if copied is not value and hasattr(copied, "__dict__"):
            functions = {name: part for name, part in vars(copied).items() if isinstance(part, _FUNCTIONS)}
            copied.__dict__.update({name: self.of(part) for name, part in functions.items()})
        return copied

    def _function(self, function: types.FunctionType) -> Any:
        if (function.__module__ or "").partition(".")[0] in _LIBRARIES:
            return function
        variables = self._globals.get(id(function.__globals__))
        if variables is None:
            variables = self._globals[id(function.__globals__)] = {**function.__globals__}
        for name in _names(function.__code__):
            if name in variables and variables[name] is function.__globals__.get(name):
                variables[name] = function  # of a recursive function, until it is copied
                variables[name] = self.of(function.__globals__[name])
        cells = tuple(map(self._cell, function.__closure__ or ()))
        copied = types.FunctionType(
            function.__code__, variables, function.__name__, function.__defaults__, cells or None
        )
        copied.__kwdefaults__ = function.__kwdefaults__
        return copied

    def _cell(self, cell: Any) -> Any:
        try:
            return types.CellType(self.of(cell.cell_contents))
        except ValueError:  # empty
            return cell


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of global variables that a function uses, or a function inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
