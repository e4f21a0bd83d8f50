"""Centered gradients are a post-processing of the noisy sum; nothing near them is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpspec_recording.pending_step import PendingStep
from dpspec_recording.sums.loop_gradients import LoopGradients
from dpspec_recording.sums.stepped_gradients import SteppedGradients
from dpspec_recording.watching.centering import is_centered
from dpspec_recording.watching.optimizer_updates import AuditedUpdates

SHAPES = [(4, 6), (4,), (3, 2, 5, 5)]


def centered(gradient: Tensor) -> Tensor:
    axes = tuple(range(1, gradient.dim()))
    return gradient - gradient.mean(dim=axes, keepdim=True) if axes else gradient


def drawn(seed: int, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator) for shape in SHAPES]


@pytest.mark.parametrize("axes", [(1,), (0,), (0, 1)])
def test_means_along_any_axes_of_a_matrix_are_recognized(axes: tuple[int, ...]) -> None:
    noisy = torch.randn(7, 9, generator=torch.Generator().manual_seed(1))
    assert is_centered([noisy], [noisy - noisy.mean(dim=axes, keepdim=True)])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "gradient",
    [
        lambda total, noise: centered(total + noise) + 1e-4 * total,  # a sum beside its noise
        lambda total, noise: total + centered(noise),  # noise without its mean hides nothing along the mean
        lambda total, noise: centered(total) + noise,
        lambda total, noise: (total + noise) - total.mean(),
        lambda total, noise: 1.001 * centered(total + noise),
    ],
)
def test_other_gradients_are_not_centered_ones(gradient: Callable[[Tensor, Tensor], Tensor], seed: int) -> None:
    total, noise = drawn(seed, 0.1), drawn(seed + 100)
    noisy = [t + n for t, n in zip(total, noise, strict=True)]
    assert not is_centered(noisy, [gradient(t, n) for t, n in zip(total, noise, strict=True)])


def test_rounding_of_half_precision_would_hide_a_sum() -> None:
    noisy = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert is_centered([noisy], [noisy])
    assert not is_centered([noisy], [centered(noisy)])


def reported(change: Callable[[Tensor, Tensor], Tensor], *, in_step: bool) -> list[float] | None:
    """What the recorder finds if a plain loop, or its optimizer's step, changes the noisy gradients."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    watch = LoopGradients(parameters)
    for seed in range(3):
        total, noise = drawn(seed, 0.1), drawn(seed + 100)
        for p, t, n in zip(parameters, total, noise, strict=True):
            p.grad = (t + n) / 50.0 if in_step else change(t + n, t) / 50.0
        watch.before_step()
        for p, t, n in zip(parameters, total, noise, strict=True):
            p.grad = change(t + n, t) / 50.0
        watch.after_step()
        step = PendingStep(updates=1, deviation=1.0, norms=[torch.ones(1)])
        rows = (torch.cat([tensor.reshape(-1) for tensor in tensors]) for tensors in (noise, total))
        watch.compare(step, *rows)
    return [watch.steps, watch.summed, watch.different, watch.hidden] if watch.steps else None


@pytest.mark.parametrize("in_step", [False, True])
def test_a_plain_loop_may_center_its_noisy_gradients(in_step: bool) -> None:
    found = reported(lambda noisy, _: centered(noisy), in_step=in_step)
    assert found is not None
    assert found[:3] == [3, 3, 0]


def test_a_plain_loop_that_adds_the_sum_deviates() -> None:
    found = reported(lambda noisy, total: centered(noisy) + total, in_step=False)
    assert found is not None
    assert found[:3] == [3, 3, 3]


def test_other_gradients_that_a_step_makes_are_not_compared() -> None:
    """As of a closure: what the optimizer stepped with did not begin with the noise."""
    assert reported(lambda noisy, total: total, in_step=True) is None


class Optimizer:
    """The attributes of Opacus' optimizer that the observer reads."""

    def __init__(self) -> None:
        self.params = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        self.original_optimizer = torch.optim.SGD(self.params, lr=0.1)


@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.parametrize(("leak", "changed"), [(0.0, 0), (0.01, 1)])
def test_gradients_of_opacus_may_be_centered(in_step: bool, leak: float, changed: int) -> None:
    optimizer: Any = Optimizer()
    watch, noisy = SteppedGradients(optimizer), drawn(5)
    for p, value in zip(optimizer.params, noisy, strict=True):
        p.grad = value.clone()
    watch.keep()
    for p, value in zip(optimizer.params, noisy, strict=True):
        p.grad = (value if in_step else centered(value) + leak * drawn(6)[0].mean()) / 50.0
    watch.divide(PendingStep())
    if in_step:
        for p, value in zip(optimizer.params, noisy, strict=True):
            p.grad = (centered(value) + leak) / 50.0
    watch.end()
    assert int(watch.changed) == changed


@pytest.mark.parametrize(("leak", "unrepeated"), [(0.0, 0), (0.01, 3)])
def test_the_update_from_gradients_that_a_hook_centers_is_recomputed(leak: float, unrepeated: int) -> None:
    parameters = [nn.Parameter(value) for value in drawn(8)]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    updates = AuditedUpdates(optimizer, parameters)
    for seed in range(3):
        for p, value in zip(parameters, drawn(seed), strict=True):
            p.grad = value
        updates.before_step(audited=True)
        for p in parameters:
            assert p.grad is not None
            p.grad = centered(p.grad) + leak
        optimizer.step()
        updates.after_step()
    assert (updates.different, updates.failed) == (0, unrepeated)
