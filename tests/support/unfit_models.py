"""Models of a plugin that do not support per-example gradients or do not fit the data."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from dpspec.contract import Facts, FrozenMap, Model
from dpspec.contract.catalog import Catalog, Offered


class Factory:
    def __init__(self, make: Callable[[int, int], nn.Module], options: FrozenMap, facts: Facts) -> None:
        self._make, self._facts = make, facts

    def parameters(self) -> int:
        return sum(p.numel() for p in self.build(0).parameters())

    def build(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._make(self._facts.features, self._facts.classes)


class _Asks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if bool((x.sum() > 1e9).item()) else 2.0 * x


class _Places(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.table = nn.Embedding(features, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table(torch.arange(x.shape[-1], device=x.device)).squeeze(-1)


Dropping = partial(Factory, lambda f, c: nn.Sequential(nn.Linear(f, 8), nn.Dropout(0.5), nn.Linear(8, c)))
TooNarrow = partial(Factory, lambda f, c: nn.Sequential(nn.Linear(f + 3, 8), nn.Linear(8, c)))
Unflat = partial(Factory, lambda f, c: nn.Sequential(nn.Linear(f, c), nn.Unflatten(1, (1, c))))
FewClasses = partial(Factory, lambda f, c: nn.Linear(f, c - 1))
Asking = partial(Factory, lambda f, c: nn.Sequential(nn.Linear(f, 8), _Asks(), nn.Linear(8, c)))
Positional = partial(Factory, lambda f, c: nn.Sequential(_Places(f), nn.Linear(f, c)))

_SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def offered(catalog: Catalog) -> Catalog:
    """Return the catalog with these models as kinds, by their names in lower case."""
    kinds: dict[str, Any] = {}
    for name in ("Dropping", "TooNarrow", "Unflat", "FewClasses", "Asking", "Positional"):
        kind = name.lower()
        model = Model(kind=kind, summary="unfit", schema=_SCHEMA, factory=f"support.unfit_models:{name}")
        kinds[kind] = Offered(provider=model, plugin="unfit", distribution="dpspec", version="1.0")
    return dataclasses.replace(catalog, models={**catalog.models, **kinds})
