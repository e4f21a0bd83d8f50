"""Adversarial initial weights: fitted to the real records (Annamalai and De Cristofaro 2024).

Gradients of real records are small near convergence, so a canary's clipped gradient dominates. The weights depend only
on the real records and are the same for all compared runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from dpspec.contract import ModelFactory
from dpspec.training.device import full_precision, generator, tensors

#: Mean cross-entropy of a pass at which training stops, and the maximum number of passes.
TARGET_LOSS, _PASSES = 0.01, 200

#: Batch size and Adam's learning rate.
_BATCH, _RATE = 256, 0.01

Array = np.ndarray[Any, Any]


class PretrainedFactory:
    """A :class:`~dpspec.contract.ModelFactory` whose modules all start from the same fitted weights.

    The weights are fitted when the first module is built. The module's seed has no effect.
    """

    def __init__(
        self, factory: ModelFactory, rows: Callable[[], tuple[Array, Array]], device: Callable[[], str]
    ) -> None:
        """``rows`` returns features (n, ...) and labels (n,), n >= 1; ``device`` returns the device for fitting."""
        self._factory = factory
        self._rows = rows
        self._device = device

    def parameters(self) -> int:
        return self._factory.parameters()

    def build(self, seed: int) -> nn.Module:
        module = self._factory.build(0)
        module.load_state_dict(self._weights)
        return module

    @cached_property
    def _weights(self) -> dict[str, torch.Tensor]:
        module = self._factory.build(0)
        fit(module, *self._rows(), device=self._device())
        return module.state_dict()


def fit(module: nn.Module, x: Array, y: Array, *, device: str = "cpu") -> float:
    """Fit a module in place by cross-entropy and Adam, and move it back to the CPU. Returns the last mean loss.

    The order of records is deterministic. Raises ``ValueError`` without records, or if the loss is not finite.
    """
    if len(x) == 0:
        raise ValueError("initial weights cannot be fitted without records")
    features, labels = tensors(x, y, device)
    order, mean = generator(0, "pretraining"), 0.0
    module.to(device).eval()  # the mode of the attack, without random layers
    with full_precision(torch.device(device)), torch.enable_grad():
        optimizer = torch.optim.Adam(module.parameters(), lr=_RATE)
        for _ in range(_PASSES):
            total = 0.0
            for some in torch.split(torch.randperm(len(x), generator=order), _BATCH):
                at = some.to(device)
                losses = nn.functional.cross_entropy(module(features[at]), labels[at], reduction="none")
                optimizer.zero_grad()
                torch.autograd.backward(losses.mean())
                optimizer.step()
                total += float(losses.detach().sum())
            mean = total / len(x)
            if not np.isfinite(mean):
                raise ValueError("initial weights cannot be fitted to the records: the loss is not finite")
            if mean <= TARGET_LOSS:
                break
    module.to("cpu").train()
    return mean
