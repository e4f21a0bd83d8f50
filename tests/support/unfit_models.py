"""Models that somebody may offer and that cannot be trained by example, or not on the data at hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from dpspec.contract import Facts, FrozenMap, Model
from dpspec.contract.catalog import Catalog, Offered


class Factory:
    """Builds what the subclass says, with one parameter declared too few or too many for none."""

    def __init__(self, options: FrozenMap, facts: Facts) -> None:
        self._facts = facts

    def parameters(self) -> int:
        return sum(p.numel() for p in self.build(0).parameters())

    def build(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.module(self._facts.features, self._facts.classes)

    def module(self, features: int, classes: int) -> nn.Module:
        raise NotImplementedError


class Dropping(Factory):
    def module(self, features: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 8), nn.Dropout(0.5), nn.Linear(8, classes))


class TooNarrow(Factory):
    def module(self, features: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features + 3, 8), nn.Linear(8, classes))


class Unflat(Factory):
    def module(self, features: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, classes), nn.Unflatten(1, (1, classes)))


class FewClasses(Factory):
    def module(self, features: int, classes: int) -> nn.Module:
        return nn.Linear(features, classes - 1)


class _Asks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if bool((x.sum() > 1e9).item()) else 2.0 * x


class Asking(Factory):
    def module(self, features: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 8), _Asks(), nn.Linear(8, classes))


class _Places(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.table = nn.Embedding(features, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table(torch.arange(x.shape[-1], device=x.device)).squeeze(-1)


class Positional(Factory):
    def module(self, features: int, classes: int) -> nn.Module:
        return nn.Sequential(_Places(features), nn.Linear(features, classes))


_SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def offered(catalog: Catalog) -> Catalog:
    """The catalog with all of these as kinds, by the names of their classes in lower case."""
    kinds: dict[str, Any] = {}
    for factory in (Dropping, TooNarrow, Unflat, FewClasses, Asking, Positional):
        kind = factory.__name__.lower()
        model = Model(kind=kind, summary="unfit", schema=_SCHEMA, factory=f"support.unfit_models:{factory.__name__}")
        kinds[kind] = Offered(provider=model, plugin="unfit", distribution="dpspec", version="1.0")
    return dataclasses.replace(catalog, models={**catalog.models, **kinds})
