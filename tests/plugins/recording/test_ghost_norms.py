"""Norms of Opacus' ghost clipping against autograd, record by record, and the layers that a recording names."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from support import opacus_training
from support.checked_runs import CheckedRun, Question, check_run
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from dpspec_recording.judge.assumptions import PER_RECORD_CLIPPING
from dpspec_recording.sums.ghost_norms import unverified_norms

pytestmark = pytest.mark.filterwarnings("ignore")


class Head(nn.Module):
    """Two outputs from the mean square of a layer's outputs over all dimensions but the first two or the last."""

    def __init__(self, layer: nn.Module, width: int, *, channels: bool = False) -> None:
        super().__init__()
        self.layer, self.channels, self.head = layer, channels, nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Any = self.layer(x)
        out = out[0] if isinstance(out, tuple) else out
        if self.channels:
            out = out.flatten(2).square().mean(2)
        elif out.dim() > 2:
            out = out.square().mean(1)
        return self.head(out)  # type: ignore[no-any-return]


class Bags(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(8, 4, **options)

    def forward(self, tokens: Tensor) -> Tensor:
        starts = torch.arange(len(tokens)) * tokens.shape[1]
        return self.table(tokens.reshape(-1), starts)  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = DPMultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """A layer of a script, without a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.scale**2


class Padded(nn.Conv1d):
    """A class of its own: it has no formula."""


def tokens() -> Tensor:
    drawn = torch.randint(0, 8, (6, 5))
    drawn[0], drawn[1, :3] = 3, 0
    return drawn


def images() -> Tensor:
    return torch.randn(6, 4, 7, 6)


def series() -> Tensor:
    return torch.randn(6, 4, 9)


def sequences() -> Tensor:
    return torch.randn(6, 5, 4)


Made = tuple[Callable[[], nn.Module], Callable[[], Tensor]]

RIGHT: dict[str, Made] = {
    "Linear": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), lambda: torch.randn(6, 4)),
    "Linear of tokens": (lambda: Head(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)), 4), sequences),
    "Embedding": (lambda: Head(nn.Embedding(8, 4), 4), tokens),
    "Embedding with padding": (lambda: Head(nn.Embedding(8, 4, padding_idx=0), 4), tokens),
    "LayerNorm": (lambda: Head(nn.LayerNorm(4), 4), sequences),
    "RMSNorm": (lambda: Head(nn.RMSNorm(4), 4), sequences),
    "GroupNorm": (lambda: Head(nn.GroupNorm(2, 4), 4, channels=True), images),
    "InstanceNorm": (lambda: Head(nn.InstanceNorm2d(4, affine=True), 4, channels=True), images),
    "Conv1d": (lambda: Head(nn.Conv1d(4, 3, 3, stride=2, dilation=2, padding=1), 3, channels=True), series),
    "Conv1d same": (lambda: Head(nn.Conv1d(4, 3, 4, padding="same"), 3, channels=True), series),
    "Conv2d": (lambda: Head(nn.Conv2d(4, 6, (3, 2), stride=2, groups=2, padding=1), 6, channels=True), images),
    "Conv3d": (
        lambda: Head(nn.Conv3d(2, 3, 2, dilation=2), 3, channels=True),
        lambda: torch.randn(6, 2, 4, 4, 4),
    ),
    "ConvTranspose1d": (lambda: Head(nn.ConvTranspose1d(4, 3, 3), 3, channels=True), series),
    "derived Conv1d": (lambda: Head(Padded(4, 3, 3, padding=1, padding_mode="circular"), 3, channels=True), series),
    "DPLSTM": (lambda: Head(DPLSTM(4, 4, num_layers=2, batch_first=True, bidirectional=True), 8), sequences),
    "DPGRU": (lambda: Head(DPGRU(4, 4, batch_first=True), 4), sequences),
    "DPMultiheadAttention": (lambda: Head(Attention(), 4), sequences),
    "own layer": (lambda: Head(Scaled(), 4), sequences),
}

WRONG: dict[str, Made] = {
    "EmbeddingBag sum": (lambda: Head(Bags(mode="sum"), 4), tokens),
    "EmbeddingBag mean": (lambda: Head(Bags(mode="mean"), 4), tokens),
    "EmbeddingBag padding": (lambda: Head(Bags(mode="mean", padding_idx=0), 4), tokens),
    "Conv1d replicate": (
        lambda: Head(nn.Conv1d(4, 3, 3, padding=1, padding_mode="replicate"), 3, channels=True),
        series,
    ),
    "Conv2d circular": (lambda: Head(nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"), 3, channels=True), images),
    "Conv2d reflect": (lambda: Head(nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect"), 3, channels=True), images),
}


def largest_ratio(model: GradSampleModuleFastGradientClipping, x: Tensor) -> float:
    """The largest ratio of the norm of a record's gradient by autograd to the norm by Opacus."""
    losses = cross_entropy(model(x), torch.arange(len(x)) % 2, reduction="none")
    losses.mean().backward(retain_graph=True)
    norms = model.get_norm_sample()
    model.disable_hooks()
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
    exact = torch.stack([torch.cat([g.flatten() for g in record]).norm() for record in gradients])
    return float((exact / norms).max())


@pytest.mark.family
@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_layers_with_a_smaller_norm_than_autograd_are_named(name: str) -> None:
    torch.manual_seed(1)
    make, inputs = {**RIGHT, **WRONG}[name]
    model = GradSampleModuleFastGradientClipping(make(), use_ghost_clipping=True, strict=False)
    assert bool(list(unverified_norms(model))) is (name in WRONG)
    ratio = largest_ratio(model, inputs())
    assert ratio > 1.001 if name in WRONG else ratio < 1.0 + 1e-4


def test_frequencies_of_the_batch_and_formulas_of_scripts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    scaled = nn.Sequential(nn.Embedding(8, 4, scale_grad_by_freq=True), nn.Linear(4, 2))
    model = GradSampleModuleFastGradientClipping(scaled)
    assert list(unverified_norms(model)) == ["0 (Embedding)"]
    monkeypatch.setattr(GradSampleModuleFastGradientClipping, "NORM_SAMPLERS", dict(model.NORM_SAMPLERS))
    monkeypatch.setattr(GradSampleModuleFastGradientClipping, "GRAD_SAMPLERS", dict(model.GRAD_SAMPLERS))
    model.NORM_SAMPLERS[nn.Linear] = lambda *_: {}
    model.GRAD_SAMPLERS[Scaled] = lambda *_: {}
    assert list(unverified_norms(model)) == ["0 (Embedding)", "1 (Linear)"]
    assert list(unverified_norms(GradSampleModuleFastGradientClipping(Scaled()))) == ["model (Scaled)"]
    frozen = nn.Sequential(nn.EmbeddingBag(8, 4).requires_grad_(False), nn.Linear(4, 2))
    frozen_model = GradSampleModuleFastGradientClipping(frozen, use_ghost_clipping=False)
    assert list(unverified_norms(frozen_model)) == []


class BagTraining(opacus_training.PrivateTraining):
    """Bags of tokens, of which each record has different ones."""

    epochs, noise, clip = 2, 1.0, 1.0

    def __init__(self, folder: Path, mode: str) -> None:
        self.folder = folder
        torch.manual_seed(opacus_training.SECRET)
        data = TensorDataset(torch.rand(200, 8).argsort(1)[:, :3], torch.randint(0, 2, (200,)))
        model = Head(Bags(mode="mean"), 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        self.make_private(model, optimizer, DataLoader(data, batch_size=20), mode)

    def checked(self) -> CheckedRun:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with self.recorder():
                self.train()
        return check_run(self.folder, Question(delta=1e-5, epsilon=100.0))


@pytest.mark.ci
def test_ghost_clipping_of_a_named_layer_is_open(tmp_path: Path) -> None:
    run = BagTraining(tmp_path / "run", "ghost").checked()
    assert run.status == ("open", "no-deviation-found")
    assert "layer.table (EmbeddingBag)" in run.assumption(PER_RECORD_CLIPPING).text
    assert "grad_sample_mode='hooks'" in run.reason
    question = Question(delta=1e-5, epsilon=100.0, assume=(PER_RECORD_CLIPPING,))
    assert check_run(tmp_path / "run", question).verdict == "proved"


@pytest.mark.ci
def test_gradients_of_single_records_are_proved(tmp_path: Path) -> None:
    assert BagTraining(tmp_path / "run", "hooks").checked().fine
