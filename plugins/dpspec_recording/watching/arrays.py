"""Arrays of another library, such as JAX or NumPy, in place of tensors: parameters, and updates that a loop reports.

No library is imported: arrays are converted by NumPy. The parameters of such a training are copies in torch, and the
optimizer moves them to the arrays that the loop reports. If the loop gives its optimizer of optax, the recorder
repeats each update from the reported gradients, with its own copy of the optimizer's state.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from types import CellType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.errors import UsageError

#: The packages of the functions of an optimizer of optax, which an integration may wrap, and of the values in their
#: closures.
_LIBRARIES = ("optax", "jax", "jaxlib", "builtins", "dpspec_recording")
_VALUES = (*_LIBRARIES, "numpy", "inspect")

#: Roundings of an update relative to its largest coordinate: a compiled update fuses operations of a separate one.
_ROUNDINGS = 64.0


def tensor_of(array: Any) -> Tensor:
    """A copy of an array of numbers; a tensor is returned unchanged."""
    if isinstance(array, Tensor):
        return array
    copy = np.array(array)
    if copy.dtype.kind not in "fiub" or copy.dtype.name not in np.sctypeDict:
        raise UsageError(f"arrays must hold numbers of a type of NumPy, got {copy.dtype}")
    return torch.from_numpy(copy)


def tensors_of(arrays: Any) -> Tensor | list[Tensor]:
    """The tensor of one array, or the tensors of several arrays."""
    return tensor_of(arrays) if hasattr(arrays, "__array__") else [tensor_of(array) for array in arrays]


class ArrayModel(nn.Module):
    """Copies of a model's arrays."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        super().__init__()
        copies = [tensor_of(array).detach().clone() for array in arrays]
        unsupported = next((copy.dtype for copy in copies if copy.dtype not in (torch.float32, torch.float64)), None)
        if unsupported is not None:
            raise UsageError(f"arrays of the model must be float32 or float64, got {unsupported}")
        self.arrays = nn.ParameterList([nn.Parameter(copy) for copy in copies])


class ReportedUpdates(torch.optim.Optimizer):
    """Moves the copies to the reported arrays, and repeats the update of an optimizer of optax.

    Attributes:
        kind: The optimizer whose updates are not repeated; empty if they are.
        steps: The number of updates.
        different: The number of repeated updates with another result.
        failed: The number of updates that cannot be repeated.
        hooks: Empty: a step calls no function of the script.
    """

    def __init__(self, model: ArrayModel, rule: Any) -> None:
        """rule: optax's gradient transformation, or None. ``UsageError`` for anything else."""
        super().__init__(model.arrays.parameters(), {})
        fits = rule is None or all(callable(getattr(rule, name, None)) for name in ("init", "update"))
        if not fits:
            raise UsageError(f"the optimizer of arrays must be one of optax, or None, got {type(rule).__name__}")
        self.kind = "LoopUpdate" if rule is None else _kind(rule)
        self._rule = None if self.kind else rule
        self._parameters = list(model.arrays.parameters())
        self._reported: list[Tensor] = []
        self._gradients: list[Any] = []
        self._memory = None if self._rule is None else self._rule.init(self._arrays())
        self.steps = self.different = self.failed = 0
        self.hooks: list[str] = []

    @property
    def is_recomputed(self) -> bool:
        """Whether updates are repeated."""
        return self._rule is not None

    @property
    def recomputed(self) -> int:
        """The number of repeated updates."""
        return self.steps - self.failed

    def report(self, parameters: Iterable[Any], gradients: Iterable[Any] | None) -> None:
        """Keep the arrays after a step, and the gradients that the script's optimizer got. Then call :meth:`step`."""
        self._reported = self._fitting("parameters", parameters)
        self._gradients = [] if gradients is None else self._fitting("gradients", gradients)
        for number, p in enumerate(self._parameters):
            p.grad = self._gradients[number].to(p.dtype) if self._gradients else None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move the copies to the reported arrays."""
        for p, new in zip(self._parameters, self._reported, strict=True):
            p.copy_(new)

    def before_step(self, *, audited: bool = True) -> None:
        """Repeat the update before the copies move."""
        if self._rule is None:
            return
        self.steps += 1
        try:
            before = self._arrays()
            updates, self._memory = self._rule.update([g.numpy() for g in self._gradients], self._memory, before)
            expected = [p + np.asarray(update) for p, update in zip(before, updates, strict=True)]
        except Exception:  # code of the script's libraries
            self.failed += 1
            return
        pairs = zip(before, expected, self._reported, strict=True)
        self.different += not all(_close(p, expected_array, new.numpy()) for p, expected_array, new in pairs)

    def after_step(self, *, compared: bool = False) -> None:
        """Nothing: the update was repeated before."""

    def _arrays(self) -> list[Any]:
        return [p.detach().numpy().copy() for p in self._parameters]

    def _fitting(self, label: str, arrays: Iterable[Any]) -> list[Tensor]:
        tensors = [tensor_of(array) for array in arrays]
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if shapes != [tuple(p.shape) for p in self._parameters]:
            raise UsageError(f"{label} must be arrays of the shapes of the model, in its order, got {shapes}")
        return tensors


def _close(before: Any, expected: Any, reported: Any) -> bool:
    """Equal up to roundings of the parameter, and of the update relative to its largest coordinate."""
    unit = float(np.finfo(before.dtype).eps)
    largest = float(np.abs(expected - before).max(initial=0.0))
    tolerance = 2.0 * unit * np.maximum(np.abs(before), np.abs(expected)) + _ROUNDINGS * unit * largest
    return math.isfinite(largest) and bool((np.abs(reported - expected) <= tolerance).all())


def _kind(rule: Any) -> str:
    """The class of a rule with functions of the script, whose updates are not repeated; otherwise empty."""
    waiting, visited = [rule.init, rule.update], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in visited:
            continue
        visited.add(id(part))
        if isinstance(part, tuple | list):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
        elif not callable(part):
            if type(part).__module__.partition(".")[0] not in _VALUES:
                return type(rule).__name__
        elif isinstance(part, partial):
            waiting += [part.func, *part.args, *part.keywords.values()]
        elif str(getattr(part, "__module__", "")).partition(".")[0] not in _LIBRARIES:
            return type(rule).__name__
        else:
            waiting += [cell.cell_contents for cell in getattr(part, "__closure__", None) or () if cell != CellType()]
            waiting += [] if isinstance(part, type) else getattr(part, "__dict__", {}).values()
    return ""
