"""Budgets and recordings of small trainings with Opacus, without a trainer."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.opacus_training import Training, physical_batches

from dpspec.errors import UsageError
from dpspec_recording.integrations.live_audit import LiveAudit

DELTA = 1e-5


def stopped(
    folder: Path,
    limit: float,
    training: Training,
    schedule: Callable[[int], float] = lambda _: 1.1,
    physical: int | None = None,
) -> tuple[LiveAudit, int]:
    """Train until the budget is spent, and return the audit and the number of steps."""
    audit = LiveAudit(folder, stop_at_epsilon=limit, delta=DELTA, report=False, engine=training.engine)
    training.private.noise_multiplier = schedule(0)
    audit.start(training.model, training.private, training.loader)
    steps = 0
    for _ in range(100):
        with physical_batches(training.loader, training.private, physical) as batches:
            for x, y in batches:
                training.step(x, y)
                steps += not training.private._is_last_step_skipped
                if audit.is_spent():
                    audit.end()
                    return audit, steps
                training.private.noise_multiplier = schedule(steps)
    raise AssertionError("the budget was never spent")


def library_epsilon(noises: list[float]) -> float:
    """The epsilon of Google's accountant for Poisson batches at the rate 0.1."""
    dp = pytest.importorskip("dp_accounting")
    accountant = pytest.importorskip("dp_accounting.pld").PLDAccountant()
    for noise, count in Counter(noises).items():
        accountant.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(noise)), count)
    return float(accountant.get_epsilon(DELTA))


@pytest.mark.ci
def test_the_last_step_is_within_the_budget_and_the_next_one_exceeds_it(tmp_path: Path) -> None:
    audit, steps = stopped(tmp_path / "run", 4.0, Training().build(), physical=8)
    assert audit.checked is not None
    assert audit.checked.proved
    assert audit.checked.epsilon is not None
    assert audit.checked.epsilon <= 4.0
    assert library_epsilon([1.1] * steps) <= 4.0 < library_epsilon([1.1] * (steps + 1))


@pytest.mark.ci
def test_a_budget_follows_changes_of_the_noise(tmp_path: Path) -> None:
    def schedule(steps: int) -> float:
        return 2.0 if steps < 5 else 1.0

    audit, steps = stopped(tmp_path / "run", 3.0, Training().build(), schedule)
    assert audit.checked is not None
    assert (audit.checked.epsilon or 9.0) <= 3.0
    noises = [schedule(step) for step in range(steps + 1)]
    assert library_epsilon(noises[:-1]) <= 3.0 < library_epsilon(noises)


def test_the_budget_of_a_run_without_a_certified_epsilon_is_spent_at_once(tmp_path: Path) -> None:
    training = Training(poisson=False).build()
    audit = LiveAudit(tmp_path / "run", stop_at_epsilon=4.0)
    with pytest.raises(UsageError, match="stop_at_epsilon needs Poisson batches, and noise"):
        audit.start(training.model, training.private, training.loader)
    assert audit.values() == {}


def test_a_step_that_exceeds_the_budget_is_not_taken(tmp_path: Path) -> None:
    training = Training(noise=0.3).build()
    audit = LiveAudit(tmp_path / "run", stop_at_epsilon=0.5)
    with pytest.raises(UsageError, match=r"one step costs more than stop_at_epsilon=0\.5 at delta=1e-05"):
        audit.start(training.model, training.private, training.loader)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_at_epsilon": 0.0}, "stop_at_epsilon must be finite and above 0"),
        ({"stop_at_epsilon": float("nan")}, "stop_at_epsilon must be finite and above 0"),
        ({"delta": 1.0}, "delta must be above 0 and below 1"),
    ],
)
def test_numbers_outside_their_range_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        LiveAudit(tmp_path / "run", **options)


def test_another_optimizer_is_refused_by_name(tmp_path: Path) -> None:
    training = Training().build()
    with pytest.raises(UsageError, match="the trainer steps SGD, not Opacus' optimizer"):
        LiveAudit(tmp_path / "run").start(training.model, training.private.original_optimizer, training.loader)


def test_a_budget_of_two_processes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of real processes in ``test_two_processes.py``, with the libraries of a trainer."""
    training = Training().build()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(UsageError, match="stop_at_epsilon is for one process"):
        LiveAudit(tmp_path / "run", stop_at_epsilon=4.0).start(training.model, training.private, training.loader)


def test_a_training_that_fails_is_recorded_and_not_judged(tmp_path: Path) -> None:
    training = Training().build()
    audit = LiveAudit(tmp_path / "run")
    audit.start(training.model, training.private, training.loader)
    assert audit.end(ValueError("of the training")) == {}
    assert audit.checked is None
    assert audit.end() == {}
