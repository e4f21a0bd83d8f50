"""Scripts that tamper with the clipped sum, or compute gradients at other parameters: no claim about one is proved."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from support.opacus_training import Training, recorded
from torch import nn

from dpspec.engine.recorded.checks import CLIPPED_SUMS, MEDDLED

Script = Callable[[Training], None]


def scaled_between_virtual_steps(training: Training) -> None:
    def scale(training: Training) -> None:
        for p in training.optimizer_.params:
            if p.summed_grad is not None:
                p.summed_grad *= 1.2

    training.train(each=scale)


def scaled_data_between_virtual_steps(training: Training) -> None:
    """A change through ``.data`` does not change the version counter of the tensor."""

    def scale(training: Training) -> None:
        if training.optimizer_.params[0].summed_grad is not None:
            training.optimizer_.params[0].summed_grad.data.mul_(1.001)

    training.train(each=scale)


def primed_sum(training: Training) -> None:
    """A raw gradient is in the sum before the first clipped one."""
    for x, y in training.loader:
        training.optimizer_.zero_grad()
        training.criterion(training.model(x), y).backward()
        for p in training.optimizer_.params:
            p.summed_grad = 3.0 * p.grad.clone()
        training.optimizer_.step()


def wrapped(name: str) -> Script:
    """The sum is scaled after clipping, or before the noise, by a method that replaces Opacus' inside the block."""

    def script(training: Training) -> None:
        original = getattr(training.optimizer_, name)

        def method() -> None:
            if name == "clip_and_accumulate":
                original()
            for p in training.optimizer_.params:
                p.summed_grad *= 1.05
            if name == "add_noise":
                original()

        setattr(training.optimizer_, name, method)
        training.train()

    return script


