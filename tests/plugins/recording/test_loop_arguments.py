"""Custom loops that omit arguments of dpspec.record: their claims are open, and the report names what to pass."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import checked
from torch import nn

import dpspec

ARGUMENTS: dict[str, Any] = {"noise_multiplier": 1.2, "clip_norm": 3.0, "rate": 0.1, "records": 200}


def loop(folder: Path, *omitted: str, steps: int = 30, declared_after: int = 0) -> None:
    """Record honest steps, whose noise has 3.6 times the standard deviation of normal values."""
    torch.manual_seed(5)
    model = nn.Linear(20, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    declared = {name: value for name, value in ARGUMENTS.items() if name not in omitted}
    with dpspec.record(folder, model=model, optimizer=optimizer, **declared) as run:
        for number in range(steps):
            if declared_after and number == declared_after:
                run.declare(**{name: ARGUMENTS[name] for name in omitted})
            drawn = (torch.rand(200) < 0.1).nonzero().squeeze(1)
            total = [torch.full_like(p, 0.1) for p in model.parameters()]
            noise = [3.6 * torch.randn_like(p) for p in model.parameters()]
            for p, part, its_noise in zip(model.parameters(), total, noise, strict=True):
                p.grad = (part + its_noise) / 20
            optimizer.step()
            run.sampled(drawn)
            run.clipped(torch.full((len(drawn),), 3.0))
            run.summed(total)
            run.noised(noise)
            run.stepped()


def test_a_loop_with_all_arguments_is_proved(tmp_path: Path) -> None:
    loop(tmp_path / "run")
    assert checked(tmp_path / "run", epsilon=50.0, delta=1e-5, accept=("not-replayed",)).fine


@pytest.mark.parametrize(
    ("omitted", "channels"),
    [
        (("noise_multiplier",), {"noise", "sensitivity"}),
        (("clip_norm",), {"noise", "sensitivity"}),
        (("noise_multiplier", "clip_norm"), {"noise", "sensitivity"}),
        (("rate",), {"sampling"}),
        (("records",), {"sampling"}),
        (tuple(ARGUMENTS), {"noise", "sensitivity", "sampling"}),
    ],
)
def test_an_omitted_argument_leaves_a_claim_open(omitted: tuple[str, ...], channels: set[str], tmp_path: Path) -> None:
    loop(tmp_path / "run", *omitted)
    result = checked(tmp_path / "run", epsilon=50.0, delta=1e-5, accept=("not-replayed",))
    assert result.status == ("open", "no-deviation-found")
    assert {channel.name for channel in result.channels if channel.status == "open"} == channels
    told = " ".join(channel.reason for channel in result.channels)
    assert all(f"no {name}= (" in told for name in omitted)
    assert "was not observed" not in told + " ".join(result.cautions)
    assert "were not reported" not in " ".join(result.cautions)


def test_an_assumed_channel_does_not_prove_noise_without_a_scale(tmp_path: Path) -> None:
    loop(tmp_path / "run", "clip_norm")
    assert (
        checked(tmp_path / "run", epsilon=50.0, delta=1e-5, accept=("not-replayed",), assume=("sensitivity",)).verdict
        == "open"
    )


@pytest.mark.parametrize("declared_after", [1, 10])
def test_a_rate_that_is_declared_late_leaves_a_claim_open(declared_after: int, tmp_path: Path) -> None:
    """The reported batches of the steps before it were called unobserved."""
    loop(tmp_path / "run", "rate", declared_after=declared_after)
    result = checked(tmp_path / "run", epsilon=50.0, delta=1e-5, accept=("not-replayed",))
    assert result.status == ("open", "no-deviation-found")
    assert {"sampling"} <= {channel.name for channel in result.channels if channel.status == "open"}
    assert "no rate= (" in " ".join(channel.reason for channel in result.channels)
