"""Whether the model holds records of the dataset: buffers, attributes, and parameters that begin with their values.

The mistake: the released buffer is a copy of records::

    model.register_buffer("prototypes", x[:10])
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep
from dpspec.json_records import Count
from dpspec_recording.observers.sensitivity.model_inputs import InputRule
from dpspec_recording.watching.memory_rows import attributes_with_rows, tensors_of

RULE = Rule(
    name="records-in-model",
    summary="a buffer, a parameter or an attribute of the model holds rows of the dataset",
    why="A released buffer is a copy of these records, and a forward pass that reads it makes others depend on them.",
    fix="Keep records out of the model: begin prototypes and inducing points with public or random values.",
    source="https://github.com/vanderschaarlab/synthcity/pull/64",
    code="dpspec_recording.observers.sensitivity.records_in_model:RecordsInModel",
)

#: The number of columns by which rows are searched, of candidates that are compared, and of named tensors.
_KEYS, _MOST_COMPARED, _MOST_NAMES = 8, 64, 20

#: The fewest different values of a row of real numbers and of integers: rows of fewer may be equal by chance.
_FEWEST_REAL, _FEWEST_INTEGERS = 4, 8

#: The largest tensor, in numbers, that is searched.
_MOST_NUMBERS = 2**26


@dataclass(frozen=True, kw_only=True)
class HeldRecords:
    """By the kind and name of a tensor of the model, the number of its rows that are records."""

    rows_by_tensor: Mapping[str, Count]


class RecordsInModel(InputRule[HeldRecords]):
    kind, early = HeldRecords, True

    def __init__(self) -> None:
        super().__init__()
        self._model: Any = None
        self._loader: Any = None
        self._input: Any = None
        self._held: dict[str, int] = {}

    def start(self, setup: RuleSetup) -> None:
        if not hasattr(setup.model, "named_modules"):
            return
        self._model, self._loader = setup.model, setup.loader
        self._search(_tables(setup.loader))
        super().start(setup)

    def observe(self, inputs: Mapping[str, Any]) -> None:
        """Keep the first inputs, for datasets that are not in memory."""
        first = next(iter(inputs.values()), None)
        self._input = None if first is None else _without_transforms(first)
        self.inspects = False

    def after_step(self, step: RuleStep) -> None:
        rows, self._input = self._input, None
        if rows is not None:
            super().stop()
            self._search([rows.detach()])

    def stop(self) -> None:
        """Search again after the training: a buffer may get records step by step.

        If an exception ends the block in the first step, that step is written after the rules stop.
        """
        super().stop()
        model, loader = self._model, self._loader
        rows, self._input = self._input, None
        if model is not None:
            with contextlib.suppress(Exception):
                self._search([*_tables(loader), *([] if rows is None else [rows.detach()])])
        self._model = self._loader = None

    def _search(self, tables: Sequence[Any]) -> None:
        from dpspec_recording.shards import local

        for kind, name, value in _values(self._model):
            label = f"{kind} {name}"[:100]
            count = max((rows_in(local(value), table) for table in tables), default=0)
            if count:
                self._held[label] = max(self._held.get(label, 0), count)

    def facts(self) -> HeldRecords:
        return HeldRecords(rows_by_tensor=dict(sorted(self._held.items())[:_MOST_NAMES]))

    @staticmethod
    def caution(facts: HeldRecords, run: RuleRun) -> str:
        named = [f"{name} holds {count} row{'' if count == 1 else 's'}" for name, count in facts.rows_by_tensor.items()]
        if not named:
            return ""
        omitted = f" and {len(named) - 3} more" if len(named) > 3 else ""
        text = f"{', '.join(named[:3])}{omitted} of the dataset: is the model that you release a copy of records?"
        return text[:1].upper() + text[1:]


def _without_transforms(tensor: Any) -> Any:
    """The tensor that transforms of ``torch.func`` wrap: with ``vmap`` it has all records of the batch."""
    from torch._C import _functorch

    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def _tables(loader: Any) -> list[Any]:
    """Tensors (n, ...) of the records of a loader, if they are in memory."""
    tensors = tensors_of(loader)
    return list(attributes_with_rows(loader) if tensors is None else tensors)


def _values(model: Any) -> Iterator[tuple[str, str, Any]]:
    """The kind, name and value of each tensor and array of a model."""
    import numpy as np
    import torch
    from torch import nn

    from dpspec_recording.watching.module_values import OF_OPACUS

    visited: set[int] = set()
    of_modules = {*vars(nn.Module()), *OF_OPACUS}
    for prefix, module in model.named_modules():
        prefix = f"{prefix.removeprefix('_module').lstrip('.')}."
        tensors_of_module = [("parameter", module._parameters), ("buffer", module._buffers)]
        attributes = {key: value for key, value in vars(module).items() if key not in of_modules}
        for kind, tensors in (*tensors_of_module, ("attribute", attributes)):
            for key, value in tensors.items():
                entries = value.values() if isinstance(value, dict) else value
                values = list(entries) if isinstance(value, dict | list | tuple) else [value]
                for tensor in values:
                    if isinstance(tensor, torch.Tensor | np.ndarray) and id(tensor) not in visited:
                        visited.add(id(tensor))
                        yield kind, f"{prefix}{key}".lstrip("."), tensor


def rows_in(tensor: Any, table: Any) -> int:
    """The number of rows of a tensor or array that are rows of a table (n, ...), up to its type of numbers."""
    import numpy as np
    import torch

    width = table[0].numel() if len(table) else 0
    fewest = _FEWEST_REAL if table.is_floating_point() else _FEWEST_INTEGERS
    values = (
        torch.as_tensor(tensor).detach() if not isinstance(tensor, np.ndarray) or tensor.dtype.kind in "fiub" else None
    )
    if values is None or values.layout != torch.strided or values.is_complex() or table.is_complex():
        return 0
    if width < fewest or values.dim() < 1 or not width <= values.numel() <= _MOST_NUMBERS or values.numel() % width:
        return 0
    rows = table.detach().reshape(len(table), -1)
    keys = torch.linspace(0, width - 1, min(_KEYS, width)).long()
    numbers = set(map(bytes, _bytes(rows[:, keys.to(rows.device)])))
    forms = [values.reshape(-1, width)]
    forms += [values.t().reshape(-1, width)] if values.dim() == 2 and len(values) == width else []
    most = 0
    for form in forms:
        cast = form.to(device=rows.device, dtype=rows.dtype)
        candidates = [
            number for number, key in enumerate(_bytes(cast[:, keys.to(rows.device)])) if bytes(key) in numbers
        ]
        compared = [cast[number] for number in candidates[:_MOST_COMPARED]]
        equal = sum(_different(row) >= fewest and bool((rows == row).all(1).any()) for row in compared)
        most = max(most, round(equal * len(candidates) / max(1, len(compared))))
    return most


def _different(row: Any) -> int:
    different: int = row.unique().numel()
    return different


def _bytes(rows: Any) -> Any:
    """The memory of each row, (n, bytes)."""
    import numpy as np
    import torch

    rows = rows.cpu().contiguous()
    rows = rows.view(torch.int16) if rows.dtype is torch.bfloat16 else rows
    return np.ascontiguousarray(rows.numpy()).view(np.uint8)
