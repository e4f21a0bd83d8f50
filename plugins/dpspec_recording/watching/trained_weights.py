"""Weights that a script trained before a recording, found again in its model or in tensors that its steps read.

Some values of a few tensors of each optimizer are kept after each step, on their device: a copy of such a tensor, as by
``copy.deepcopy`` or ``load_state_dict``, has the values after one of the steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

#: The number of tensors of an optimizer, of values of a tensor, and of last steps that are kept.
_TENSORS, _VALUES, _STEPS = 4, 8, 1024

#: The fewest different values of a tensor that equals another one by no chance, and the largest number of optimizers.
_FEWEST_VALUES, _MOST_OPTIMIZERS = 3, 100

#: The largest number of datasets that are kept.
_MOST_DATASETS = 20


class TrainedWeights:
    """Tensors that an optimizer trained.

    Attributes:
        name: The class of the optimizer, or the private training of the script.
        steps: The number of steps of the optimizer; 0 for a private training.
        datasets: References to the datasets of the loaders that the script iterated at these steps.
        loaded: Whether there was such a loader at each step.
    """

    def __init__(self, name: str, tensors: Iterable[Any]) -> None:
        """Before the first step."""
        self.name, self.steps, self.loaded = name, 0, True
        self.datasets: list[Callable[[], Any]] = []
        plain = [tensor for tensor in tensors if _is_plain(tensor)]
        last = max(1, min(_TENSORS, len(plain)) - 1)
        chosen = {number * (len(plain) - 1) // last for number in range(last + 1)} if plain else set()
        self._kept = [_Values(plain[index]) for index in sorted(chosen)]

    def note(self) -> None:
        """Note the present values."""
        with _unseen():
            for values in self._kept:
                values.note()

    def note_step(self, datasets: Sequence[Callable[[], Any]]) -> None:
        """Note the values after a step. datasets: of the loaders that are iterated at this moment."""
        self.steps += 1
        self.loaded &= bool(datasets)
        noted = {id(dataset()) for dataset in self.datasets}
        self.datasets += [dataset for dataset in datasets if id(dataset()) not in noted]
        self.loaded &= len(self.datasets) <= _MOST_DATASETS
        del self.datasets[_MOST_DATASETS:]
        self.note()

    def include(self, tensor: Any) -> bool:
        """Whether a tensor has the values of a trained tensor after a step."""
        return _is_plain(tensor) and any(values.equal(tensor) for values in self._kept)


class SteppedWeights:
    """The tensors of all optimizers of a script that are not of a private training."""

    def __init__(self) -> None:
        self._by_optimizer: WeakKeyDictionary[Any, TrainedWeights] = WeakKeyDictionary()
        self._all: list[TrainedWeights] = []

    def begin(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        if optimizer not in self._by_optimizer and len(self._all) < _MOST_OPTIMIZERS:
            tensors = [p for group in optimizer.param_groups for p in group["params"]]
            with _unseen():
                trained = TrainedWeights(type(optimizer).__name__[:60], tensors)
            self._by_optimizer[optimizer] = trained
            self._all.append(trained)

    def end(self, optimizer: Any, datasets: Sequence[Callable[[], Any]]) -> None:
        """An optimizer has stepped."""
        if (trained := self._by_optimizer.get(optimizer)) is not None:
            trained.note_step(datasets)

    def until_now(self) -> list[TrainedWeights]:
        """The weights of optimizers that have stepped."""
        return [trained for trained in self._all if trained.steps]


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """No mode of torch sees the operations, such as the trace of a step."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class _Values:
    """Values of a tensor before the first step, and after the last ones."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._shape, self._start = ref(tensor), tensor.shape, _values(tensor)
        self._rows = self._start.new_empty(_STEPS, len(self._start))
        self._count = 0

    def note(self) -> None:
        if (tensor := self._tensor()) is not None:
            self._rows[self._count % _STEPS] = _values(tensor)
            self._count += 1

    def equal(self, tensor: Tensor) -> bool:
        """Whether a tensor has the values after a step. Those before the first step were not trained."""
        if tensor.shape != self._shape:
            return False
        values = _values(tensor).to(self._start)
        if len(set(values.tolist())) < _FEWEST_VALUES or torch.equal(values, self._start):
            return False
        return bool((self._rows[: self._count] == values).all(1).any())


def _values(tensor: Tensor) -> Tensor:
    """Up to 8 values of a tensor, at places that follow from its shape."""
    flat = tensor.detach().reshape(-1)
    indices = torch.linspace(0, len(flat) - 1, min(_VALUES, len(flat)), dtype=torch.float64).long()
    return flat[indices.to(flat.device)].clone()


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor has values that can be compared."""
    is_plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and not tensor.is_meta
    return is_plain and tensor.is_floating_point() and tensor.numel() >= _FEWEST_VALUES
