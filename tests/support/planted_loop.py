"""Recorded DP-SGD of a logistic regression in plain torch on a dataset with canaries, correct or with a fault.

Each canary has a feature of its own, whose weight alone depends on its inclusion.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import TensorDataset

import dpspec
from dpspec_recording.planting.planted import Planted

RECORDS, FEATURES = 200, 5
RATE, STEPS, SIGMA, CLIP = 0.1, 40, 1.5, 1.0

#: Added to seeds of noise and batches: smaller ones are guessable, and a caution.
SECRET = 1 << 60


def planted_data(seed: int, canaries: int = 400) -> Planted:
    """Return records without the canaries' features, and canaries; ``seed`` draws the inclusion bits too."""
    chance = torch.Generator().manual_seed(seed)
    x = torch.cat([torch.randn(RECORDS, FEATURES, generator=chance), torch.zeros(RECORDS, canaries)], dim=1)
    y = (x[:, 0] > 0).float()
    own = torch.cat([torch.zeros(canaries, FEATURES), 20.0 * torch.eye(canaries)], dim=1)
    return dpspec.plant(TensorDataset(x, y), records=[(row, torch.tensor(1.0)) for row in own], seed=seed)


def loss(model: Any, batch: Any) -> torch.Tensor:
    return binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1], reduction="none")


def train(folder: Path, seed: int = 0, fault: str = "", canaries: int = 400) -> tuple[Any, nn.Module, Planted]:
    """Train, and return the recorder, the model and the data.

    fault: ``no-noise``: report noise that the step does not add, and give no optimizer to the recorder, which could
    detect that; ``trained-on``: train one more step without noise after the block.
    """
    planted, chance = planted_data(seed, canaries), torch.Generator().manual_seed(SECRET + seed)
    model = nn.Linear(FEATURES + canaries, 1, bias=False)
    nn.init.zeros_(model.weight)
    divisor = RATE * len(planted)
    meant = {"noise_multiplier": SIGMA, "clip_norm": CLIP, "rate": RATE}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    seen = None if fault == "no-noise" else optimizer
    with dpspec.record(folder, model=model, optimizer=seen, planted=planted, **meant) as run, torch.no_grad():
        for _ in range(STEPS):
            drawn = (torch.rand(len(planted), generator=chance) < RATE).nonzero().squeeze(1)
            rows = _gradients(model, planted, drawn)
            norms = rows.norm(dim=1)
            factors = (CLIP / norms.clamp_min(1e-12)).clamp_max(1.0)
            noise = SIGMA * CLIP * torch.randn(rows.shape[1], generator=chance)
            clipped = (factors[:, None] * rows).sum(0)
            total = clipped + (0.0 if fault == "no-noise" else 1.0) * noise
            model.weight.grad = total.reshape(1, -1) / divisor
            optimizer.step()
            run.sampled(drawn)
            run.clipped(norms * factors)
            run.summed(clipped)
            run.noised(noise)
            run.stepped()
    if fault == "trained-on":
        with torch.no_grad():
            model.weight -= 0.1 * _gradients(model, planted, torch.arange(len(planted))).sum(0)
    return run, model, planted


def _gradients(model: nn.Module, planted: Planted, drawn: torch.Tensor) -> torch.Tensor:
    """Return the gradients of the drawn records, (b, d)."""
    x, y = (torch.stack(part) for part in zip(*planted.__getitems__(drawn.tolist()), strict=True))
    return (torch.sigmoid(model(x)) - y[:, None]) * x
