"""The sensitivity probe finds contributions that depend on other records, and does not change the training."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training, record_losses, two_passes
from torch import Tensor, nn

import dpspec
from dpspec.engine.recorded.checks import CHANGE, INFLUENCE
from dpspec.recording.sums import sensitivity_probe

pytestmark = pytest.mark.filterwarnings("ignore")


def probed(
    folder: Path,
    training: Training,
    script: Callable[[Training], None] = Training.train,
    loss: Any = record_losses,
    middle: nn.Module | None = None,
) -> CheckedRun:
    """The answer to a claim about a training that is probed, with ``middle`` in the place of the activation."""
    training.build()
    if middle is not None:
        training.model._module[1] = middle
    with training.recorder(folder, loss=loss):
        script(training)
    return check_run(folder, Question(delta=1e-5, epsilon=1e4))


@pytest.mark.parametrize(
    "made",
    [
        {},
        {"physical": 8},
        {"physical": 7, "workers": 1},
        {"batch": 4, "physical": 2},
        {"clipping": "per_layer", "clip": 0.1},
        {"clipping": "per_layer", "physical": 8},
        {"clipping": "adaptive", "physical": 8},
        {"reduction": "sum", "clip": 0.01},
        {"poisson": False},
        {"clipping": "ghost", "clip": 0.1},
        {"clipping": "ghost", "physical": 8},
        {"optimizer": "adamw", "canaries": 20},
    ],
)
def test_an_honest_training_is_tested(made: dict[str, Any], tmp_path: Path) -> None:
    found = probed(tmp_path / "run", Training(**made))
    assert found.run.end.probe_failure == ""
    calls, removed, change, influence, confirmed = found.run.end.probe
    assert confirmed == calls
    assert min(calls, removed) >= 2
    assert not found.rejected & {CHANGE, INFLUENCE}
    # shuffled batches and canaries without a score deviate
    assert found.conformance.status == ("deviates" if {"poisson", "canaries"} & made.keys() else "no-deviation-found")
    assert 0.0 < change <= 1.001
    assert influence < 1e-4
    assert (
        found.assumption("unmixed-batches").status == "declared"
    )  # the probe samples steps, so the other steps stay assumed
    assert f"removed {removed:.0f} records at {calls:.0f} steps" in found.assumption("unmixed-batches").text


@pytest.mark.parametrize(("error", "confirmed"), [(1e-7, 1), (1e-5, 0)])
def test_a_short_gradient_is_compared_at_the_scale_of_its_batch(error: float, confirmed: int) -> None:
    probe = object.__new__(sensitivity_probe.SensitivityProbe)
    probe._confirmed = 0
    mine = [torch.tensor([[4.0], [3e-4]])]
    theirs = [mine[0] + torch.tensor([[0.0], [error]])]
    probe._compare(mine, theirs)
    assert probe._confirmed == confirmed


def test_ghost_clipping_without_the_criterion_is_proved_if_the_probe_computes_its_sums(tmp_path: Path) -> None:
    found = probed(tmp_path / "run", Training(clipping="ghost", clip=0.1), two_passes)
    assert (found.verdict, found.fine) == ("proved", True)


class Mixing(nn.Module):
    """Centers its inputs by the mean of the batch, as batch normalization does."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


def test_a_layer_that_mixes_records_is_found(tmp_path: Path) -> None:
    assert INFLUENCE in probed(tmp_path / "run", Training(), middle=nn.Sequential(Mixing(), nn.Tanh())).rejected


def test_a_loss_that_mixes_records_is_found(tmp_path: Path) -> None:
    def weighted(model: Any, batch: Any) -> Tensor:
        losses = record_losses(model, batch)
        return losses * losses.detach() / losses.detach().sum()

    # A training probes a few random steps: about one of seven finds nothing, six of six with probability 1e-5.
    assert any(
        INFLUENCE in probed(tmp_path / f"run{number}", Training(clip=0.05), loss=weighted).rejected
        for number in range(6)
    )


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.3 * torch.randn_like(x)


@pytest.mark.parametrize("layer", [nn.Dropout(0.3), Noisy()])
def test_random_layers_are_no_mixing_and_their_gradients_are_not_confirmed(layer: nn.Module, tmp_path: Path) -> None:
    found = probed(tmp_path / "run", Training(), middle=nn.Sequential(nn.Tanh(), layer))
    assert not found.rejected
    one = found.assumption("unmixed-batches")
    assert one.status == "declared"
    assert "its loss gives the gradients of the training at 0 of these steps" in one.text


def test_the_probe_changes_nothing_of_the_training(tmp_path: Path) -> None:
    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    plain, watched = Training(), Training()
    parameters = plain.run()
    before = states()
    probed(tmp_path / "run", watched)
    assert all(torch.equal(p, q) for p, q in zip(parameters, watched.model.parameters(), strict=True))
    assert states() == before


def test_a_loss_without_a_value_for_each_record_is_a_failure_that_is_named(tmp_path: Path) -> None:
    found = probed(tmp_path / "run", Training(), loss=lambda model, batch: record_losses(model, batch).mean())
    one = found.assumption("unmixed-batches")
    assert one.status == "declared"
    assert "the sensitivity probe failed: UsageError: loss(model, batch) must give" in one.text


def test_a_loss_for_a_plain_loop_is_refused(tmp_path: Path) -> None:
    with pytest.raises(dpspec.errors.UsageError, match="loss is for Opacus' optimizer"):
        dpspec.record(tmp_path / "run", model=nn.Linear(2, 2), loss=record_losses)


class Frozen(nn.Module):
    """A layer that is not trained; ``written`` also changes its weight in each pass."""

    def __init__(self, *, written: bool) -> None:
        super().__init__()
        self.weight, self.written = nn.Parameter(torch.eye(16), requires_grad=False), written

    def forward(self, x: Tensor) -> Tensor:
        if self.written:
            self.weight.mul_(0.999)
        return x @ self.weight


@pytest.mark.parametrize("written", [False, True])
def test_frozen_parameters_are_copied_only_if_the_model_writes_to_them(
    written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[Tensor] = []
    make = sensitivity_probe._Copy.__init__
    layer = Frozen(written=written)

    def made(self: Any, *given: Any) -> None:
        make(self, *given)
        copies.extend(p for p in self._model.parameters() if not p.requires_grad)

    monkeypatch.setattr(sensitivity_probe._Copy, "__init__", made)
    found = probed(tmp_path / "run", Training(), middle=nn.Sequential(layer, nn.Tanh()))
    assert found.run.end.probe_failure == ""
    assert len(copies) >= 2
    shared = [p.data_ptr() == layer.weight.data_ptr() for p in copies]
    assert not any(shared) if written else all(shared)
