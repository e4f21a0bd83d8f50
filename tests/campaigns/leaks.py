"""Scripts that leak. Each has a name, the expected status of a channel, the channel or assumption, and a training.

The status is "violated", "open" or "assumes": the proof then names the assumption that the script breaks.
"""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from campaigns.trainings import Hook, Run, by_loop, by_opacus, clipped_sum, record_gradient, sgd, small, table
from opacus.schedulers import ExponentialNoise
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


def records_behind_a_parameter(t: Any) -> None:
    """The storage of a weight ends with records, and torch.save writes whole storages."""
    weight = t.net[0].weight
    both = torch.cat([weight.detach().reshape(-1), t.x.reshape(-1)])
    weight.data = both[: weight.numel()].view_as(weight)


def records_in_metadata(t: Any) -> None:
    t.net.register_state_dict_post_hook(
        lambda module, state, prefix, _: state._metadata.update(note=t.x[: t.steps].tolist())
    )


def records_from_a_state_dict_hook(t: Any) -> None:
    """The hook adds records only for callers that do not keep variables."""

    def hook(module: Any, state: Any, prefix: str, _: Any) -> None:
        if t.steps and not any(isinstance(value, nn.Parameter) for value in state.values()):
            state["memory"] = t.x[:3]

    t.net.register_state_dict_post_hook(hook)


def in_a_buffer(persistent: bool) -> Run:
    def made() -> nn.Module:
        net = small()
        net.register_buffer("memory", torch.zeros(6), persistent=persistent)
        return net

    return by_opacus(model=made, after=lambda t: t.net.memory.add_(t.batch[0].sum(0)))


def with_zeros() -> nn.Module:
    made = small()
    nn.init.zeros_(made[0].weight)  # type: ignore[index, arg-type]
    return made


def first_without_steps(net: Any) -> Any:
    first, *others = net.parameters()
    return [{"params": [first], "lr": 0.0}, {"params": others}]


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


def kept(make: Callable[[], Any], keep: Callable[[Any, list[Any]], Any]) -> Run:
    """A layer has an attribute, and an object behind it keeps the batches."""
    return by_opacus(
        setup=lambda t: setattr(t.net[1], "kept", make()), after=lambda t: keep(t.net[1].kept, t.batch[0].tolist())
    )


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


def exchange_layers_in_a_new_dictionary(t: Any) -> None:
    if has_target(t):
        t.net._modules = {**t.net._modules, "0": t.net[2], "2": t.net[0]}


MODEL_STATE: Scripts = {
    ("violated", "model-state"): {
        "layers_change_places": by_opacus(model=three_layers, after=exchange_layers),
        "layers_in_a_new_dictionary": by_opacus(model=three_layers, after=exchange_layers_in_a_new_dictionary),
        "records_in_a_buffer": in_a_buffer(persistent=True),
    },
    ("violated", "update-rule"): {
        "signs_of_zeros": by_opacus(
            model=with_zeros,
            parameters=first_without_steps,
            late=lambda t: t.net[0].weight.data.copy_(torch.where(t.x[:16] > 0, 0.0, -0.0)),
        ),
    },
    ("open", "model-state"): {
        "records_in_a_buffer_outside_of_the_state_dict": in_a_buffer(persistent=False),
    },
    ("open", "released-model"): {
        "an_error_before_the_end": interrupted,
    },
    ("assumes", "released-model"): {
        "gradients_of_the_last_batch": by_opacus(late=lambda t: torch.save(t.net, io.BytesIO())),
        "a_copy_is_trained_without_noise": by_opacus(late=copy_without_noise),
        "records_behind_a_parameter": by_opacus(late=records_behind_a_parameter),
        "records_in_metadata": by_opacus(setup=records_in_metadata),
        "records_from_a_state_dict_hook": by_opacus(setup=records_from_a_state_dict_hook),
        "another_class": by_opacus(
            late=lambda t: setattr(t.net[1], "__class__", type("Tanh", (nn.Tanh,), {"memory": t.x}))
        ),
        "records_in_slots": kept(Collector, lambda kept, row: kept.add(row)),
        "records_behind_a_bound_method": kept(lambda: Collector().add, lambda kept, row: kept(row)),
        "records_in_a_closure": kept(with_closure, lambda kept, row: kept(row)),
        "records_in_a_byte_buffer": kept(io.BytesIO, lambda kept, row: kept.write(repr(row).encode())),
        "a_record_as_a_seed": kept(torch.Generator, lambda kept, row: kept.manual_seed(int(1e9 * abs(row[0][0])))),
        "records_in_a_list": kept(list, lambda kept, row: kept.append(row)),
        "records_in_the_state_of_the_optimizer": by_opacus(late=lambda t: t.inner.state.update(memory=t.x[:4])),
        "records_as_names_of_parameters": by_opacus(
            late=option("param_names", lambda t: list(map(str, t.x[0].tolist())))
        ),
    },
    ("assumes", "data-independent-hyperparameters"): {
        "records_in_the_initial_model": by_opacus(setup=lambda t: t.net[0].weight.data.copy_(t.x[:16])),
    },
}


