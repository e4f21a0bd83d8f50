"""A team's script: Lightning's Trainer around a model, an optimizer and a loader that Opacus made private.

``fault`` breaks it as people break theirs.
"""

from __future__ import annotations

import warnings

import lightning
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def rows(count=500, features=12):
    source = torch.Generator().manual_seed(4)
    x = torch.randn(count, features, generator=source)
    return TensorDataset(x, (x[:, 0] > 0).long())


class Task(lightning.LightningModule):
    def __init__(self, model, optimizer, fault=""):
        super().__init__()
        self.model, self.private, self.fault = model, optimizer, fault

    def training_step(self, batch, number):
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def configure_optimizers(self):
        return self.private

    def on_before_optimizer_step(self, optimizer):
        if self.fault == "noise-forgotten" and self.global_step % 3 == 0:
            self.private.noise_multiplier = 0.0
        elif self.fault == "noise-forgotten":
            self.private.noise_multiplier = 1.1

    def on_train_batch_end(self, outputs, batch, number):
        if self.fault == "head-fitted":
            with torch.no_grad():
                list(self.model.parameters())[-1][0] += 0.01 * (batch[1] == 0).float().mean()


def main(folder=None, fault="", seed=0):
    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(rows(), batch_size=50, shuffle=True),
        noise_multiplier=1.1,
        max_grad_norm=1.0,
        poisson_sampling=fault != "shuffled",
    )
    if fault == "told-another-rate":
        optimizer.attach_step_hook(engine.accountant.get_optimizer_hook_fn(sample_rate=1 / 40))
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    task = Task(model, optimizer, fault)
    if folder is None:
        trainer.fit(task, loader)
    else:
        import dpspec

        with dpspec.record(folder, model=model, optimizer=optimizer, loader=loader, engine=engine):
            trainer.fit(task, loader)
    return model, engine
