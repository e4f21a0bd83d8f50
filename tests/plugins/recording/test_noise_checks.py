"""Noise of a custom loop in the gradients of its optimizer, and statistics of noise in an end record."""

import math
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run, run_page
from support.facts_only import run_with
from torch import nn

import dpspec
from dpspec_recording.observers.noise.noise import ALONG, INDEPENDENCE, PAIRS, Noise
from dpspec_recording.outcomes.issue import checks_of, with_tests
from dpspec_recording.pending_step import PendingStep
from dpspec_recording.sums.loop_gradients import LoopGradients
from dpspec_recording.watching.noise_statistics import (
    INTERVALS,
    UNKNOWN,
    AlongSums,
    Extremes,
    NoiseFacts,
    NoiseStatistics,
    Quietest,
    Repeats,
    statistic,
)


def own(
    folder: Path,
    *,
    part: float = 1.0,
    without: slice = slice(0, 0),
    at: int | None = None,
    width: int = 20,
    divisor: float = 50.0,
    after: bool = True,
    steps: int = 40,
    unclipped: float = 1.0,
    uncompared: int | None = None,
    summed: str = "before",
    kind: torch.dtype = torch.float32,
    decay: float = 0.0,
    closure: bool = False,
    honest: bool = False,
    seen: bool = True,
    noise_kind: torch.dtype | None = None,
) -> CheckedRun:
    """Add ``part`` of the reported noise, and contributions of ``unclipped`` times the reported norm.

    without: coordinates without noise, at all steps or at step ``at``. uncompared: the step with two optimizer steps.
    summed: report the sum ``before`` or ``after`` the noise is added, or ``never``. kind: of the gradients. decay:
    manual weight decay. closure: the optimizer steps with the gradients of a closure, without noise. honest: report the
    added noise instead of the declared one. seen: the recorder gets the optimizer. noise_kind: of the noise.
    """
    torch.manual_seed(3)
    x = torch.randn(500, width).to(kind)
    model = nn.Linear(width, 2).to(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    given: Any = {"noise_multiplier": 1.2, "clip_norm": 1.0, "rate": 0.1, "records": 500}
    given |= {"optimizer": optimizer} if seen else {}

    def plain() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[:50]), torch.zeros(50, dtype=torch.long))
        loss.backward()
        return loss

    with dpspec.record(folder, model=model, **given) as run:
        for number in range(steps):
            drawn = (torch.rand(500) < 0.1).nonzero().squeeze(1)
            rows = torch.cat([x[drawn], -x[drawn], torch.ones(len(drawn), 2, dtype=kind)], dim=1)
            rows = 0.95 * rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)
            noise = (1.2 * torch.randn(2 * width + 2)).to(kind).to(noise_kind or kind)
            added = part * noise
            if at in (None, number):
                added[without] = 0.0
            clipped = unclipped * rows.sum(0)
            held = torch.cat([p.detach().flatten() for p in model.parameters()])
            total = (clipped + added) / divisor + decay * held
            model.weight.grad, model.bias.grad = total[: 2 * width].view(2, width).clone(), total[2 * width :].clone()
            if after:
                optimizer.step(plain if closure else None)
            if number == uncompared:
                optimizer.step()
            run.sampled(drawn)
            run.clipped(rows.norm(dim=1))
            run.noised(added if honest else noise)
            if summed != "never":
                run.summed(clipped + added if summed == "after" else clipped)
            if not after:
                optimizer.step()
            run.stepped()
    return check_run(folder, Question(delta=1e-5, epsilon=100.0))


def others(found: CheckedRun) -> Any:
    return next(check for check in found.tests if check.test.startswith("gradients other than the reported"))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("divisor", "after", "steps"), [(1.0, True, 40), (1.0, False, 1), (50.0, True, 3), (50.0, False, 40)]
)
def test_noise_that_is_in_the_gradients_is_found_there(divisor: float, after: bool, steps: int, tmp_path: Path) -> None:
    found = own(tmp_path / "run", divisor=divisor, after=after, steps=steps)
    assert found.status == ("proved", "no-deviation-found")
    assert (others(found).p_value, others(found).measured) == (1.0, 0)
    assert np.allclose(found.run["divisor"], divisor, rtol=1e-6)
    assert "steps before the recording were not checked" in run_page(found, 200)


