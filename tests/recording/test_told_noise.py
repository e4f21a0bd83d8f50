"""A loop of one's own, whose noise is looked for in what its optimizer got: proved where it was measured there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dpspec
from dpspec.cli.run_check_page import run_page
from dpspec.engine.recorded.checked_run import CheckedRun, Question, check_run
from dpspec.engine.recorded.told_noise import GradientSums


def own(
    folder: Path,
    *,
    part: float = 1.0,
    width: int = 20,
    divisor: float = 50.0,
    after: bool = True,
    steps: int = 40,
    unclipped: float = 1.0,
    uncompared: int | None = None,
    **other: Any,
) -> CheckedRun:
    """``part`` of the noise that is told of is added, and contributions are ``unclipped`` times as long as is told.

    uncompared: the step at which the optimizer steps twice. other: ``divisor_told`` instead of the divisor.
    """
    torch.manual_seed(3)
    x = torch.randn(500, width)
    model = nn.Linear(width, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    given = {"noise_multiplier": 1.2, "clip_norm": 1.0, "rate": 0.1, "records": 500}
    given["divisor"] = other.get("divisor_told", divisor)
    with dpspec.record(folder, model=model, optimizer=optimizer, **given) as run:  # type: ignore[arg-type]
        for number in range(steps):
            drawn = (torch.rand(500) < 0.1).nonzero().squeeze(1)
            rows = torch.cat([x[drawn], -x[drawn], torch.ones(len(drawn), 2)], dim=1)
            rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)
            noise = 1.2 * torch.randn(2 * width + 2)
            total = (unclipped * rows.sum(0) + part * noise) / divisor
            model.weight.grad, model.bias.grad = total[: 2 * width].view(2, width).clone(), total[2 * width :].clone()
            if after:
                optimizer.step()
            if number == uncompared:
                optimizer.step()
            run.sampled(drawn)
            run.clipped(rows.norm(dim=1))
            run.noised(noise)
            if not after:
                optimizer.step()
            run.stepped()
    return check_run(folder, Question(delta=1e-5, epsilon=100.0))


def got(found: CheckedRun) -> Any:
    return next(check for check in found.checks if check.test.startswith("noise that was told of"))


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("divisor", [1.0, 50.0])
def test_noise_that_is_in_the_gradients_is_found_there(divisor: float, after: bool, tmp_path: Path) -> None:
    found = own(tmp_path / "run", divisor=divisor, after=after)
    assert (found.verdict, found.conformance.status) == ("proved", "conforms-within")
    assert got(found).p_value > 1e-3


@pytest.mark.parametrize("part", [0.0, -1.0, 0.5])
def test_noise_that_is_told_of_and_not_added_deviates(part: float, tmp_path: Path) -> None:
    found = own(tmp_path / "run", part=part, width=120)
    assert (found.verdict, found.conformance.status) == ("open", "deviates")
    assert got(found).p_value < 1e-12
    assert "is not in the gradients" in run_page(found, 200)


def test_noise_that_is_told_of_and_not_added_is_seen_without_the_divisor(tmp_path: Path) -> None:
    """As a whole: half of it is that of another divisor."""
    found = own(tmp_path / "run", part=0.0, width=120, divisor_told=None)
    assert (found.verdict, found.conformance.status) == ("open", "deviates")
    assert got(found).p_value < 1e-12
    half = own(tmp_path / "half", part=0.5, width=120, divisor_told=None)
    assert (half.verdict, half.conformance.status) == ("open", "conforms-within")


@pytest.mark.parametrize("seed", range(7))
@pytest.mark.parametrize("part", [0.0, 0.5])
@pytest.mark.parametrize("told", ["all", "no-divisor", "no-optimizer"])
def test_a_short_run_without_its_noise_is_never_proved(part: float, seed: int, told: str, tmp_path: Path) -> None:
    """60 steps of a linear model, batches of 30 records: too little to see noise missing whatever the divisor is."""
    torch.manual_seed(seed)
    x, y = torch.randn(600, 40), torch.randint(0, 2, (600,))
    model = nn.Linear(40, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    given: dict[str, Any] = {"noise_multiplier": 1.0, "clip_norm": 1.0, "rate": 0.05, "records": 600}
    given |= {} if told == "no-divisor" else {"divisor": 30.0}
    given |= {} if told == "no-optimizer" else {"optimizer": optimizer}
    with dpspec.record(tmp_path / "run", model=model, **given) as run:
        for _ in range(60):
            drawn = (torch.rand(600) < 0.05).nonzero().squeeze(1)
            with torch.no_grad():
                apart = torch.softmax(model(x[drawn]), 1) - nn.functional.one_hot(y[drawn], 2)
                rows = torch.cat([(apart[:, :, None] * x[drawn][:, None, :]).flatten(1), apart], dim=1)
            rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)
            noise = torch.randn(82)
            total = (rows.sum(0) + part * noise) / 30.0
            model.weight.grad, model.bias.grad = total[:80].view(2, 40).clone(), total[80:].clone()
            optimizer.step()
            run.sampled(drawn)
            run.clipped(rows.norm(dim=1))
            run.noised(noise)
            run.stepped()
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    assert (found.verdict, found.exit_code) == ("open", 1)
    if told == "all":
        assert found.conformance.status == "deviates"
        return
    said = next(one for one in found.assumptions if one.name == "told-by-the-loop")
    assert said.status == "unchecked"
    assert f"give {'optimizer=' if told == 'no-optimizer' else 'divisor='}" in said.text


@pytest.mark.parametrize(("steps", "verdict"), [(3, "open"), (40, "proved")])
def test_a_run_that_is_too_short_to_see_half_of_the_noise_missing_proves_nothing(
    steps: int, verdict: str, tmp_path: Path
) -> None:
    found = own(tmp_path / "run", steps=steps)
    assert (found.verdict, found.conformance.status) == (verdict, "conforms-within")
    assert ("too short to see half of it missing" in found.reason) is (verdict == "open")


def test_an_update_that_nobody_compared_proves_nothing(tmp_path: Path) -> None:
    found = own(tmp_path / "run", uncompared=7)
    assert found.verdict == "open"
    assert "39 of 40 steps could be compared" in next(a.text for a in found.assumptions if a.name == "told-by-the-loop")


def test_contributions_that_are_told_of_as_clipped_and_are_not_are_seen(tmp_path: Path) -> None:
    """The sum, which the gradients show but for the noise that was told of, is longer than what it is made of."""
    found = own(tmp_path / "run", unclipped=20.0)
    assert found.conformance.status == "deviates"
    assert any(c.test.startswith("steps whose sum is longer") and c.p_value == 0.0 for c in found.checks)


@pytest.mark.parametrize("missing", [0.05, 0.2, 0.5, 1.0])
def test_what_would_have_been_seen_is_what_is_seen(missing: float) -> None:
    """The share that is called detectable, in runs of which it is missing, is seen as often as that is said."""
    source = np.random.default_rng(9)
    steps, width = 60, 80
    seen, wanted = [], []
    for _ in range(200):
        noise, total = source.normal(size=(2, steps, width))
        got = total + (1.0 - missing) * noise
        whole = total + noise
        made = [
            GradientSums(
                steps=steps,
                product=(one * noise).sum(),
                of_got=(one**2).sum(),
                of_noise=(noise**2).sum(),
                most=1.0,
                told=True,
                fixed=steps * width,
            )
            for one in (got, whole)
        ]
        seen.append(made[0].p_value() <= 1e-9)
        wanted.append((made[1].detectable() or 2.0) <= missing)
    assert abs(np.mean(seen) - np.mean(wanted)) <= 0.1
    assert np.mean(wanted) in (0.0, 1.0)


@pytest.mark.parametrize("told", [True, False])
def test_the_p_value_holds_its_level_at_the_true_divisor(told: bool) -> None:
    """Many loops with their noise: p-values are no smaller than they may be, whatever the sums look like."""
    source = np.random.default_rng(8)
    found = []
    for _ in range(2000):
        steps, width, size = 20, 8, source.choice([0.1, 1.0, 10.0])
        noise = source.normal(size=(steps, width))
        total = size * source.normal(size=width) + noise  # a fixed sum of gradients
        a, of_got, of_noise = (total * noise).sum(), (total**2).sum(), (noise**2).sum()
        sums = GradientSums(
            steps=steps, product=a, of_got=of_got, of_noise=of_noise, most=1.0, told=told, fixed=steps * width
        )
        found.append(sums.p_value())
    small = np.array(found)
    assert all((small <= level).mean() <= level + 3 * (level / 2000) ** 0.5 for level in (0.1, 0.01))


def test_a_loop_of_ones_own_is_not_told_what_it_told(tmp_path: Path) -> None:
    found = own(tmp_path / "run")
    page = run_page(found, 200)
    assert "not recognised" not in page
    assert "steps before the recording were not looked for" in page
    assert "1900%" not in page
    assert "any to" not in page
