"""Scores of all canaries under one model, by one rule, which is not told of any coin."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.errors import UsageError
from dpspec.recording.planting.coins import Array, CoinSource

#: The loss of each record of a batch, (b,), under a model.
Loss = Callable[[Any, Any], Tensor]


def scores_of(
    model: nn.Module, loss: Loss, canaries: Sequence[Any], collate: Callable[[list[Any]], Any], batch_size: int
) -> Array:
    """Minus the loss of each canary, (m,) float64, in their order, with all modules in evaluation mode.

    Raises:
        UsageError: ``loss`` does not return one number per record, or returns NaN.
    """
    if type(batch_size) is not int or batch_size < 1:
        raise UsageError(f"batch_size must be a whole number from 1 on, got {batch_size!r}")
    found: list[Array] = []
    with _evaluated(model), torch.no_grad():
        for start in range(0, len(canaries), batch_size):
            batch = list(canaries[start : start + batch_size])
            told = loss(model, collate(batch))
            if not isinstance(told, Tensor) or tuple(told.shape) != (len(batch),):
                what = f"shape {tuple(told.shape)}" if isinstance(told, Tensor) else type(told).__name__
                raise UsageError(
                    f"loss(model, batch) must give the loss of each of {len(batch)} records, shape ({len(batch)},), "
                    f"got {what}: of a loss of torch, ask for it with reduction='none'"
                )
            found.append(-told.detach().double().cpu().numpy())
    values: Array = np.concatenate(found)
    require_numbers(values, "check the weights of the model, and the loss")
    return values


def require_numbers(scores: Array, advice: str) -> None:
    """Raise ``UsageError`` if a score, (m,), is NaN; ``advice`` ends the message."""
    unusable = np.flatnonzero(np.isnan(scores))
    if unusable.size:
        raise UsageError(
            f"{unusable.size} of {len(scores)} canaries have the score NaN, canary {unusable[0]} first: a score must "
            f"be a number; {advice}"
        )


def table(coins: Array, scores: Array, source: CoinSource) -> bytes:
    """The file of scores: an npz of ``coin`` (m,) int8, ``score`` (m,) float64, and ``secret``, which coins follow
    from."""
    content = io.BytesIO()
    secret = np.frombuffer(source.secret, dtype=np.uint8)
    np.savez(content, coin=coins.astype(np.int8), score=scores.astype(np.float64), secret=secret)
    return content.getvalue()


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    """Every module for evaluation, and afterwards each in the mode that it had."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
