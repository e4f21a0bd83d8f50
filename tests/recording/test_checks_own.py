"""Advice that follows the rejected checks of a recorded run."""

from __future__ import annotations

import torch
from support.checked_runs import Question, check_run
from torch import nn

import dpspec
from dpspec.contract import Check
from dpspec.engine.judging.conformance_status import rejected
from dpspec.engine.recorded.checks import advice


def plain_loop(folder, scales=(1.0, 1.0), draw="poisson") -> dict[str, str]:
    """The advice of each rejected check of a plain loop, whose noise has these scales in its two layers."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(40, 8, bias=False), nn.Linear(8, 5, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sizes = [320, 40]
    given = {"noise_multiplier": 1.0, "clip_norm": 2.0, "records": 500, "rate": 0.1}
    with dpspec.record(folder, model=model, optimizer=optimizer, **given) as run:
        for step in range(60):
            if step % 10 == 0:
                order = torch.randperm(500)
            drawn = {
                "poisson": (torch.rand(500) < 0.1).nonzero().squeeze(1),
                "randperm": torch.randperm(500)[:50],
                "epochs": order[50 * (step % 10) : 50 * (step % 10) + 50],
            }[draw]
            run.sampled(drawn)
            run.clipped(2.0 * torch.ones(len(drawn)))
            noise = [2.0 * scale * torch.randn(size) for scale, size in zip(scales, sizes, strict=True)]
            for p, part in zip(model.parameters(), noise, strict=True):
                p.grad = (0.1 + part.view_as(p)) / 50.0
            run.summed(torch.full((360,), 0.1))
            run.noised(torch.cat(noise))
            optimizer.step()
            run.stepped()
    checks = check_run(folder, Question(delta=1e-5)).checks
    bad = [check for check in checks if rejected(check, len(checks))]
    return {f"{check.test}; {check.note}": advice(check, bad) for check in bad}


def test_half_the_noise_everywhere_is_advice_about_the_noise_multiplier(tmp_path):
    given = plain_loop(tmp_path / "run", scales=(0.5, 0.5))
    words = set(given.values()) - {""}
    assert len(words) == 1
    assert words.pop().startswith("All noise has 0.5")
    assert any(name.startswith("chi-square of the quietest layer") for name in given)


def test_less_noise_on_one_tensor_is_advice_about_that_tensor(tmp_path):
    given = plain_loop(tmp_path / "run", scales=(0.5, 1.0))
    words = " ".join(given.values())
    assert "One tensor of the model got less noise than the others" in words
    assert "All noise has" not in words


def test_batches_of_one_size_are_advice_about_poisson_samples(tmp_path):
    words = " ".join(plain_loop(tmp_path / "run", draw="randperm").values())
    assert "All batches have the same size, as torch.randperm(records)[:size] draws them" in words
    assert "shuffled epoch" not in words


def test_shuffled_epochs_are_advice_about_poisson_samples(tmp_path):
    words = " ".join(plain_loop(tmp_path / "run", draw="epochs").values())
    assert "All records were drawn equally often, as from a shuffled epoch" in words


def test_poisson_samples_and_declared_noise_need_no_advice(tmp_path):
    assert plain_loop(tmp_path / "run") == {}


def test_a_check_by_itself_keeps_its_advice():
    layer = Check(
        assumption="per-layer-noise",
        test="chi-square of the quietest layer",
        p_value=0.0,
        note="in each layer, least in 0.weight",
        measured=0.5,
        observed="reported",
    )
    assert advice(layer).startswith("One tensor of the model")
