"""Opacus' ``rand_on_empty`` replaces an empty batch by a random row, which moves the sum by up to two clip norms."""

import functools
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import integrate, stats
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training

import dpspec
from dpspec.accounting import Mixture, PrivacyLoss
from dpspec_recording.judge.bounds import ScheduleEpsilon, _empty_draw, _EmptyDraws, _with_empty_draws, poisson_epsilon
from dpspec_recording.observers.sampling.batches import FILLED

Script = Callable[[Training], None]

ASKED = Question(delta=1e-5, epsilon=100.0)


class Filled(Training):
    """A training with ``make_private(rand_on_empty=True)``."""

    def make_private(self, model: Any, optimizer: Any, loader: Any, mode: str = "hooks", **given: Any) -> None:
        super().make_private(model, optimizer, loader, mode, rand_on_empty=True, **given)


def recorded(folder: Path, training: Training, script: Script = Training.train) -> CheckedRun:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
        with training.recorder(folder):
            script(training)
    return check_run(folder, ASKED)


@pytest.mark.ci
@pytest.mark.parametrize(
    "made",
    [{}, {"clipping": "ghost"}, {"physical": 8}, {"clipping": "per_layer"}, {"clipping": "ghost", "physical": 8}],
)
def test_a_run_with_filled_batches_deviates_by_the_name_of_the_option(made: dict[str, Any], tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", Filled(batch=2, epochs=1, **made))
    assert found.status == ("open", "deviates")
    assert FILLED.title in found.rejected
    (advice,) = found.audit.recording.advice
    assert "Leave rand_on_empty out of make_private" in advice
    assert not found.audit.recording.rules  # the random rows are not rows of drawn records


@pytest.mark.ci
@pytest.mark.parametrize("made", [{}, {"clipping": "ghost"}])
def test_the_option_leaves_no_bound_although_no_batch_was_empty(made: dict[str, Any], tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", Filled(batch=10, epochs=1, **made))
    assert not found.run.filled.any()
    assert found.status == ("open", "no-deviation-found")
    assert "rand_on_empty=True" in " ".join(found.cautions)


@pytest.mark.ci
def test_empty_batches_that_hardly_occur_are_charged_to_delta(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", Filled())
    assert found.verdict == "proved"
    eta = 20 * (1.0 - 0.1) ** 299
    assert 0.0 < eta < 1e-11
    plain = PrivacyLoss.of(Mixture.poisson(1, 0.1, 1.1)).compose(20).epsilon(1e-5)
    assert plain.lower <= found.costs[1].interval.upper <= plain.upper + 1e-6
    assert found.costs[1].interval.upper >= plain.upper


def switched_on(training: Training) -> None:
    def each(training: Training) -> None:
        training.loader.collate_fn.original.rand_on_empty = True

    training.train(each=each)


def wrapped(training: Training) -> None:
    inner = training.loader.collate_fn
    training.loader.collate_fn = lambda rows: tuple(inner(rows))
    training.train()


class WrappedBefore(Filled):
    def build(self) -> Training:
        super().build()
        self.loader.collate_fn = functools.partial(_tuple_of, self.loader.collate_fn)
        return self


def _tuple_of(collate: Any, rows: Any) -> Any:
    return tuple(collate(rows))


@pytest.mark.ci
@pytest.mark.parametrize(("kind", "script"), [(Filled, wrapped), (WrappedBefore, Training.train)])
def test_the_option_is_found_in_wrappers(kind: Any, script: Script, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", kind(batch=10, epochs=1), script)
    assert found.verdict == "open"
    assert "rand_on_empty=True" in " ".join(found.cautions)


@pytest.mark.ci
def test_the_option_is_read_at_each_step(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", Training(batch=10, epochs=1), switched_on)
    assert found.verdict == "open"
    assert "rand_on_empty=True" in " ".join(found.cautions)


@pytest.mark.ci
def test_a_plain_loop_over_the_loader_is_not_proved(tmp_path: Path) -> None:
    training = Filled(batch=10).build()
    inner = training.private.original_optimizer
    model = training.model.to_standard_module()
    given = {"noise_multiplier": 1.0, "clip_norm": 1.0, "rate": 1 / 30, "records": 300}
    with dpspec.record(tmp_path / "run", model=model, optimizer=inner, loader=training.loader, **given) as run:
        for _, _ in zip(range(5), training.loader, strict=False):
            noise = [torch.randn_like(p) for p in model.parameters()]
            for p, drawn in zip(model.parameters(), noise, strict=True):
                p.grad = drawn / 10
            run.clipped([])
            run.summed([torch.zeros_like(p) for p in model.parameters()])
            run.noised(noise)
            inner.step()
            run.stepped()
    assert "rand_on_empty=True" in " ".join(check_run(tmp_path / "run", ASKED).cautions)


def delta_of_filled_sample(epsilon: float, rate: float, records: int, sigma: float) -> float:
    """The delta of one Poisson sample whose empty batch gives -1, if a record gives 1 and the others 0."""
    empty = (1.0 - rate) ** (records - 1)

    def without(y: float) -> float:
        return float((1.0 - empty) * stats.norm.pdf(y, 0.0, sigma) + empty * stats.norm.pdf(y, -1.0, sigma))

    def with_record(y: float) -> float:
        return rate * float(stats.norm.pdf(y, 1.0, sigma)) + (1.0 - rate) * without(y)

    def hockey_stick(p: Callable[[float], float], q: Callable[[float], float]) -> float:
        def positive(y: float) -> float:
            return max(0.0, p(y) - math.exp(epsilon) * q(y))

        return float(integrate.quad(positive, -12.0 * sigma, 12.0 * sigma, limit=500)[0])

    return max(hockey_stick(with_record, without), hockey_stick(without, with_record))


@pytest.mark.family
@pytest.mark.parametrize(
    ("rate", "records", "sigma", "delta"), [(0.5, 30, 1.0, 1e-4), (0.9, 8, 0.8, 1e-3), (0.99, 3, 2.0, 0.3)]
)
def test_the_bound_covers_the_random_row(rate: float, records: int, sigma: float, delta: float) -> None:
    empty = _EmptyDraws(_empty_draw([rate], records - 1), "", "")
    found = _with_empty_draws(empty, lambda at: poisson_epsilon([(sigma, rate)], [(sigma, rate)], at, 1), delta)
    assert found.interval is not None
    assert delta_of_filled_sample(found.interval.upper, rate, records, sigma) <= delta * (1.0 + 1e-6)
    lower = found.interval.lower
    assert lower == 0.0 or delta_of_filled_sample(lower, rate, records, sigma) >= delta * (1.0 - 1e-6)
    plain = poisson_epsilon([(sigma, rate)], [(sigma, rate)], delta, 1).interval
    assert plain is not None
    assert plain.upper <= found.interval.upper <= 1.1 * plain.upper


def test_a_likely_empty_draw_has_no_bound() -> None:
    def unused(delta: float) -> ScheduleEpsilon:
        return poisson_epsilon([(1.0, 0.1)], [(1.0, 0.1)], delta, 1)

    found = _with_empty_draws(_EmptyDraws(7.0, "effect", "fix"), unused, 1e-5)
    assert (found.interval, found.method) == (None, "effect, with probability up to 1, too much for delta: fix")


def test_a_delta_near_one_has_an_upper_end_alone() -> None:
    """The charge is at most half of delta, so that delta and charge may exceed 1."""
    empty = _EmptyDraws(0.15, "effect", "fix")
    found = _with_empty_draws(empty, lambda at: poisson_epsilon([(5.0, 0.5)], None, at, 1), 0.9)
    assert found.interval is not None
    assert found.interval.lower == 0.0 <= found.interval.upper
