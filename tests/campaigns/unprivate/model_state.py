"""Leaks through the state of the model or the optimizer, and through the released model."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from unprivate.trainings import SCRIPTS, Hook, Run, leaks, opacus, sgd, small


@leaks("violated", "model-state")
def records_behind_a_parameter(folder: Path) -> None:
    """The storage of a weight ends with records, and torch.save writes whole storages."""

    def late(t: Any) -> None:
        weight = t.net[0].weight
        both = torch.cat([weight.detach().reshape(-1), t.x.reshape(-1)])
        weight.data = both[: weight.numel()].view_as(weight)

    opacus(folder, late=late)


@leaks("violated", "model-state")
def records_in_metadata(folder: Path) -> None:
    def setup(t: Any) -> None:
        t.net.register_state_dict_post_hook(
            lambda module, state, prefix, _: state._metadata.update(note=t.x[: t.steps].tolist())
        )

    opacus(folder, setup=setup)


@leaks("violated", "model-state")
def records_from_a_state_dict_hook(folder: Path) -> None:
    """The hook adds records only for callers that do not keep variables."""

    def setup(t: Any) -> None:
        def hook(module: Any, state: Any, prefix: str, _: Any) -> None:
            if t.steps and not any(isinstance(value, nn.Parameter) for value in state.values()):
                state["memory"] = t.x[:3]

        t.net.register_state_dict_post_hook(hook)

    opacus(folder, setup=setup)


@leaks("violated", "model-state")
def records_in_a_buffer(folder: Path) -> None:
    def model() -> nn.Module:
        made = small()
        made.register_buffer("memory", torch.zeros(6), persistent=False)
        return made

    opacus(folder, model=model, after=lambda t: t.net.memory.add_(t.batch[0].sum(0)))


@leaks("violated", "update-rule")
def signs_of_zeros(folder: Path) -> None:
    """The signs of zeros of a weight that does not move are those of features."""

    def model() -> nn.Module:
        made = small()
        nn.init.zeros_(made[0].weight)  # type: ignore[index, arg-type]
        return made

    def groups(net: Any) -> Any:
        first, *others = net.parameters()
        return [{"params": [first], "lr": 0.0}, {"params": others}]

    def late(t: Any) -> None:
        t.net[0].weight.data.copy_(torch.where(t.x[:16] > 0, 0.0, -0.0))

    opacus(folder, model=model, parameters=groups, late=late)


@leaks("open", "model-state")
def another_class(folder: Path) -> None:
    def late(t: Any) -> None:
        t.net[1].__class__ = type("Tanh", (nn.Tanh,), {"memory": t.x})

    opacus(folder, late=late)


class Collector:
    """Keeps rows in a slot."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def add(self, row: Any) -> None:
        self.rows.append(row)


def with_closure() -> Hook:
    rows: list[Any] = []
    return lambda row: rows.append(row)


def kept_in_an_attribute(make: Callable[[], Any], keep: Callable[[Any, list[Any]], Any]) -> Run:
    """A layer has an attribute, and an object behind it keeps the batches."""

    def run(folder: Path) -> None:
        def setup(t: Any) -> None:
            t.net[1].kept = make()

        opacus(folder, setup=setup, after=lambda t: keep(t.net[1].kept, t.batch[0].tolist()))

    return run


for _name, _make, _keep in [
    ("records_in_slots", Collector, lambda kept, row: kept.add(row)),
    ("records_behind_a_bound_method", lambda: Collector().add, lambda kept, row: kept(row)),
    ("records_in_a_closure", with_closure, lambda kept, row: kept(row)),
    ("records_in_a_byte_buffer", io.BytesIO, lambda kept, row: kept.write(repr(row).encode())),
    ("a_record_as_a_seed", torch.Generator, lambda kept, row: kept.manual_seed(int(1e9 * abs(row[0][0])))),
    ("records_in_a_list", list, lambda kept, row: kept.append(row)),
]:
    SCRIPTS.append((_name, "open", "model-state", kept_in_an_attribute(_make, _keep)))


@leaks("open", "model-state")
def records_in_the_state_of_the_optimizer(folder: Path) -> None:
    opacus(folder, late=lambda t: t.inner.state.update(memory=t.x[:4]))


@leaks("open", "model-state")
def records_as_names_of_parameters(folder: Path) -> None:
    opacus(folder, late=lambda t: t.inner.param_groups[0].update(param_names=list(map(str, t.x[0].tolist()))))


@leaks("assumes", "released-model")
def gradients_of_the_last_batch(folder: Path) -> None:
    """torch.save of the module writes the per-sample gradients."""
    opacus(folder, late=lambda t: torch.save(t.net, io.BytesIO()))


@leaks("assumes", "released-model")
def a_copy_is_trained_without_noise(folder: Path) -> None:
    def late(t: Any) -> None:
        other = small()
        other.load_state_dict(t.net.state_dict())
        optimizer = sgd(other.parameters())
        cross_entropy(other(t.x), t.y).backward()
        optimizer.step()

    opacus(folder, late=late)


@leaks("assumes", "data-independent-hyperparameters")
def records_in_the_initial_model(folder: Path) -> None:
    def setup(t: Any) -> None:
        t.net[0].weight.data.copy_(t.x[:16])

    opacus(folder, setup=setup)


@leaks("open", "released-model")
def an_error_before_the_end(folder: Path) -> None:
    def after(t: Any) -> None:
        if t.steps == 10:
            raise InterruptedError

    with contextlib.suppress(InterruptedError):
        opacus(folder, after=after)
