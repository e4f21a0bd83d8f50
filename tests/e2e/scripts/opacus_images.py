"""A team's script, of the shape of Opacus' own MNIST example: a small CNN, SGD with momentum, several epochs.

``fault`` breaks it as people break theirs.
"""

from __future__ import annotations

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SampleConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 5, 2, padding=2)
        self.conv2 = nn.Conv2d(8, 12, 4, 2)
        self.fc1 = nn.Linear(12 * 6 * 6, 24)
        self.fc2 = nn.Linear(24, 10)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def pictures(count=600):
    source = torch.Generator().manual_seed(5)
    y = torch.randint(0, 10, (count,), generator=source)
    x = 0.3 * torch.randn(count, 1, 28, 28, generator=source)
    for i, digit in enumerate(y.tolist()):
        x[i, 0, 2 * digit : 2 * digit + 6, 4:24] += 1.0
    return TensorDataset(x, y)


def train(model, optimizer, loader, epochs=2, fault=""):
    criterion = nn.CrossEntropyLoss()
    other = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            if fault == "noise-forgotten" and len(x) % 4 == 0:
                optimizer.noise_multiplier, kept = 0.0, optimizer.noise_multiplier
                optimizer.step()
                optimizer.noise_multiplier = kept
                continue
            optimizer.step()
            if fault == "wrong-optimizer":
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                other.step()


def main(folder=None, fault="", seed=0):
    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    model = SampleConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(pictures(), batch_size=30, shuffle=True),
        noise_multiplier=1.2,
        max_grad_norm=1.0,
    )
    if folder is None:
        train(model, optimizer, loader, fault=fault)
    else:
        import dpspec

        with dpspec.record(folder, model=model, optimizer=optimizer, loader=loader, engine=engine):
            train(model, optimizer, loader, fault=fault)
    return model, engine
