"""Accuracy of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from dpspec.contract import LoadedData
from dpspec.training.gradients.persample import FlatModel


def accuracy(
    model: nn.Module | FlatModel,
    x: np.ndarray[Any, Any],
    y: np.ndarray[Any, Any],
    *,
    device: str | torch.device = "cpu",
    state: torch.Tensor | None = None,
    chunk: int = 1024,
) -> float:
    """Share of records ``x`` (n, ...), n >= 1, with the largest output at their label ``y`` (n,).

    ``state`` (P,) replaces the model's parameters. ``device`` applies unless the model has one.
    """
    if len(x) == 0:
        raise ValueError("no records to measure accuracy on")
    functional = model if isinstance(model, FlatModel) else FlatModel(model, device=device)
    at = functional.initial() if state is None else state
    right = 0
    with torch.no_grad():
        for start in range(0, len(x), chunk):
            some = torch.tensor(x[start : start + chunk], dtype=torch.float32, device=functional.device)
            labels = torch.tensor(y[start : start + chunk], dtype=torch.int64, device=functional.device)
            right += int((functional.logits(at, some).argmax(1) == labels).sum())
    return right / len(x)


def right_answers(
    model: nn.Module | FlatModel, data: LoadedData, device: str | torch.device = "cpu"
) -> dict[str, dict[str, int]]:
    """``{train: {right, records}, test: {right, records}}`` as stored in trials, without empty splits."""
    splits = {"train": (data.train_x, data.train_y), "test": (data.test_x, data.test_y)}
    return {
        name: {"right": round(accuracy(model, x, y, device=device) * len(x)), "records": len(x)}
        for name, (x, y) in splits.items()
        if len(x)
    }
