"""Initial weights as an adversary chooses them: fitted to the real records, until these hardly move the model.

Annamalai & De Cristofaro 2024 ("Nearly tight black-box auditing of differentially private machine learning") start
training where it would have ended: the gradients of real records are short there, so that a canary's, which is clipped
like all others, is not drowned by what the model learns of them and by how that differs from run to run. The weights
are a function of the real records alone, without canaries and coins, and so the same for all runs that are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from dpspec.contract import ModelFactory
from dpspec.training.device import full_precision, tensors
from dpspec.training.seeds import generator

#: Training ends when the mean cross-entropy over a pass is no more than this, or after so many passes.
ENOUGH, _PASSES = 0.01, 200

#: Records in a batch, and Adam's learning rate.
_BATCH, _RATE = 256, 0.01

Array = np.ndarray[Any, Any]


class Fitted:
    """A :class:`~dpspec.contract.ModelFactory` whose modules all start from the same weights, fitted to the rows.

    They are fitted once, when the first module is built; the seed of a module decides nothing.
    """

    def __init__(
        self, factory: ModelFactory, rows: Callable[[], tuple[Array, Array]], device: Callable[[], str]
    ) -> None:
        """``rows``: features (n, ...) and labels (n,), at least one record."""
        self._factory = factory
        self._rows = rows
        self._device = device

    def parameters(self) -> int:
        """As many as unfitted."""
        return self._factory.parameters()

    def build(self, seed: int) -> nn.Module:
        """The module with the fitted weights."""
        module = self._factory.build(0)
        module.load_state_dict(self._weights)
        return module

    @cached_property
    def _weights(self) -> dict[str, torch.Tensor]:
        module = self._factory.build(0)
        fit(module, *self._rows(), device=self._device())
        return module.state_dict()


def fit(module: nn.Module, x: Array, y: Array, *, device: str = "cpu") -> float:
    """Fit a module to records (n, ...) and labels (n,) in place, on the CPU again afterwards: cross-entropy by Adam.

    Returns the mean loss of the last pass. Nothing is random but the order of records, which is always the same.
    Raises ``ValueError`` without records, and where the loss is no number.
    """
    if len(x) == 0:
        raise ValueError("initial weights are fitted to records, and there are none")
    features, labels = tensors(x, y, device)
    order, mean = generator(0, "pretraining"), 0.0
    module.to(device).eval()  # as it is attacked: nothing in it draws
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
                raise ValueError("initial weights cannot be fitted to the records: the loss is no number")
            if mean <= ENOUGH:
                break
    module.to("cpu").train()
    return mean
