"""Small models, rows and jobs, the same for every test."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpspec.contract import FrozenMap, TrainingJob

SHAPES: dict[str, tuple[int, ...]] = {"mlp": (6,), "cnn": (1, 8, 8)}


def build(kind: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "mlp":
            return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3, bias=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16, 3),
        )


@pytest.fixture
def make_model() -> Callable[..., nn.Module]:
    return build


@pytest.fixture
def rows() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def make(kind: str, count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        source = torch.Generator().manual_seed(seed)
        x = torch.randn(count, *SHAPES[kind], generator=source)
        return x, torch.randint(0, 3, (count,), generator=source)

    return make


@pytest.fixture
def make_job(rows: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Callable[..., TrainingJob]:
    """A small job on the mlp (63 parameters); keyword arguments replace fields of the job or of its one phase."""

    def make(**changes: Any) -> TrainingJob:
        x, y = rows("mlp", 40)
        phase: dict[str, Any] = {
            "steps": 5,
            "noise_multiplier": 1.0,
            "clip_norm": 1.0,
            "sampling": {"scheme": "poisson", "rate": 0.25},
        }
        phase.update({key: changes.pop(key) for key in list(changes) if key in phase})
        fields: dict[str, Any] = {
            "x": x.numpy(),
            "y": y.numpy().astype(np.int64),
            "model": build("mlp"),
            "phases": (FrozenMap(phase),),
            "options": FrozenMap({"learning_rate": 0.5, "reduction": "mean"}),
            "expected_batch_size": 10.0,
            "device": "cpu",
            "seed": 11,
        }
        return TrainingJob(**{**fields, **changes})

    return make
