"""Scores of all canaries under one model, by one rule that does not depend on the inclusion bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.errors import UsageError
from dpspec.recording.folder.canaries import Array

#: The loss of each record of a batch, (b,), under a model.
Loss = Callable[[Any, Any], Tensor]


def scores_of(
    model: nn.Module, loss: Loss, canaries: Sequence[Any], collate: Callable[[list[Any]], Any], batch_size: int
) -> Array:
    """Minus the loss of each canary, (m,) float64, in evaluation mode.

    Raises ``UsageError`` if ``loss`` does not return one number per record, or returns NaN.
    """
    if type(batch_size) is not int or batch_size < 1:
        raise UsageError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
    found: list[Array] = []
    with _evaluated(model), torch.no_grad():
        for start in range(0, len(canaries), batch_size):
            batch = list(canaries[start : start + batch_size])
            losses = loss(model, collate(batch))
            if not isinstance(losses, Tensor) or tuple(losses.shape) != (len(batch),):
                what = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
                raise UsageError(
                    f"loss(model, batch) must give the loss of each of {len(batch)} records, shape ({len(batch)},), "
                    f"got {what}: give a loss of torch reduction='none'"
                )
            found.append(-losses.detach().double().cpu().numpy())
    values: Array = np.concatenate(found)
    require_numbers(values, "check the weights of the model, and the loss")
    return values


def require_numbers(scores: Array, advice: str) -> None:
    unusable = np.flatnonzero(np.isnan(scores))
    if unusable.size:
        raise UsageError(
            f"{unusable.size} of {len(scores)} canaries have the score NaN, canary {unusable[0]} first: a score must "
            f"be a number; {advice}"
        )


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
