"""Scripts that leak. Each has a name, the expected status of a channel, the channel or assumption, and a training.

The status is "violated", "open" or "assumes": the proof then names the assumption that the script breaks.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from campaigns.trainings import Hook, Run, by_loop, by_opacus, clipped_sum, record_gradient, sgd, small, table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import Dataset

#: By the expected status and the channel or assumption.
Scripts = dict[tuple[str, str], dict[str, Run]]

#: The index of the record that scripts leak.
TARGET = 7


def has_target(t: Any) -> bool:
    return bool((t.batch[0] == t.x[TARGET]).all(1).any())


def each_parameter(change: Hook) -> Hook:
    """A hook that changes each parameter of Opacus' optimizer."""
    return lambda t: [change(p) for p in t.opt.params]


def option(name: str, value: Hook) -> Hook:
    """A hook that sets an option of torch's optimizer."""
    return lambda t: t.inner.param_groups[0].update({name: value(t)})


# The state of the model or the optimizer, and the released model.


def in_a_buffer(persistent: bool) -> Run:
    def made() -> nn.Module:
        net = small()
        net.register_buffer("memory", torch.zeros(6), persistent=persistent)
        return net

    return by_opacus(model=made, after=lambda t: t.net.memory.add_(t.batch[0].sum(0)))


def copy_without_noise(t: Any) -> None:
    other = small()
    other.load_state_dict(t.net.state_dict())
    optimizer = sgd(other.parameters())
    cross_entropy(other(t.x), t.y).backward()
    optimizer.step()


def interrupted(folder: Path) -> None:
    def after(t: Any) -> None:
        if t.steps == 10:
            raise InterruptedError

    with contextlib.suppress(InterruptedError):
        by_opacus(after=after)(folder)


def three_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))


def exchange_layers(t: Any) -> None:
    """The order of two equal layers says whether the target was drawn."""
    if has_target(t):
        t.net[0], t.net[2] = t.net[2], t.net[0]


MODEL_STATE: Scripts = {
    ("violated", "model-state"): {
        "layers_change_places": by_opacus(model=three_layers, after=exchange_layers),
        "records_in_a_buffer": in_a_buffer(persistent=True),
    },
    ("open", "model-state"): {"records_in_a_buffer_outside_of_the_state_dict": in_a_buffer(persistent=False)},
    ("open", "released-model"): {"an_error_before_the_end": interrupted},
    ("assumes", "released-model"): {"a_copy_is_trained_without_noise": by_opacus(late=copy_without_noise)},
}


# The update: hooks, options, schedulers and code inside a step.


def scheduled(make: Hook, when: Hook = lambda t: True) -> Run:
    def setup(t: Any) -> None:
        t.scheduler = make(t)

    return by_opacus(setup=setup, after=lambda t: when(t) and t.scheduler.step())


def reading(t: Any) -> Any:
    """A schedule by the features of records."""

    class Reading(schedulers.LRScheduler):
        def get_lr(self) -> Any:
            return [0.05 * (1.0 + float(t.x[t.steps, 0].abs()))]

    return Reading(t.inner)


def edited_momentum(t: Any) -> None:
    for state in t.inner.state.values():
        state["momentum_buffer"].add_(t.batch[0].sum())


class Adding(torch.optim.SGD):
    """Adds clean gradients."""

    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            p.data.sub_(0.05 * p.grad + 0.01 * p.summed_grad)


UPDATES: Scripts = {
    ("violated", "update-rule"): {
        "a_second_optimizer": by_opacus(after=lambda t: sgd(t.net.parameters()).step()),
        "parameters_follow_the_batch": by_opacus(before=lambda t: t.net[0].weight.data.add_(1e-3 * t.batch[0].sum())),
        "an_optimizer_adds_clean_gradients": by_opacus(optimizer=lambda p: Adding(p, lr=0.05)),
    },
    ("open", "update-rule"): {
        "maximize_follows_the_batch": by_opacus(before=option("maximize", lambda t: bool(len(t.batch[0]) % 2))),
        "decay_follows_a_record": by_opacus(before=option("weight_decay", lambda t: float(t.x[t.steps, 0].abs()))),
        "a_scheduler_reads_records": scheduled(reading),
        "momentum_is_edited": by_opacus(
            optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), after=edited_momentum
        ),
    },
}

# The contribution of a record to the clipped sum.


def other_parameters(t: Any) -> None:
    t.old = t.net[0].weight.data
    t.net[0].weight.data = t.old + 0.05 * t.batch[0].sum()


def grow(p: Any) -> None:
    if p.summed_grad is not None:
        p.summed_grad *= 1.2