FIRST, LAST = slice(0, 40), slice(40, 42)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("given", "measured", "words"),
    [
        *(({"part": part}, 40, "noise is missing") for part in (0.0, -1.0, 0.5, 0.999)),
        *(({"without": without}, 40, "noise is missing") for without in (FIRST, LAST, slice(41, 42))),
        ({"without": slice(0, 42), "at": 17}, 1, "noise is missing"),
        ({"without": slice(41, 42), "at": 39}, 1, "noise is missing"),
        ({"summed": "after"}, 40, "the sum was reported after the noise"),
        # the noise is missing from the gradients, and was taken away from the sum
        ({"part": -1.0, "summed": "after", "width": 120}, None, ""),
        ({"unclipped": 20.0}, None, "steps with a sum longer"),
    ],
)
def test_gradients_that_are_not_sum_and_noise_deviate(given, measured, words, tmp_path):
    found = own(tmp_path / "run", **given)
    assert found.status == ("open", "deviates")
    page = " ".join(run_page(found, 300).split())
    assert words in page
    if measured is not None:
        assert (others(found).p_value, others(found).measured) == (0.0, measured)


@pytest.mark.ci
def test_a_term_of_the_weights_is_a_map_that_reads_no_record(tmp_path: Path) -> None:
    """Weight decay by hand: replays with other records do not move it, and it reads tensors that nobody declared."""
    found = own(tmp_path / "run", decay=0.01)
    assert found.status == ("open", "no-deviation-found")
    assert "What changes them reads tensors of shape" in " ".join(run_page(found, 300).split())
    assert (others(found).p_value, others(found).measured) == (1.0, 0)


@pytest.mark.ci
@pytest.mark.parametrize("kind", [torch.int64, torch.float16, torch.bfloat16])
def test_noise_of_few_values_is_found_in_any_type(kind: torch.dtype, tmp_path: Path) -> None:
    """Digits of the sum that the noise does not have can be read off the gradient."""
    found = own(tmp_path / "run", noise_kind=kind)
    assert found.status == ("open", "deviates")
    assert INDEPENDENCE.title in found.rejected


@pytest.mark.ci
@pytest.mark.parametrize(("kind", "verdict"), [(torch.float64, "proved"), (torch.bfloat16, "open")])
def test_gradients_that_are_rounded_coarsely_hide_what_is_missing(kind, verdict, tmp_path):
    """Half precision conforms, and whether a layer's noise is there is not known."""
    found = own(tmp_path / "run", kind=kind, divisor=64.0)
    assert found.status == (verdict, "no-deviation-found")
    assert ("rounded so coarsely" in found.assumption("loop-reports").text) is (verdict == "open")


@pytest.mark.family
@pytest.mark.parametrize("part", [0.0, 0.5])
@pytest.mark.parametrize("said", ["no-sum", "no-optimizer"])
def test_a_run_without_its_noise_is_never_proved(part: float, said: str, tmp_path: Path) -> None:
    reported = "never" if said == "no-sum" else "before"
    found = own(tmp_path / "run", part=part, steps=60, summed=reported, seen=said != "no-optimizer")
    assert (found.verdict, found.exit_code) == ("open", 1)
    assert found.assumption("loop-reports").status == "unchecked"
    assert ("give optimizer=" if said == "no-optimizer" else "call run.summed") in found.assumption("loop-reports").text


@pytest.mark.ci
@pytest.mark.parametrize(
    ("without", "at", "reason"),
    [
        (LAST, None, "some updates of bias got no noise: nothing bounds what these parameters show"),
        (LAST, 20, "some updates of bias got no noise: nothing bounds what these parameters show"),
        (slice(0, 42), 20, "1 of 40 updates got no noise: no epsilon is finite"),
    ],
)
def test_a_layer_whose_noise_is_none_has_no_bound(without: slice, at: int | None, reason: str, tmp_path: Path) -> None:
    """The loop reports it: a figure with noise in every layer would not describe the executed run."""
    found = own(tmp_path / "run", without=without, at=at, honest=True)
    assert (*found.status, reason in found.reason) == ("open", "deviates", True)
    page = run_page(found, 400)
    if without == LAST:
        assert found.costs[1].interval is None
        assert page.count("One tensor of the model got less noise than the others") == 1  # for two checks
    else:
        assert "parameter updates without noise" in run_page(found, 400, every=True)


