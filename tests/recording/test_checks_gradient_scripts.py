"""Scripts that tamper with the clipped sum, or compute gradients at other parameters: no claim about one is proved."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from support.checked_runs import Question, check_run
from support.opacus_training import Training, recorded
from torch import nn

from dpspec.engine.recorded.checks import CLIPPED_SUMS, MEDDLED

Script = Callable[[Training], None]


def sound(training: Training) -> None:
    training.train()


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


def wrapped_clipping(training: Training) -> None:
    """The method is replaced on the instance, inside the block."""
    clip = training.optimizer_.clip_and_accumulate

    def wrapped() -> None:
        clip()
        for p in training.optimizer_.params:
            p.summed_grad *= 1.05

    training.optimizer_.clip_and_accumulate = wrapped
    training.train()


def wrapped_noise(training: Training) -> None:
    """The sum is scaled before the recorder sees it, and the noise is added by the original method."""
    noise = training.optimizer_.add_noise

    def wrapped() -> None:
        for p in training.optimizer_.params:
            p.summed_grad *= 1.05
        noise()

    training.optimizer_.add_noise = wrapped
    training.train()


@pytest.mark.parametrize(
    ("script", "made"),
    [
        (scaled_between_virtual_steps, {"physical": 8}),
        (scaled_data_between_virtual_steps, {"physical": 8}),
        (scaled_between_virtual_steps, {"physical": 8, "clipping": "ghost"}),
        (scaled_between_virtual_steps, {"physical": 8, "clipping": "per_layer"}),
        (primed_sum, {}),
        (wrapped_clipping, {}),
        (wrapped_noise, {}),
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
    found = recorded(tmp_path / "run", sound, **made)
    assert found.conformance.status == "no-deviation-found"
    limits = [c.detectable for c in found.checks if c.test.startswith(CLIPPED_SUMS)]
    assert len(limits) == 1
    assert all(limit is not None and limit < 1e-3 for limit in limits)


def patched_factor(factor: float) -> Any:
    """Clipping that scales the sum, in the class, before the recorder begins."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = DPOptimizer.clip_and_accumulate

        def clip(self: Any) -> None:
            original(self)
            for p in self.params:
                p.summed_grad *= factor

        monkeypatch.setattr(DPOptimizer, "clip_and_accumulate", clip)

    return patch