class Centering(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def centered() -> nn.Module:
    return nn.Sequential(Centering(), small())


class Changed(Dataset[Any]):
    """A dataset that computes its items from the records of another."""

    def __init__(self, item: Callable[[Any, int], Any], times: int = 1) -> None:
        self.inner = table(300 // times)
        self.tensors, self.item, self.times = self.inner.tensors, item, times

    def __len__(self) -> int:
        return len(self.inner) * self.times

    def __getitem__(self, index: int) -> Any:
        return self.item(self.inner, index)


def of_a_dataset(item: Callable[[Any, int], Any], times: int = 1) -> Run:
    return by_opacus(data=lambda: Changed(item, times))


def standardized(data: Any, index: int) -> Any:
    x, y = data.tensors
    return (x[index] - x.mean(0)) / x.std(0), y[index]


def nearest_labels(data: Any, index: int) -> Any:
    x, y = data.tensors
    near = (x - x[index]).norm(dim=1).topk(6, largest=False).indices[1:]
    return x[index], (y[near].float().mean() > 0.5).long()


def only_the_target(t: Any) -> None:
    t.batch = [t.x[TARGET].expand_as(t.batch[0]), t.batch[1]]


def clipped_apart(t: Any) -> list[Tensor]:
    found, t.norms = clipped_sum(t, per_layer=True)
    return found


def unclipped(t: Any) -> list[Tensor]:
    every = [record_gradient(t, index) for index in t.drawn.tolist()]
    return [torch.stack(parts).sum(0) for parts in zip(*every, strict=True)]


SENSITIVITY: Scripts = {
    ("violated", "gradient-parameters"): {
        "gradients_at_other_parameters": by_opacus(
            before=other_parameters, between=lambda t: setattr(t.net[0].weight, "data", t.old)
        )
    },
    ("violated", "sensitivity"): {
        "sums_grow_between_physical_batches": by_opacus(between=each_parameter(grow), physical=7),
        "centered_batches": by_opacus(model=centered),
        "sums_that_are_not_clipped": by_loop(clip=0.3, total=unclipped),
    },
    ("open", "sensitivity"): {
        "a_mean_where_a_sum_is_declared": by_opacus(loss_reduction="sum"),
        "each_layer_is_clipped_apart": by_loop(clip=0.2, total=clipped_apart),
    },
    ("assumes", "one-record"): {
        "each_item_is_mixed_with_the_target": of_a_dataset(lambda d, i: (0.5 * (d[i][0] + d[TARGET][0]), d[i][1])),
        "each_item_is_the_target": of_a_dataset(lambda d, i: d[TARGET]),
        "ten_indices_of_each_record": of_a_dataset(lambda d, i: d[i // 10], 10),
        "standardized_by_all_records": of_a_dataset(standardized),
        "labels_of_the_nearest_records": of_a_dataset(nearest_labels),
        "the_batch_is_replaced_by_the_target": by_opacus(before=only_the_target),
    },
}


# Noise and sampling.


def weaker_with_the_target(t: Any) -> list[Tensor]:
    factor = 0.8 if TARGET in t.drawn.tolist() else 1.02
    return [factor * t.std * torch.randn_like(p) for p in t.parameters]


def generator(make: Callable[[], torch.Generator]) -> Hook:
    return lambda t: setattr(t.opt, "generator", make())


def rate(value: Any) -> Hook:
    return lambda t: setattr(t.loader.batch_sampler, "sample_rate", value)


NOISE: Scripts = {
    ("violated", "noise"): {
        "the_same_noise_at_each_step": by_opacus(
            setup=generator(torch.Generator), between=lambda t: t.opt.generator.manual_seed(1)
        ),
        "a_public_seed_of_the_noise": by_opacus(setup=generator(lambda: torch.Generator().manual_seed(0))),
    },
    # Noise whose size is chosen by a record: no mistake, and at this size found by no test of 100 steps.
    ("assumes", "honest-script"): {"less_noise_with_the_target": by_loop(steps=100, noise=weaker_with_the_target)},
    ("deviating", "run"): {"a_higher_rate_while_drawing": by_opacus(before=rate(0.1), after=rate(0.4))},
    ("open", "released-model"): {
        "a_rate_for_each_record_while_drawing": by_opacus(before=rate(0.1), after=rate(torch.linspace(0.0, 2.0, 300)))
    },
}

SCRIPTS = [
    (name, *expected, run)
    for table in (MODEL_STATE, UPDATES, SENSITIVITY, NOISE)
    for expected, scripts in table.items()
    for name, run in scripts.items()
]