@pytest.mark.parametrize("size", [1, 7, 130, 20_000])
@pytest.mark.parametrize("seed", range(3))
def test_rounding_is_none_of_what_is_seen(size: int, seed: int) -> None:
    """float32 sums and noise, with divisors that are not powers of two, from the size of a bias to a network's."""
    chance = torch.Generator().manual_seed(seed)
    layers = [nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(3, 5))]
    compared = LoopGradients(layers)
    for divisor in (0.3, 7.0, 1e3, 1e-3):
        for scale in (1e-3, 1.0, 1e3):
            reports, step = [], PendingStep()
            for of, p in product((scale, 1.0), layers):
                reports.append(of * torch.randn(p.shape, generator=chance))
            for p, one, noise in zip(layers, reports[:2], reports[2:], strict=True):
                p.grad = one / divisor + noise / divisor
            step.updates, step.deviation, step.noised = 1, 1.0, True
            step.norms = [torch.tensor([1e9])]
            compared.before_step()
            total, noise = (torch.cat([part.reshape(-1) for part in parts]) for parts in (reports[:2], reports[2:]))
            compared.compare(step, noise, total)
            assert step.divisor == pytest.approx(divisor, rel=1e-5)
    assert (compared.steps, compared.summed, compared.different) == (12, 12, 0)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"uncompared": 7}, "39 of 40 steps could be compared"),
        # A closure makes other gradients, without noise, after those with noise were compared.
        ({"closure": True}, "not with gradients of a closure"),
    ],
)
def test_an_update_that_was_not_compared_proves_nothing(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    found = own(tmp_path / "run", **given)
    assert (found.verdict, found.exit_code) == ("open", 1)
    assert words in found.assumption("loop-reports").text


GOOD = NoiseStatistics(
    quietest=Quietest(squares=2.0, steps=10, coordinates=40, rounding=1e-6),
    counts=(2,) * INTERVALS,
    worst_counts=(1,) * INTERVALS,
    counted=10,
    edge_error=1e-6,
    extremes=Extremes(numbers=0, largest=0.0, rounding=0.0),
    repeats=Repeats(small=0, expected=0.1, gaps=100, tried=1),
    pooled=Repeats(small=0, expected=0.1, gaps=100, tried=9),
    along_sums=AlongSums(steps=0, squares=0.0, largest=0.0),
    spacing=0.0,
)


def made(*processes: NoiseStatistics, rows: Any = None, ended: bool = True) -> list[Any]:
    run = run_with({Noise: NoiseFacts(processes=processes)}, columns={"noise_squares": np.nan}, ended=ended)
    given = np.random.default_rng(1).standard_normal((10, 36)) if rows is None else rows
    run = replace(run, rows=given)
    vars(run)["internal"] = None
    return [*checks_of(with_tests(Noise.judge(run.fact(Noise), run)))]


def test_good_statistics_give_seven_tests() -> None:
    found = made(GOOD)
    assert len(found) == 7
    assert {one.assumption for one in found} == {"independent-noise", "per-layer-noise", "noise-law"}


@pytest.mark.parametrize(
    ("value", "rejects"), [((20, 22.0, 5.0), False), ((20, 160.0, 9.0), True), ((900, 990.0, 99.0), True)]
)
def test_sums_that_contain_noise_are_rejected(value: tuple[float, float, float], rejects: bool) -> None:
    """At all steps, or at one of many."""
    along = AlongSums(steps=value[0], squares=value[1], largest=value[2])
    found = [one for one in made(replace(GOOD, along_sums=along)) if one.test.startswith(ALONG)]
    assert len(found) == 2
    assert any(one.p_value < 1e-9 for one in found) == rejects


def test_a_run_without_end_or_statistics_has_no_checks() -> None:
    none = np.zeros((0, 36))
    assert made(rows=none) == made(rows=none, ended=False) == []
    assert len(made()) == len(made(ended=False)) == 2


IMPOSSIBLE = (None, True, "x", [], {}, [[1]], -1, 1e300, float("nan"), float("inf"), 10**400, [None] * 3)


@pytest.mark.family
@pytest.mark.parametrize("name", [each.name for each in fields(NoiseStatistics)])
def test_impossible_statistics_are_refused_or_give_no_wrong_number(name: str) -> None:
    for value in (*IMPOSSIBLE, 0, 1, UNKNOWN):
        written: Any = msgspec.to_builtins(GOOD)
        changes: list[Any] = [value]
        if isinstance(written[name], dict):
            changes += [{**written[name], part: value} for part in written[name]]
        for changed in changes:
            try:
                read = msgspec.convert({**written, name: changed}, NoiseStatistics)
            except ValueError:
                continue
            assert all(0.0 <= one.p_value <= 1.0 for one in made(read))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e30])
def test_a_statistic_that_was_not_measured_gives_no_check(value: float) -> None:
    assert statistic(value) == UNKNOWN
    unknown = replace(GOOD, along_sums=AlongSums(steps=5, squares=statistic(value), largest=1.0))
    assert [one.test for one in made(unknown)] == [one.test for one in made(GOOD)]


def test_noise_that_repeats_is_rejected() -> None:
    rows = np.random.default_rng(3).standard_normal((200, 96))
    assert min(one.p_value for one in made(rows=rows)) > 1e-4
    rows[151] = -rows[150]
    (found,) = [one for one in made(rows=rows) if one.test == PAIRS]
    assert found.p_value < 1e-9