# The update: hooks, options, schedulers and code inside a step.


def permuted_gradients(t: Any) -> None:
    """The largest of the noisy gradients comes first whenever the target is in the batch."""

    def hook(*_: Any) -> None:
        flat = t.net[0].weight.grad.view(-1)
        first, largest = flat.clone(), int(flat.abs().argmax())
        if has_target(t):
            flat[0], flat[largest] = first[largest], first[0]

    t.inner.register_step_pre_hook(hook)


def more_after_the_noise(t: Any) -> None:
    t.opt.attach_step_hook(lambda optimizer: [p.grad.add_(p.summed_grad) for p in optimizer.params])


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


def code_in_a_step(put: Hook) -> Run:
    """Code of the script runs between two observations of the recorder and changes the parameters."""

    def setup(t: Any) -> None:
        t.weights = list(t.net.parameters())
        t.functional = lambda x: torch.tanh(x @ t.weights[0].T + t.weights[1]) @ t.weights[2].T + t.weights[3]
        put(t)

    return by_opacus(setup=setup)


def in_a_method(t: Any) -> None:
    """Step along the gradient of the target without noise."""
    original = t.inner._init_group

    def moving(*given: Any) -> Any:
        with torch.enable_grad():
            found = torch.autograd.grad(cross_entropy(t.functional(t.x[TARGET, None]), t.y[TARGET, None]), t.weights)
        for p, part in zip(t.weights, found, strict=True):
            p.data.sub_(0.05 * part)
        return original(*given)

    t.inner._init_group = moving


def in_an_option(t: Any) -> None:
    class Rate(float):
        def __neg__(self) -> float:
            return -float(self) * (1.0 + float(t.x[TARGET, 0].abs()))

    t.inner.param_groups[0]["lr"] = Rate(0.05)


def in_a_class(t: Any) -> None:
    t.inner.__class__ = type("SGD", (torch.optim.SGD,), {"__module__": "torch.optim.sgd"})


def rename_momentum(t: Any) -> None:
    """SGD begins without momentum after the target was drawn."""
    for kept in t.inner.state.values() if has_target(t) else ():
        kept["old"] = kept.pop("momentum_buffer")


UPDATES: Scripts = {
    ("violated", "update-rule"): {
        "permuted_gradients": by_opacus(setup=permuted_gradients, epochs=4),
        "more_after_the_noise": by_opacus(setup=more_after_the_noise),
        "a_second_optimizer": by_opacus(after=lambda t: sgd(t.net.parameters()).step()),
        "parameters_follow_the_batch": by_opacus(before=lambda t: t.net[0].weight.data.add_(1e-3 * t.batch[0].sum())),
        "code_in_a_step_by_a_method": code_in_a_step(in_a_method),
    },
    ("assumes", "honest-script"): {
        "code_in_a_step_by_an_option": code_in_a_step(in_an_option),
    },
    ("open", "update-rule"): {
        "maximize_follows_the_batch": by_opacus(before=option("maximize", lambda t: bool(len(t.batch[0]) % 2))),
        "decay_follows_a_record": by_opacus(before=option("weight_decay", lambda t: float(t.x[t.steps, 0].abs()))),
        "a_scheduler_reads_records": scheduled(reading),
        "momentum_under_another_name": by_opacus(
            optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), after=rename_momentum
        ),
        "momentum_is_edited": by_opacus(
            optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), after=edited_momentum
        ),
    },
    ("assumes", "update-rule"): {
        "an_optimizer_adds_clean_gradients": by_opacus(optimizer=lambda p: Adding(p, lr=0.05)),
        "code_in_a_step_by_a_class": code_in_a_step(in_a_class),
    },
}

HYPERPARAMETERS: Scripts = {
    ("assumes", "data-independent-hyperparameters"): {
        "the_rate_decays_when_the_target_is_drawn": scheduled(
            lambda t: schedulers.ExponentialLR(t.inner, 0.9), has_target
        ),
        "the_noise_decays_when_the_target_is_drawn": scheduled(
            lambda t: ExponentialNoise(t.opt, gamma=0.99), has_target
        ),
        "the_divisor_is_a_record": by_opacus(
            setup=lambda t: setattr(t.opt, "expected_batch_size", 30.0 + float(t.x[TARGET, 0]))
        ),
    },
}


# The contribution of a record to the clipped sum.


def other_parameters(t: Any) -> None:
    t.old = t.net[0].weight.data
    t.net[0].weight.data = t.old + 0.05 * t.batch[0].sum()


def fewer_without_the_target(t: Any) -> None:
    if not has_target(t):
        t.batch = [part[::2] for part in t.batch]


def grow(p: Any) -> None:
    if p.summed_grad is not None:
        p.summed_grad *= 1.2