@pytest.mark.parametrize("factor", [0.999, 1.001, 1.2])
def test_a_factor_on_every_sum_differs_from_the_recomputed_sum(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched_factor(factor)(monkeypatch)
    found = recorded(tmp_path / "run", sound)
    assert any(c.p_value == 0.0 and c.test.startswith(CLIPPED_SUMS) for c in found.checks)


def test_factors_that_depend_on_other_records_differ_from_the_recomputed_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each contribution is below the clip norm, and the longest gradient of the batch decides the factor."""

    def clip(self: Any) -> None:
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in self.grad_samples]).norm(dim=0)
        factor = (self.max_grad_norm / (norms.max() + 1e-6)).clamp(max=1.0).expand(len(norms))
        for p in self.params:
            p.summed_grad = torch.einsum("i,i...", factor, p.grad_sample)
            p.grad_sample._processed = True

    monkeypatch.setattr(DPOptimizer, "clip_and_accumulate", clip)
    found = recorded(tmp_path / "run", sound, clip=0.3)
    assert any(c.p_value == 0.0 and c.test.startswith(CLIPPED_SUMS) for c in found.checks)


def replaced_class_method(name: str) -> Any:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(DPOptimizer, name)
        monkeypatch.setattr(DPOptimizer, name, lambda self, *args: original(self, *args))

    return patch


@pytest.mark.parametrize("name", ["clip_and_accumulate", "add_noise", "scale_grad", "step", "pre_step"])
def test_a_method_that_was_replaced_on_the_class_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced_class_method(name)(monkeypatch)
    found = recorded(tmp_path / "run", sound)
    assert found.conformance.status == "deviates"
    assert any(c.p_value == 0.0 and f"DPOptimizer.{name}" in c.note for c in found.checks)


@pytest.mark.parametrize("name", ["clip_and_accumulate", "add_noise", "step"])
def test_a_method_that_is_replaced_for_a_while_is_named(name: str, tmp_path: Path) -> None:
    def script(training: Training) -> None:
        original = getattr(training.optimizer_, name)
        steps = 0

        def count(training: Training) -> None:
            nonlocal steps
            steps += 1
            if steps == 3:
                setattr(training.optimizer_, name, lambda *args: original(*args))
            if steps == 6:
                setattr(training.optimizer_, name, original)

        training.train(each=count)

    found = recorded(tmp_path / "run", script)
    assert found.conformance.status == "deviates"
    assert any(c.p_value == 0.0 and f"DPOptimizer.{name}" in c.note for c in found.checks)


def test_schedulers_of_torch_replace_no_method(tmp_path: Path) -> None:
    def script(training: Training) -> None:
        schedule = torch.optim.lr_scheduler.StepLR(training.optimizer_, step_size=5, gamma=0.9)
        training.train(each=lambda _: schedule.step())

    assert recorded(tmp_path / "run", script).conformance.status == "no-deviation-found"


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


def moved_data(training: Training) -> None:
    """The same through ``.data``, with a move that depends on the batch."""
    weight = training.optimizer_.params[0]
    for x, y in training.loader:
        training.optimizer_.zero_grad()
        kept = weight.data.clone()
        weight.data.add_(x.sum() * 0.01)
        training.criterion(training.model(x), y).backward()
        weight.data.copy_(kept)
        training.optimizer_.step()


def moved_before_the_backward_pass(training: Training) -> None:
    weight = training.optimizer_.params[2]
    for x, y in training.loader:
        training.optimizer_.zero_grad()
        loss = training.criterion(training.model(x), y)
        kept = weight.data.clone()
        weight.data.mul_(1.0 + float(x.sum()) * 0.01)
        loss.backward()
        weight.data.copy_(kept)
        training.optimizer_.step()


@pytest.mark.parametrize("script", [sharpness_aware, moved_data, moved_before_the_backward_pass])
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


@pytest.mark.parametrize("script", [averaged, evaluated])
def test_evaluations_between_steps_conform(script: Script, tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", script).conformance.status == "no-deviation-found"


def test_a_model_that_is_saved_or_copied_inside_the_block_keeps_no_hook(tmp_path: Path) -> None:
    def script(training: Training) -> None:
        training.train()
        torch.save(training.model._module, tmp_path / "model.pt")
        copy.deepcopy(training.model._module).eval()(torch.randn(3, 6))

    assert recorded(tmp_path / "run", script, epochs=1).conformance.status == "no-deviation-found"


def test_an_exception_leaves_the_claim_open(tmp_path: Path) -> None:
    training = Training()

    def stop(training: Training) -> None:
        raise ZeroDivisionError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
        with pytest.raises(ZeroDivisionError), training.recorder(tmp_path / "run"):
            training.train(each=stop)
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=1e4))
    assert found.verdict == "open"
    assert "an exception (ZeroDivisionError) ended the block after 1 steps" in found.reason


@pytest.mark.parametrize(("given", "right"), [("mean", "sum"), ("sum", "mean")])
def test_a_loss_with_another_reduction_is_reported(given: str, right: str, tmp_path: Path) -> None:
    def script(training: Training) -> None:
        training.criterion = nn.CrossEntropyLoss(reduction=given)
        training.train()

    found = recorded(tmp_path / "run", script, reduction=right, epochs=8)
    assert (found.verdict, found.conformance.status) == ("open", "no-deviation-found")
    assert f"as if the loss were a {given} over the batch" in found.reason


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_with_the_right_reduction_is_not_reported(seed: int, reduction: str, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", sound, reduction=reduction, epochs=8, seed=seed)
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
    names = {c.test.removesuffix(", exact") for c in found.checks if c.p_value == 0.0}
    assert (found.fine, names) == ((True, set()) if not added else (False, {MEDDLED}))


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

    assert MEDDLED in {
        c.test.removesuffix(", exact") for c in recorded(tmp_path / "run", script).checks if not c.p_value
    }
