"""A team's script: a classifier of tabular rows with Opacus, AdamW, a cosine schedule, virtual steps, early stopping.

The last lines of ``main`` before ``train`` are all that a recording adds. ``fault`` breaks the script as people break
theirs.
"""

import contextlib
import warnings

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpspec

EPOCHS, DELTA, TARGET = 4, 1e-5, 4.0


def rows(count=1200, features=24):
    source = torch.Generator().manual_seed(11)
    x = torch.randn(count, features, generator=source)
    y = (x[:, 0] + 0.5 * x[:, 1] * x[:, 2] > 0).long()
    return TensorDataset(x, y)


def train(model, optimizer, loader, engine, physical=32, fault=""):
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    criterion, best, patience = nn.CrossEntropyLoss(), float("inf"), 2
    for _ in range(EPOCHS):
        total = 0.0
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer) as batches:
            for x, y in batches:
                if fault == "last-virtual-step-dropped" and len(x) < 30:
                    continue
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                if fault == "wrong-optimizer":
                    optimizer.original_optimizer.step()
                else:
                    optimizer.step()
                total += float(loss.detach())
        schedule.step()
        if engine.accountant.history and engine.get_epsilon(DELTA) > TARGET + 0.5:
            break
        patience = patience if total < best else patience - 1
        best = min(best, total)
        if patience == 0:
            break


def main(folder=None, fault="", seed=0):
    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(rows(), batch_size=100, shuffle=True),
        target_epsilon=TARGET,
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=1.0,
        poisson_sampling=fault != "shuffled",
    )
    if fault == "told-another-rate":
        optimizer.attach_step_hook(engine.accountant.get_optimizer_hook_fn(sample_rate=1 / 40))
    parts = {"model": model, "optimizer": optimizer, "loader": loader, "engine": engine}
    with contextlib.nullcontext() if folder is None else dpspec.record(folder, **parts):
        train(model, optimizer, loader, engine, fault=fault)
    return model, engine
