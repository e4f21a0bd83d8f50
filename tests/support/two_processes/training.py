"""The model, the data and Opacus' parts of a training on two processes."""

from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import nn
from torch.utils.data import DataLoader


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.layers(x), labels)}


def records() -> list[dict[str, torch.Tensor]]:
    x = torch.randn(600, 20, generator=torch.Generator().manual_seed(0))
    return [{"x": row, "labels": (row[0] > 0).long()} for row in x]


def private_parts(fault: str) -> tuple[Any, Any, Any, Any]:
    """Model, optimizer, loader and engine. Fault ``alone``: a model that Opacus does not know to be distributed."""
    torch.seed()
    model: Any = Classifier() if fault == "alone" else DifferentiallyPrivateDistributedDataParallel(Classifier())
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(records(), batch_size=60),  # type: ignore[arg-type]
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return model, optimizer, loader, engine