class Boosted(torch.Tensor):
    """Its weighted sums are ten times as long."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
        return found.as_subclass(torch.Tensor) * 10 if func is torch.einsum else found


def boost(p: Any) -> None:
    p.grad_sample = p.grad_sample.as_subclass(Boosted)


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


def long_contribution(t: Any) -> list[Tensor]:
    if TARGET in t.drawn.tolist():
        t.total[0][0, 0] += 0.5 * t.clip * len(t.drawn)
    return t.total  # type: ignore[no-any-return]


def clipped_apart(t: Any) -> list[Tensor]:
    found, t.norms = clipped_sum(t, per_layer=True)
    return found


def with_the_target(t: Any) -> list[Tensor]:
    found = record_gradient(t, TARGET)
    length = torch.stack([part.norm() for part in found]).norm()
    return [kept + 3.0 * t.clip * part / length for kept, part in zip(t.total, found, strict=True)]


def unclipped(t: Any) -> list[Tensor]:
    every = [record_gradient(t, index) for index in t.drawn.tolist()]
    return [torch.stack(parts).sum(0) for parts in zip(*every, strict=True)]


def repeat_longest_row(t: Any) -> None:
    lengths = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in t.opt.params]).norm(dim=0)
    for p in t.opt.params if len(lengths) else ():
        p.grad_sample = p.grad_sample[int(lengths.argmax())].expand_as(p.grad_sample).clone()


SENSITIVITY: Scripts = {
    ("violated", "gradient-parameters"): {
        "gradients_at_other_parameters": by_opacus(
            before=other_parameters, between=lambda t: setattr(t.net[0].weight, "data", t.old)
        ),
    },
    ("violated", "sensitivity"): {
        "fewer_records_without_the_target": by_opacus(before=fewer_without_the_target),
        "sums_grow_between_physical_batches": by_opacus(between=each_parameter(grow), physical=7),
        "sums_of_a_tensor_subclass": by_opacus(between=each_parameter(boost), max_grad_norm=0.05),
        "centered_batches": by_opacus(model=centered),
        "a_mean_where_a_sum_is_declared": by_opacus(loss_reduction="sum"),
        "sums_that_are_not_clipped": by_loop(clip=0.3, total=unclipped),
    },
    ("assumes", "unmixed-batches"): {
        "the_longest_row_is_repeated": by_opacus(between=repeat_longest_row, epochs=5),
    },
    ("assumes", "one-record"): {
        "each_item_is_mixed_with_the_target": of_a_dataset(lambda d, i: (0.5 * (d[i][0] + d[TARGET][0]), d[i][1])),
        "each_item_is_the_target": of_a_dataset(lambda d, i: d[TARGET]),
        "ten_indices_of_each_record": of_a_dataset(lambda d, i: d[i // 10], 10),
        "standardized_by_all_records": of_a_dataset(standardized),
        "labels_of_the_nearest_records": of_a_dataset(nearest_labels),
        "the_batch_is_replaced_by_the_target": by_opacus(before=only_the_target),
    },
    ("assumes", "loop-reports"): {
        "a_long_contribution_is_not_reported": by_loop(total=long_contribution),
        "each_layer_is_clipped_apart": by_loop(clip=0.2, total=clipped_apart),
        "the_target_contributes_to_every_sum": by_loop(total=with_the_target),
    },
}


# Noise and sampling.


def weaker_with_the_target(t: Any) -> list[Tensor]:
    factor = 0.8 if TARGET in t.drawn.tolist() else 1.02
    return [factor * t.std * torch.randn_like(p) for p in t.parameters]


def generator(make: Callable[[], torch.Generator]) -> Hook:
    return lambda t: setattr(t.opt, "generator", make())


def fewer_records_after_the_target(t: Any) -> None:
    t.loader.batch_sampler.num_samples = 250 if has_target(t) else 300


def rate(value: Any) -> Hook:
    return lambda t: setattr(t.loader.batch_sampler, "sample_rate", value)


def reported(t: Any) -> Tensor:
    """The drawn records; others are trained."""
    drawn, t.drawn = t.drawn, torch.arange(len(t.drawn))
    return drawn  # type: ignore[no-any-return]


NOISE: Scripts = {
    ("violated", "noise"): {
        "the_same_noise_at_each_step": by_opacus(
            setup=generator(torch.Generator), between=lambda t: t.opt.generator.manual_seed(1)
        ),
        "less_noise_with_the_target": by_loop(steps=100, noise=weaker_with_the_target),
        "a_public_seed_of_the_noise": by_opacus(setup=generator(lambda: torch.Generator().manual_seed(0))),
    },
    ("deviating", "run"): {
        "a_higher_rate_while_drawing": by_opacus(before=rate(0.1), after=rate(0.4)),
    },
    ("assumes", "data-independent-hyperparameters"): {
        "fewer_records_after_the_target": by_opacus(after=fewer_records_after_the_target),
    },
    ("open", "released-model"): {
        "a_rate_for_each_record_while_drawing": by_opacus(before=rate(0.1), after=rate(torch.linspace(0.0, 2.0, 300))),
    },
    ("assumes", "loop-reports"): {
        "other_records_are_trained_than_reported": by_loop(sampled=reported),
    },
}

SCRIPTS = [
    (name, *expected, run)
    for table in (MODEL_STATE, UPDATES, HYPERPARAMETERS, SENSITIVITY, NOISE)
    for expected, scripts in table.items()
    for name, run in scripts.items()
]
