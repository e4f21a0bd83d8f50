"""A team's script: a small transformer whose adapters (LoRA) and head are fine-tuned with Opacus, all else frozen.

``fault`` breaks the script as people break theirs.
"""

from __future__ import annotations

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS, LENGTH, WIDTH, HEADS = 50, 12, 16, 2


def sentences(count=400):
    source = torch.Generator().manual_seed(9)
    words = torch.randint(1, WORDS, (count, LENGTH), generator=source)
    return TensorDataset(words, (words < 8).any(1).long())


class Adapted(nn.Module):
    """A frozen layer with two small ones beside it."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, rank, bias=False), nn.Linear(rank, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.value = Adapted(nn.Linear(WIDTH, WIDTH)), Adapted(nn.Linear(WIDTH, WIDTH))
        self.key, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        for layer in (self.key, self.out, self.wide, self.narrow, self.first, self.second):
            layer.requires_grad_(False)

    def forward(self, x):
        q, k, v = (f(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        seen = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.first(x + self.out(seen))
        return self.second(x + self.narrow(torch.relu(self.wide(x))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH).requires_grad_(False)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(WIDTH, 2)

    def forward(self, words):
        return self.head(self.blocks(self.words(words)).mean(1))


def train(model, optimizer, loader, epochs=3, fault=""):
    frozen = next(p for name, p in model.named_parameters() if not p.requires_grad and "value" in name)
    for _ in range(epochs):
        for words, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(words), y)
            loss.backward()
            if fault == "noise-forgotten":
                optimizer.clip_and_accumulate()
                for p in optimizer.params:
                    p.grad = p.summed_grad / optimizer.expected_batch_size
                optimizer.original_optimizer.step()
            else:
                optimizer.step()
            if fault == "adapter-merged":
                with torch.no_grad():
                    frozen.add_(1e-3)


def main(folder=None, fault="", seed=0):
    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    model = Classifier()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    engine = PrivacyEngine(accountant="prv")
    model.train()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(sentences(), batch_size=40, shuffle=True),
        noise_multiplier=1.2,
        max_grad_norm=0.5,
    )
    if folder is None:
        train(model, optimizer, loader, fault=fault)
    else:
        import dpspec

        with dpspec.record(folder, model=model, optimizer=optimizer, loader=loader, engine=engine):
            train(model, optimizer, loader, fault=fault)
    return model, engine
