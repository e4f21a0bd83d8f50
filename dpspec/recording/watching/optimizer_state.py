"""What an optimizer remembers between its steps (momentum, second moments): whether anybody else changed it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class OptimizerState:
    """Counts the steps that begin with another state than the last one left behind."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._left: Tensor | None = None
        self._restated: Tensor | None = None

    @property
    def restated(self) -> int:
        """How many steps did."""
        return 0 if self._restated is None else int(self._restated)

    @property
    def kind(self) -> str:
        """The optimizer's class with its module; empty for those of torch itself."""
        kind = type(self._optimizer)
        return "" if kind.__module__.startswith("torch.optim") else f"{kind.__module__}.{kind.__qualname__}"[:100]

    def look_before(self) -> None:
        """The optimizer is about to step."""
        if self._left is None:
            return
        now = self._fingerprint()
        same = now.shape == self._left.shape and ((now == self._left) | (now.isnan() & self._left.isnan())).all()
        other = torch.as_tensor(same).logical_not().long().to(now.device)
        self._restated = other if self._restated is None else self._restated + other

    def look_after(self) -> None:
        """It has stepped."""
        self._left = self._fingerprint()

    @torch.no_grad()
    def _fingerprint(self) -> Tensor:
        """Two sums over each number or tensor of the state, (n, 2), bitwise equal where nothing touched them."""
        held = list(self._held())
        sums = [torch.stack([one.sum(dtype=torch.float64), one.square().sum(dtype=torch.float64)]) for one in held]
        device = next((one.device for one in sums if one.device.type != "cpu"), torch.device("cpu"))
        return torch.stack([one.to(device) for one in sums]) if sums else torch.zeros(0, 2, dtype=torch.float64)

    def _held(self) -> Iterator[Tensor]:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                yield from _numbers(self._optimizer.state.get(parameter))


def _numbers(value: Any) -> Iterator[Tensor]:
    """The numbers and tensors in what may be nested."""
    if isinstance(value, Tensor):
        dense = value.detach()
        yield dense if dense.layout == torch.strided else dense.to_dense()
    elif isinstance(value, bool | int | float):
        yield torch.tensor(float(value), dtype=torch.float64)
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _numbers(one)
