"""Ghost clipping: honest runs are proved, and each other way to form the sum is found."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping as Ghost
from opacus.optimizers import optimizer_fast_gradient_clipping
from support import opacus_training
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training
from support.recordings import Recordings
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.overrides import BaseTorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset

from dpspec_recording.judge.bounds import phases_of
from dpspec_recording.observers.noise.noise import WITHOUT_NOISE
from dpspec_recording.observers.sensitivity.ghost import ADDED
from dpspec_recording.observers.sensitivity.ghost import Ghost as GhostProbe
from dpspec_recording.observers.sensitivity.replays import SUM_MOVED, Replays
from dpspec_recording.outcomes.conditions import PER_RECORD_CLIPPING

pytestmark = pytest.mark.filterwarnings("ignore")

Script = Callable[[Training], None]
Patch = tuple[Any, str, Any]


def recorded(folder: Path, script: Script = Training.train, **made: Any) -> CheckedRun:
    return opacus_training.recorded(folder, script, clipping="ghost", **{"clip": 0.1, **made})


@pytest.mark.family
@pytest.mark.parametrize("made", [{"epochs": 1}, {"physical": 8}, {"reduction": "sum"}, {"batch": 2}])
def test_an_honest_run_is_proved(made: dict[str, Any], tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", **made)
    assert (found.verdict, found.fine) == ("proved", True)
    assert found.assumption(PER_RECORD_CLIPPING).status == "declared"
    ghost = found.run.fact(GhostProbe)
    assert ghost.batches >= found.run.steps
    assert (ghost.unobserved, ghost.changed) == (0, 0)
    assert len(phases_of(found.run)) == 1
    if "epochs" in made:
        Training(clip=0.1, **made).run(tmp_path / "flat")
        flat = check_run(tmp_path / "flat", found.question)
        assert phases_of(found.run) == phases_of(flat.run)
        assert found.costs[1].interval == flat.costs[1].interval


def looped(step: Callable[[Training, Any, Any], None]) -> Script:
    def script(training: Training) -> None:
        for _ in range(2):
            for x, y in training.loader:
                training.private.zero_grad()
                step(training, x, y)
                training.private.step()

    return script


def scaled(training: Training, x: Tensor, y: Tensor) -> None:
    training.criterion(training.model(x), y).backward()
    for p in training.private.params:
        p.grad.mul_(1.01)


def term_beside(training: Training, x: Tensor, y: Tensor) -> None:
    training.criterion(training.model(x), y).backward()
    training.model.disable_hooks()
    (0.1 * cross_entropy(training.model(x), y)).backward()
    training.model.enable_hooks()


def after(change: Script) -> Script:
    """The training after a change within the recorded block."""

    def script(training: Training) -> None:
        change(training)
        training.train()

    return script


def norms_times(factor: float) -> Patch:
    original = Ghost.get_norm_sample

    def get_norm_sample(self: Any) -> Tensor:
        self.per_sample_gradient_norms = original(self) * factor
        return self.per_sample_gradient_norms

    return Ghost, "get_norm_sample", get_norm_sample


def noise_on_one_tensor(reference: Tensor, std: float, **_: Any) -> Any:
    return torch.randn_like(reference) * std * (2.0 if reference.dim() == 2 else 0.0)


#: Scripts and replaced functions of Opacus, with the tests that reject.
FAULTS: list[tuple[Script | Patch, set[str]]] = [
    (looped(scaled), {ADDED.title}),
    (looped(term_beside), {ADDED.title}),
    (after(lambda t: t.private.params[0].register_hook(lambda g: 3.0 * g)), {SUM_MOVED.title}),
    (norms_times(0.5), {SUM_MOVED.title}),
    ((optimizer_fast_gradient_clipping, "_generate_noise", lambda **_: 0.0), {WITHOUT_NOISE.title}),
    ((optimizer_fast_gradient_clipping, "_generate_noise", noise_on_one_tensor), {"chi-square of the quietest layer"}),
]


@pytest.mark.family
@pytest.mark.parametrize(("fault", "tests"), FAULTS)
def test_faults_deviate(fault, tests, tmp_path, monkeypatch):
    if isinstance(fault, tuple):
        monkeypatch.setattr(*fault)
    found = recorded(tmp_path / "run", Training.train if isinstance(fault, tuple) else fault)
    assert found.status == ("open", "deviates")
    assert all(any(name.startswith(test) for name in found.rejected) for test in tests)


class Twice(nn.Module):
    """Uses a weight in its layer and without it, where Opacus has no hook."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x)) + linear(x * 5.0, self.outer.weight)


