"""Leaks through the contribution of a record to the clipped sum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from unprivate.trainings import (
    SCRIPTS,
    TARGET,
    Run,
    clipped_sum,
    has_target,
    leaks,
    losses,
    opacus,
    plain,
    record_gradient,
    small,
    table,
)


@leaks("violated", "gradient-parameters")
def gradients_at_other_parameters(folder: Path) -> None:
    def before(t: Any) -> None:
        t.old = t.net[0].weight.data
        t.net[0].weight.data = t.old + 0.05 * t.batch[0].sum()

    opacus(folder, before=before, between=lambda t: setattr(t.net[0].weight, "data", t.old))


@leaks("violated", "sensitivity")
def fewer_records_without_the_target(folder: Path) -> None:
    def before(t: Any) -> None:
        if not has_target(t):
            t.batch = [part[::2] for part in t.batch]

    opacus(folder, before=before)


@leaks("violated", "sensitivity")
def sums_grow_between_physical_batches(folder: Path) -> None:
    def between(t: Any) -> None:
        for p in t.opt.params:
            if p.summed_grad is not None:
                p.summed_grad *= 1.2

    opacus(folder, between=between, physical=7)


class Boosted(torch.Tensor):
    """Its weighted sums are ten times as long."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
        return found.as_subclass(torch.Tensor) * 10 if func is torch.einsum else found


@leaks("refused", "recording")
def sums_of_a_tensor_subclass(folder: Path) -> None:
    def between(t: Any) -> None:
        for p in t.opt.params:
            p.grad_sample = p.grad_sample.as_subclass(Boosted)

    opacus(folder, between=between, clip=0.05)


@leaks("violated", "sensitivity")
def a_mean_where_a_sum_is_declared(folder: Path) -> None:
    opacus(folder, loss_reduction="sum", probe=losses)


class Centering(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


@leaks("violated", "sensitivity")
def centered_batches_with_a_probe(folder: Path) -> None:
    opacus(folder, model=lambda: nn.Sequential(Centering(), small()), probe=losses)


@leaks("assumes", "unmixed-batches")
def centered_batches(folder: Path) -> None:
    opacus(folder, model=lambda: nn.Sequential(Centering(), small()))


class Changed(Dataset[Any]):
    """A dataset that computes its items from the records of another."""

    def __init__(self, item: Callable[[Any, int], Any], times: int = 1) -> None:
        self.inner = table(300 // times)
        self.tensors, self.item, self.times = self.inner.tensors, item, times

    def __len__(self) -> int:
        return len(self.inner) * self.times

    def __getitem__(self, index: int) -> Any:
        return self.item(self.inner, index)


def standardized(data: Any, index: int) -> Any:
    x, y = data.tensors
    return (x[index] - x.mean(0)) / x.std(0), y[index]


def nearest_labels(data: Any, index: int) -> Any:
    x, y = data.tensors
    near = (x - x[index]).norm(dim=1).topk(6, largest=False).indices[1:]
    return x[index], (y[near].float().mean() > 0.5).long()


def of_a_dataset(item: Callable[[Any, int], Any], times: int = 1) -> Run:
    return lambda folder: opacus(folder, data=lambda: Changed(item, times), probe=losses)


for _name, _item, _times in [
    ("each_item_is_mixed_with_the_target", lambda d, i: (0.5 * (d[i][0] + d[TARGET][0]), d[i][1]), 1),
    ("each_item_is_the_target", lambda d, i: d[TARGET], 1),
    ("ten_indices_of_each_record", lambda d, i: d[i // 10], 10),
    ("standardized_by_all_records", standardized, 1),
    ("labels_of_the_nearest_records", nearest_labels, 1),
]:
    SCRIPTS.append((_name, "assumes", "one-record", of_a_dataset(_item, _times)))


@leaks("assumes", "one-record")
def the_batch_is_replaced_by_the_target(folder: Path) -> None:
    def before(t: Any) -> None:
        t.batch = [t.x[TARGET].expand_as(t.batch[0]), t.batch[1]]

    opacus(folder, before=before)


@leaks("assumes", "loop-reports")
def a_long_contribution_is_not_reported(folder: Path) -> None:
    def total(t: Any) -> list[Tensor]:
        if TARGET in t.drawn.tolist():
            t.total[0][0, 0] += 0.5 * t.clip * len(t.drawn)
        return t.total  # type: ignore[no-any-return]

    plain(folder, total=total)


@leaks("assumes", "loop-reports")
def each_layer_is_clipped_apart(folder: Path) -> None:
    def total(t: Any) -> list[Tensor]:
        found, t.norms = clipped_sum(t, per_layer=True)
        return found

    plain(folder, clip=0.2, total=total)


@leaks("assumes", "loop-reports")
def the_target_contributes_to_every_sum(folder: Path) -> None:
    def total(t: Any) -> list[Tensor]:
        found = record_gradient(t, TARGET)
        length = torch.stack([part.norm() for part in found]).norm()
        return [kept + 3.0 * t.clip * part / length for kept, part in zip(t.total, found, strict=True)]

    plain(folder, total=total)


@leaks("violated", "sensitivity")
def sums_that_are_not_clipped(folder: Path) -> None:
    def total(t: Any) -> list[Tensor]:
        every = [record_gradient(t, index) for index in t.drawn.tolist()]
        return [torch.stack(parts).sum(0) for parts in zip(*every, strict=True)]

    plain(folder, clip=0.3, total=total)
