"""Noise that is rounded together with its sum leaves repeats untested; noise that is rounded alone is found."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.checked_runs import Question, check_run
from torch import Tensor, nn

import dpspec
from dpspec_recording.watching.noise_sketch import NoiseSketch
from dpspec_recording.watching.noise_watch import NoiseWatch, spacing_of

FLOAT32 = 2.0**-23


@pytest.mark.parametrize(("spacing", "values"), [(2.0**-10, 8000), (1e-3, 8000), (0.03, 500), (0.125, 100)])
def test_the_spacing_of_rounded_values_is_found(spacing: float, values: int) -> None:
    drawn = np.random.default_rng(3).normal(size=values)
    rounded = (np.rint(drawn / spacing) * spacing).astype(np.float32).astype(np.float64)
    assert spacing_of(np.abs(rounded), FLOAT32) == pytest.approx(spacing, rel=1e-4)


@pytest.mark.parametrize("values", [64, 500, 4000])
def test_unrounded_values_have_no_spacing(values: int) -> None:
    drawn = np.random.default_rng(3).normal(size=values).astype(np.float32).astype(np.float64)
    assert spacing_of(np.abs(drawn), FLOAT32) == 0.0


def spacing(noise: Tensor, total: Tensor) -> float:
    """The spacing that a recording of ten steps has."""
    watch, sketch = NoiseWatch([torch.zeros(noise.shape[1])]), NoiseSketch([noise.shape[1]])
    for one, of_sum in zip(noise, total, strict=True):
        watch.add(sketch.measure([one[None]], [of_sum[None]]), [1.0])
    found = watch.found()
    assert found is not None
    return found.spacing


@pytest.mark.parametrize(("noise", "sums"), [(True, True), (True, False), (False, True), (False, False)])
def test_noise_and_sums_are_on_one_grid_or_none(noise: bool, sums: bool) -> None:
    torch.manual_seed(4)
    drawn, total = torch.randn(10, 100), 3.0 * torch.randn(10, 100)
    found = spacing(rounded(drawn, 64.0) if noise else drawn, rounded(total, 64.0) if sums else total)
    assert found == (1 / 64 if noise and sums else 0.0)


def test_sums_of_zeros_are_on_no_grid() -> None:
    assert spacing(rounded(torch.randn(10, 200), 64.0), torch.zeros(10, 200)) == 0.0


def rounded(values: Tensor, scale: float) -> Tensor:
    return torch.round(scale * values) / scale


def record_rounded_loop(folder: Path, scale: float, *, sums: bool) -> None:
    """Record 60 steps of least squares with noise on a grid. sums: whether each contribution is rounded to it too."""
    torch.manual_seed(6)
    features, targets = torch.randn(200, 80), torch.randn(200)
    model = nn.Linear(80, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"noise_multiplier": 1.0, "clip_norm": 1.0, "rate": 0.2, "records": 200}
    with dpspec.record(folder, model=model, optimizer=optimizer, **given) as run:
        for _ in range(60):
            drawn = (torch.rand(200) < 0.2).nonzero().squeeze(1)
            x = features[drawn]
            rows = 2.0 * (x @ model.weight.detach()[0] - targets[drawn])[:, None] * x
            rows *= (0.99 / rows.norm(dim=1, keepdim=True)).clamp_max(1.0)  # rounding may lengthen a row by 1 %
            rows = rounded(rows, scale) if sums else rows
            total, noise = rows.sum(0)[None], rounded(torch.randn(1, 80), scale)
            model.weight.grad = (total + noise) / 40.0
            optimizer.step()
            run.sampled(drawn)
            run.clipped(rows.norm(dim=1))
            run.summed([total])
            run.noised([noise])
            run.stepped()


@pytest.mark.ci
@pytest.mark.parametrize("scale", [1024.0, 1000.0, 2.0**17])
def test_noise_that_is_rounded_with_its_sum_is_asked(tmp_path: Path, scale: float) -> None:
    record_rounded_loop(tmp_path / "run", scale, sums=True)
    run = check_run(tmp_path / "run", Question(epsilon=40.0, delta=1e-5))
    assert (run.verdict, run.conformance.status) == ("open", "no-deviation-found")
    (assumption,) = [one for one in run.assumptions if one.name == "noise-law"]
    assert assumption.status == "unchecked"
    assert "noise and sums are multiples of " in assumption.text
    assumed = check_run(tmp_path / "run", Question(epsilon=40.0, delta=1e-5, assume=("noise-law",)))
    assert assumed.verdict == "proved"


def test_noise_that_is_rounded_alone_deviates(tmp_path: Path) -> None:
    record_rounded_loop(tmp_path / "run", 1000.0, sums=False)
    assert check_run(tmp_path / "run", Question(epsilon=40.0, delta=1e-5)).conformance.status == "deviates"