@pytest.mark.ci
def test_a_layer_without_norms_is_found(tmp_path: Path) -> None:
    def tied(training: Training) -> None:
        model = Ghost(Twice(), max_grad_norm=training.clip)
        training.private.original_optimizer.param_groups[0]["params"] = list(model.parameters())
        for p in model.parameters():
            p.summed_grad = None
        training.model = training.criterion.module = model

    found = recorded(tmp_path / "run", prepare=tied)
    assert found.status == ("open", "deviates")
    assert SUM_MOVED.title in found.rejected


@pytest.mark.ci
@pytest.mark.parametrize(
    "mode", [contextlib.nullcontext, BaseTorchFunctionMode], ids=["replayed", "mode of the script"]
)
def test_norms_that_no_replay_tests_are_asked(mode: Any, tmp_path: Path) -> None:
    """Opacus' norm of an embedding has a shape that depends on the records."""

    def prepare(training: Training) -> None:
        words, table = torch.randint(0, 9, (300, 5)), nn.Embedding(9, 4, padding_idx=0)
        model = nn.Sequential(table, nn.Flatten(), nn.Linear(20, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(words, words[:, 0] // 5), batch_size=30)
        training.make_private(model, optimizer, loader, "ghost", max_grad_norm=0.05)

    def script(training: Training) -> None:
        with mode():
            training.train()

    found = recorded(tmp_path / "run", script, prepare=prepare)
    is_replayed = mode is contextlib.nullcontext
    assert (found.verdict == "proved", found.run.fact(Replays).replayed > 0) == (is_replayed, is_replayed)
    asked = any("each trained weight is used once" in line for line in found.audit.recording.confirm)
    assert asked is not is_replayed


@pytest.mark.ci
@pytest.mark.parametrize("clipping", ["flat", "ghost"])
@pytest.mark.parametrize("precision", ["high", "medium", "tf32"])
def test_coarse_products_leave_the_claim_open(precision: str, clipping: str, tmp_path: Path) -> None:
    backend: Any = torch.backends.cuda.matmul
    if precision != "tf32":
        torch.set_float32_matmul_precision(precision)
    elif hasattr(backend, "fp32_precision"):
        backend.fp32_precision = precision  # torch then refuses to name one precision of all backends
    else:
        pytest.skip("torch has one setting for all backends")
    try:
        found = opacus_training.recorded(tmp_path / "run", clipping=clipping)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert (found.status, found.assumption("precision").status) == (("open", "no-deviation-found"), "unchecked")


@pytest.mark.ci
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_multiplier_of_the_noise_counts(factor: float, tmp_path: Path) -> None:
    """Opacus' ghost optimizer prefers another attribute to the multiplier that its accountant counts."""

    def script(training: Training) -> None:
        training.train()
        training.private._adjusted_noise_multiplier = factor * training.noise
        training.train()

    found = recorded(tmp_path / "run", script)
    assert [phase.noise_multiplier for phase in phases_of(found.run)][-1] == min(1.0, factor) * 1.1
    assert not found.fine
    assert "noise_multiplier changed before step 21" in " ".join(one.text for one in found.assumptions)


@pytest.mark.ci
def test_passes_without_the_criterion_leave_the_claim_open(recordings: Recordings) -> None:
    found = check_run(recordings["ghost by hand"], Question(delta=1e-5, epsilon=100.0))
    assert found.status == ("open", "no-deviation-found")
    assert found.reason.startswith(f"The channel sensitivity is open: {PER_RECORD_CLIPPING}: ")
    assert "call backward() on the criterion's loss" in found.assumption(PER_RECORD_CLIPPING).text


def two_losses(training: Training, x: Tensor, y: Tensor) -> None:
    """The criterion clears the gradients of the earlier pass."""
    training.criterion(training.model(x), 1 - y).backward()
    training.criterion(training.model(x), y).backward()


def weighted(training: Training, x: Tensor, y: Tensor) -> None:
    (3.0 * training.criterion(training.model(x), y) + 1.0).backward()


@pytest.mark.ci
@pytest.mark.parametrize("step", [two_losses, weighted])
def test_other_losses_are_clipped_by_their_own_norms(step: Any, tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", looped(step)).fine
