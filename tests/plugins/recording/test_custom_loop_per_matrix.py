"""Clipping of each matrix to its own threshold, and Muon after the noise (DP-Muon, arXiv 2605.12994).

Thresholds C_i bound the whole gradient of a record by the root of the sum of their squares. Momentum and
orthogonalization read only the noisy sum.
"""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checked_runs import CheckedRun, checked
from support.public_mistakes.parts import DELTA, FEATURES, OpacusTraining, OwnLoop
from torch import Tensor, nn

from dpspec.accounting import PrivacyLoss

pytestmark = pytest.mark.filterwarnings("ignore")

THRESHOLDS = (0.6, 0.8)
JOINT = math.hypot(*THRESHOLDS)
STEPS = 40


def matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16, bias=False), nn.Tanh(), nn.Linear(16, 2, bias=False))


def orthogonal(matrix: Tensor) -> Tensor:
    """Muon's quintic iteration of Newton and Schulz."""
    x = matrix / matrix.norm().clamp_min(1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


class OwnMuon(torch.optim.Optimizer):
    """Muon as scripts copy it: momentum, then an orthogonal update."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for p in self.param_groups[0]["params"]:
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            momentum.mul_(0.95).add_(p.grad)
            p.sub_(orthogonal(momentum), alpha=self.param_groups[0]["lr"])


def trained(
    folder: Path,
    stds: tuple[float, float],
    clip: float,
    norms_of_last: bool = False,
    optimizer: type[torch.optim.Optimizer] = torch.optim.Muon,
) -> CheckedRun:
    """Clip each matrix to its threshold and add noise of its ``stds``; declare noise multiplier 1 for ``clip``."""
    loop = OwnLoop(model=matrices(), sigma=1.0, clip=clip, optimizer=optimizer)
    for run, drawn in loop.recorded(folder, STEPS):
        total, squares = [], torch.zeros(len(drawn))
        for rows, threshold in zip(loop.rows(drawn), THRESHOLDS, strict=True):
            lengths = rows.flatten(1).norm(dim=1)
            factors = (threshold / lengths.clamp_min(1e-12)).clamp_max(1.0)
            total.append(torch.einsum("i,i...", factors, rows))
            squares = (lengths * factors) ** 2 + (0.0 if norms_of_last else squares)
        noise = [std * torch.randn_like(p) for std, p in zip(stds, loop.parameters, strict=True)]
        loop.step(run, drawn, squares.sqrt(), total, noise)
    return checked(folder, epsilon=10.0)


@pytest.mark.ci
def test_matrices_clipped_alone_are_proved_with_noise_for_all_of_them(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", (JOINT, JOINT), JOINT)
    assert run.fine
    assert run.costs[1].interval.upper == pytest.approx(sampled(1.0).epsilon(DELTA).upper, rel=1e-4)


@pytest.mark.ci
def test_a_muon_of_the_script_is_post_processing_too(tmp_path: Path) -> None:
    assert trained(tmp_path / "run", (JOINT, JOINT), JOINT, optimizer=OwnMuon).fine


@pytest.mark.ci
@pytest.mark.parametrize(
    ("stds", "clip", "norms_of_last"),
    [
        ((0.8, 0.8), 0.8, False),  # noise for the largest threshold, which is declared
        ((0.8, 0.8), 0.8, True),  # the norms of the last matrix alone agree with it
        ((0.8, 0.8), JOINT, False),  # noise for the largest threshold, and the declared norm of all
        (THRESHOLDS, 0.8, True),  # each matrix has noise for itself, as one matrix alone would need
        (THRESHOLDS, JOINT, False),
    ],
)
def test_noise_for_one_matrix_deviates(
    stds: tuple[float, float], clip: float, norms_of_last: bool, tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", stds, clip, norms_of_last)
    assert run.conformance.status == "deviates"
    assert run.verdict != "proved"


@pytest.mark.ci
@pytest.mark.parametrize("clipping", ["flat", "per_layer"])
def test_muon_inside_of_opacus_is_proved(clipping: str, tmp_path: Path) -> None:
    training = OpacusTraining(
        matrices(),
        sigma=1.0,
        clip=list(THRESHOLDS) if clipping == "per_layer" else JOINT,
        inner=lambda model: torch.optim.Muon(model.parameters(), lr=0.02),
        clipping=clipping,
    )
    for x, y in training.recorded(tmp_path / "run", 4):
        training.step(training.criterion(training.model(x), y))
    run = checked(tmp_path / "run", epsilon=10.0)
    assert run.fine
    assert run.costs[1].interval.upper == pytest.approx(sampled(1.0).epsilon(DELTA).upper, rel=1e-4)


def sampled(noise_multiplier: float, steps: int = STEPS, rate: float = 0.1) -> PrivacyLoss:
    return PrivacyLoss.of_steps([(noise_multiplier, rate, steps)], direction="present-first")


def delta_of_two_matrices(stds: tuple[float, float], rate: float, epsilon: float) -> float:
    """Delta of one sampled step by quadrature over both matrices, for a record that both thresholds clip."""
    axes = [np.linspace(-9.0 * std, 9.0 * std + c, 1501) for std, c in zip(stds, THRESHOLDS, strict=True)]
    x = np.meshgrid(*axes, indexing="ij")
    cell = math.prod(axis[1] - axis[0] for axis in axes)

    def density(shifts: tuple[float, float]) -> np.ndarray:
        squares = sum(((x[i] - shifts[i]) / stds[i]) ** 2 for i in range(2))
        return np.exp(-0.5 * squares) / (2.0 * math.pi * math.prod(stds))

    absent = density((0.0, 0.0))
    present = (1.0 - rate) * absent + rate * density(THRESHOLDS)
    return float(np.maximum(0.0, present - math.exp(epsilon) * absent).sum() * cell)


@pytest.mark.family
@pytest.mark.parametrize("stds", [(0.9, 2.0), (JOINT, JOINT), (0.8, 0.8), THRESHOLDS])
def test_the_thresholds_add_as_the_root_of_their_squares(stds: tuple[float, float]) -> None:
    """Noise of standard deviation s_i in matrix i has the multiplier 1 / root of the sum of (C_i / s_i)^2."""
    multiplier = 1.0 / math.hypot(*(c / std for c, std in zip(THRESHOLDS, stds, strict=True)))
    epsilon = 0.5
    interval = sampled(multiplier, steps=1).delta(epsilon)
    assert delta_of_two_matrices(stds, 0.1, epsilon) == pytest.approx(interval.upper, rel=1e-4)


def test_noise_for_single_matrices_costs_as_their_number() -> None:
    """40 steps at rate 0.1, noise multiplier 1 for each matrix's threshold: one matrix, two, and 24."""
    by_count = [round(sampled(1.0 / math.sqrt(n)).epsilon(DELTA).upper, 4) for n in (1, 2, 24)]
    assert by_count == [4.6883, 9.5604, 153.048]
