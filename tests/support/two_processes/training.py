"""The model, the data and Opacus' parts of a training on two processes, and its faults."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from dpspec.results.checked_run import CheckedRun
from support.opacus_training import SECRET


def cases() -> Iterator[tuple[Path, str]]:
    """A folder and a name for each fault of the command line ``FOLDER FAULT...``; an empty name is a sound training."""
    for number, fault in enumerate(sys.argv[2:]):
        yield Path(sys.argv[1]) / f"run-{number}", fault


class Classifier(nn.Module):
    """fault ``mixed``: the loss compares the records of a batch."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 2))
        self.mixed = fault == "mixed"

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits - logits.mean(0) if self.mixed else logits, labels)}


def records() -> list[dict[str, torch.Tensor]]:
    x = torch.randn(600, 20, generator=torch.Generator().manual_seed(0))
    return [{"x": row, "labels": (row[0] > 0).long()} for row in x]


def private_parts(fault: str) -> tuple[Any, Any, Any, Any]:
    """Model, optimizer, loader and engine. Fault ``alone``: a model that Opacus does not know to be distributed."""
    torch.seed()
    model: Any = Classifier(fault)
    model = model if fault == "alone" else DifferentiallyPrivateDistributedDataParallel(model)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(records(), batch_size=60),  # type: ignore[arg-type]
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    data: Any = loader.dataset
    if fault == "draws of each rank":
        loader = DPDataLoader.from_data_loader(DataLoader(data, batch_size=30))
    if fault == "shuffled":
        loader = DataLoader(data, batch_size=30, sampler=DistributedSampler(data), drop_last=True)
    if fault in ("noise of each rank", "noise of no rank"):
        optimizer.rank = int(fault == "noise of no rank")  # rank 0 adds the noise
    if fault == "sums of each rank":
        optimizer.reduce_gradients = lambda: None
    if fault == "same noise":
        add_noise = optimizer.add_noise
        optimizer.add_noise = lambda: (torch.manual_seed(SECRET), add_noise())
    return model, optimizer, loader, engine


def summary(checked: CheckedRun) -> str:
    """``passed``, the certified epsilon and the words of the report, in a line."""
    (audit,) = checked.result.audits
    assert audit.recording is not None
    reasons = [verdict.reason for verdict in audit.verdicts]
    text = " ".join([*audit.recording.faults, audit.conformance.reason, *reasons, *checked.cautions])
    return f"{'passed' if checked.passed else 'failed'} {checked.epsilon} {' '.join(text.split())}"