@pytest.mark.parametrize(
    ("script", "made"),
    [
        (scaled_between_virtual_steps, {"physical": 8}),
        (scaled_data_between_virtual_steps, {"physical": 8}),
        (scaled_between_virtual_steps, {"physical": 8, "clipping": "ghost"}),
        (scaled_between_virtual_steps, {"physical": 8, "clipping": "per_layer"}),
        (primed_sum, {}),
        (wrapped("clip_and_accumulate"), {}),
        (wrapped("add_noise"), {}),
    ],
)
def test_a_changed_sum_deviates(script: Script, made: dict[str, Any], tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", script, **made)
    assert (found.verdict, found.conformance.status) == ("open", "deviates")
    assert any(c.p_value == 0.0 and c.assumption == "clipping" and "summed gradient" in c.test for c in found.checks)


@pytest.mark.parametrize(
    "made",
    [
        {},
        {"physical": 8},
        {"physical": 8, "clipping": "per_layer"},
        {"physical": 8, "clipping": "adaptive"},
        {"physical": 8, "clipping": "ghost"},
        {"physical": 7, "workers": 1},
        {"batch": 2, "physical": 1},
        {"optimizer": "adamw", "reduction": "sum", "clip": 0.01},
    ],
)
def test_an_honest_sum_conforms(made: dict[str, Any], tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", Training.train, **made)
    assert found.conformance.status == "no-deviation-found"
    limits = [c.detectable for c in found.checks if c.test.startswith(CLIPPED_SUMS)]
    assert len(limits) == 1
    assert all(limit is not None and limit < 1e-3 for limit in limits)


def scaling(factor: float) -> Callable[[Any], None]:
    original = DPOptimizer.clip_and_accumulate

    def clip(self: Any) -> None:
        original(self)
        for p in self.params:
            p.summed_grad *= factor

    return clip


def scaling_by_the_longest(self: Any) -> None:
    """Each contribution is below the clip norm, and the longest gradient of the batch decides the factor."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in self.grad_samples]).norm(dim=0)
    factor = (self.max_grad_norm / (norms.max() + 1e-6)).clamp(max=1.0).expand(len(norms))
    for p in self.params:
        p.summed_grad = torch.einsum("i,i...", factor, p.grad_sample)
        p.grad_sample._processed = True


@pytest.mark.parametrize("clip", [scaling(0.999), scaling(1.001), scaling(1.2), scaling_by_the_longest])
def test_other_sums_differ_from_the_recomputed_sum(
    clip: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clipping is replaced in the class, before the recorder begins."""
    monkeypatch.setattr(DPOptimizer, "clip_and_accumulate", clip)
    assert any(test.startswith(CLIPPED_SUMS) for test in recorded(tmp_path / "run", clip=0.3).rejected)


@pytest.mark.parametrize("on_class", [True, False])
@pytest.mark.parametrize("name", ["clip_and_accumulate", "add_noise", "scale_grad", "step", "pre_step"])
def test_a_replaced_method_is_named(name: str, on_class: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the class, or on the optimizer for three steps."""

    def script(training: Training) -> None:
        original, steps = getattr(training.optimizer_, name), []

        def count(training: Training) -> None:
            steps.append(1)
            if len(steps) in (3, 6):
                setattr(training.optimizer_, name, original if len(steps) == 6 else lambda *args: original(*args))

        training.train(each=None if on_class else count)

    if on_class:
        method = getattr(DPOptimizer, name)
        monkeypatch.setattr(DPOptimizer, name, lambda self, *args: method(self, *args))
    found = recorded(tmp_path / "run", script)
    assert found.conformance.status == "deviates"
    assert any(c.p_value == 0.0 and f"DPOptimizer.{name}" in c.note for c in found.checks)


def sharpness_aware(training: Training) -> None:
    """Gradients are computed at parameters that were moved along the raw gradient, and back before the step."""
    parameters = training.optimizer_.params
    for x, y in training.loader:
        if len(x) == 0:
            continue
        training.model.disable_hooks()
        grads = torch.autograd.grad(training.criterion(training.model(x), y), parameters)
        training.model.enable_hooks()
        training.optimizer_.zero_grad()
        kept = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p, g in zip(parameters, grads, strict=True):
                p.add_(g)
        training.criterion(training.model(x), y).backward()
        with torch.no_grad():
            for p, q in zip(parameters, kept, strict=True):
                p.copy_(q)
        training.optimizer_.step()


def moved(number: int, before: str) -> Script:
    """A parameter moves by the batch before the forward or the backward pass, and back before the step."""

    def script(training: Training) -> None:
        weight = training.optimizer_.params[number]
        for x, y in training.loader:
            training.optimizer_.zero_grad()
            kept = weight.data.clone()
            if before == "forward":
                weight.data.add_(x.sum() * 0.01)
            loss = training.criterion(training.model(x), y)
            if before == "backward":
                weight.data.mul_(1.0 + float(x.sum()) * 0.01)
            loss.backward()
            weight.data.copy_(kept)
            training.optimizer_.step()

    return script


@pytest.mark.parametrize("script", [sharpness_aware, moved(0, "forward"), moved(2, "backward")])
def test_gradients_at_other_parameters_deviate(script: Script, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", script)
    assert (found.verdict, found.conformance.status) == ("open", "deviates")
    assert any(c.p_value == 0.0 and c.assumption == "gradient-parameters" for c in found.checks)


def averaged(training: Training) -> None:
    """The average of the parameters is put into the model for an evaluation, and taken out again."""
    average = [p.detach().clone() for p in training.optimizer_.params]

    def evaluate(training: Training) -> None:
        parameters = training.optimizer_.params
        with torch.no_grad():
            for p, a in zip(parameters, average, strict=True):
                a.lerp_(p, 0.1)
            kept = [p.detach().clone() for p in parameters]
            for p, a in zip(parameters, average, strict=True):
                p.copy_(a)
            training.model.eval()
            training.model(torch.randn(5, 6))
            training.model.train()
            for p, q in zip(parameters, kept, strict=True):
                p.copy_(q)

    training.train(each=evaluate)


def evaluated(training: Training) -> None:
    """An evaluation that does not turn gradients off."""

    def evaluate(training: Training) -> None:
        training.model.eval()
        training.model(torch.randn(5, 6)).sum().item()
        training.model.train()

    training.train(each=evaluate)


def decaying(training: Training) -> None:
    """Schedulers of torch wrap ``step``."""
    schedule = torch.optim.lr_scheduler.StepLR(training.optimizer_, step_size=5, gamma=0.9)
    training.train(each=lambda _: schedule.step())


def saving(training: Training) -> None:
    training.train()
    torch.save(training.model._module, io.BytesIO())
    copy.deepcopy(training.model._module).eval()(torch.randn(3, 6))


@pytest.mark.parametrize("script", [averaged, evaluated, decaying, saving])
def test_evaluations_schedulers_and_copies_conform(script: Script, tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", script).conformance.status == "no-deviation-found"


@pytest.mark.parametrize(("given", "right"), [("mean", "sum"), ("sum", "mean")])
def test_a_loss_with_another_reduction_is_reported(given: str, right: str, tmp_path: Path) -> None:
    def script(training: Training) -> None:
        training.criterion = nn.CrossEntropyLoss(reduction=given)
        training.train()

    found = recorded(tmp_path / "run", script, reduction=right, epochs=8)
    assert (found.verdict, found.conformance.status) == ("open", "no-deviation-found")
    assert f"as if the loss were a {given} over the batch" in found.reason


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_with_the_right_reduction_is_not_reported(seed: int, reduction: str, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", Training.train, reduction=reduction, epochs=8, seed=seed)
    assert found.verdict == "proved"


@pytest.mark.parametrize("added", [0.0, 0.05])
@pytest.mark.parametrize("made", [{}, {"clipping": "ghost"}, {"reduction": "sum", "noise": 4.0}])
def test_a_step_in_pieces_adds_nothing_to_the_noisy_sum(made: dict[str, Any], added: float, tmp_path: Path) -> None:
    """The script calls the methods of a step itself; for a sum it omits the division, which changes nothing."""

    def script(training: Training) -> None:
        optimizer = training.optimizer_
        for x, y in training.loader:
            optimizer.zero_grad()
            training.criterion(training.model(x), y).backward()
            (optimizer.accumulate if "clipping" in made else optimizer.clip_and_accumulate)()
            optimizer.add_noise()
            for p in optimizer.params:
                p.grad.data.add_(added)
            if "reduction" not in made:
                optimizer.scale_grad()
            optimizer.step_hook(optimizer)
            optimizer.original_optimizer.step()

    found = recorded(tmp_path / "run", script, **made)
    assert (found.fine, found.rejected) == ((True, set()) if not added else (False, {MEDDLED}))


def test_methods_of_a_step_in_its_hook_are_compared(tmp_path: Path) -> None:
    """The hook runs in pre_step, where Opacus' own calls are not compared."""

    def script(training: Training) -> None:
        optimizer, hook = training.optimizer_, training.optimizer_.step_hook

        def scale_again(_: Any) -> None:
            hook(optimizer)
            optimizer.params[0].grad.data.add_(0.05)
            optimizer.scale_grad()

        optimizer.attach_step_hook(scale_again)
        training.train()

    assert MEDDLED in recorded(tmp_path / "run", script).rejected
