"""Leaks through the update: hooks, options, schedulers and code inside a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from opacus.schedulers import ExponentialNoise
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler as schedulers

from unprivate.trainings import SCRIPTS, TARGET, Hook, Run, has_target, leaks, opacus, sgd


@leaks("violated", "update-rule")
def permuted_gradients(folder: Path) -> None:
    """The largest of the noisy gradients comes first whenever the target is in the batch."""

    def setup(t: Any) -> None:
        def hook(*_: Any) -> None:
            flat = t.net[0].weight.grad.view(-1)
            first, largest = flat.clone(), int(flat.abs().argmax())
            if has_target(t):
                flat[0], flat[largest] = first[largest], first[0]

        t.inner.register_step_pre_hook(hook)

    opacus(folder, setup=setup, epochs=4)


@leaks("violated", "update-rule")
def more_after_the_noise(folder: Path) -> None:
    def setup(t: Any) -> None:
        t.opt.attach_step_hook(lambda optimizer: [p.grad.add_(p.summed_grad) for p in optimizer.params])

    opacus(folder, setup=setup)


@leaks("violated", "update-rule")
def a_second_optimizer(folder: Path) -> None:
    opacus(folder, after=lambda t: sgd(t.net.parameters()).step())


@leaks("violated", "update-rule")
def parameters_follow_the_batch(folder: Path) -> None:
    opacus(folder, before=lambda t: t.net[0].weight.data.add_(1e-3 * t.batch[0].sum()))


@leaks("open", "update-rule")
def maximize_follows_the_batch(folder: Path) -> None:
    opacus(folder, before=lambda t: t.inner.param_groups[0].update(maximize=bool(len(t.batch[0]) % 2)))


@leaks("open", "update-rule")
def decay_follows_a_record(folder: Path) -> None:
    opacus(folder, before=lambda t: t.inner.param_groups[0].update(weight_decay=float(t.x[t.steps, 0].abs())))


@leaks("open", "update-rule")
def a_scheduler_reads_records(folder: Path) -> None:
    def setup(t: Any) -> None:
        class Reading(schedulers.LRScheduler):
            def get_lr(self) -> Any:
                return [0.05 * (1.0 + float(t.x[t.steps, 0].abs()))]

        t.scheduler = Reading(t.inner)

    opacus(folder, setup=setup, after=lambda t: t.scheduler.step())


@leaks("open", "update-rule")
def momentum_is_edited(folder: Path) -> None:
    def after(t: Any) -> None:
        for state in t.inner.state.values():
            state["momentum_buffer"].add_(t.batch[0].sum())

    opacus(folder, optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), after=after)


@leaks("assumes", "data-independent-hyperparameters")
def the_rate_decays_when_the_target_is_drawn(folder: Path) -> None:
    def setup(t: Any) -> None:
        t.scheduler = schedulers.ExponentialLR(t.inner, 0.9)

    opacus(folder, setup=setup, after=lambda t: has_target(t) and t.scheduler.step())


@leaks("assumes", "data-independent-hyperparameters")
def the_noise_decays_when_the_target_is_drawn(folder: Path) -> None:
    def setup(t: Any) -> None:
        t.scheduler = ExponentialNoise(t.opt, gamma=0.99)

    opacus(folder, setup=setup, after=lambda t: has_target(t) and t.scheduler.step())


@leaks("assumes", "data-independent-hyperparameters")
def the_divisor_is_a_record(folder: Path) -> None:
    opacus(folder, setup=lambda t: setattr(t.opt, "expected_batch_size", 30.0 + float(t.x[TARGET, 0])))


@leaks("assumes", "update-rule")
def an_optimizer_adds_clean_gradients(folder: Path) -> None:
    class Adding(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for p in self.param_groups[0]["params"]:
                p.data.sub_(0.05 * p.grad + 0.01 * p.summed_grad)

    opacus(folder, optimizer=lambda p: Adding(p, lr=0.05))


def move(t: Any) -> None:
    """Step along the gradient of the target without noise."""
    found = torch.autograd.grad(cross_entropy(t.functional(t.x[TARGET, None]), t.y[TARGET, None]), t.weights)
    for p, part in zip(t.weights, found, strict=True):
        p.data.sub_(0.05 * part)


def code_in_a_step(put: Hook) -> Run:
    """Code of the script runs between the recorder's looks and moves the parameters."""

    def run(folder: Path) -> None:
        def setup(t: Any) -> None:
            t.weights = list(t.net.parameters())
            t.functional = lambda x: torch.tanh(x @ t.weights[0].T + t.weights[1]) @ t.weights[2].T + t.weights[3]
            put(t)

        opacus(folder, setup=setup)

    return run


def in_a_method(t: Any) -> None:
    original = t.inner._init_group

    def moving(*given: Any) -> Any:
        with torch.enable_grad():
            move(t)
        return original(*given)

    t.inner._init_group = moving


def in_an_option(t: Any) -> None:
    class Rate(float):
        def __neg__(self) -> float:
            return -float(self) * (1.0 + float(t.x[TARGET, 0].abs()))

    t.inner.param_groups[0]["lr"] = Rate(0.05)


def in_a_class(t: Any) -> None:
    t.inner.__class__ = type("SGD", (torch.optim.SGD,), {"__module__": "torch.optim.sgd"})


for _name, _expected, _put in [
    ("method", "violated", in_a_method),
    ("option", "violated", in_an_option),
    ("class", "assumes", in_a_class),
]:
    SCRIPTS.append((f"code_in_a_step_by_a_{_name}", _expected, "update-rule", code_in_a_step(_put)))
