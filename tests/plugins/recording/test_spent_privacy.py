"""The budget of a running training: no step is made that would exceed it, and the last affordable one is."""

import warnings
from pathlib import Path

import pytest
from support.opacus_training import Training
from torch.nn.functional import cross_entropy

import dpspec
from dpspec.accounting import Mixture, PrivacyLoss
from dpspec.errors import UsageError
from dpspec_recording.spent_privacy import SpentPrivacy


class _Step:
    """The parts of a step that its cost depends on."""

    noise_squares = 1.0

    def __init__(self, step: int, noise: float, rate: float) -> None:
        self.step, self.noise_multiplier, self.rate = step, noise, rate


def certified(schedule: list[tuple[float, float]]) -> float:
    """Oracle: the composition of the steps, each given to the accountant on its own."""
    if not schedule:
        return 0.0
    return PrivacyLoss(tuple((Mixture.poisson(1, rate, noise), 1) for noise, rate in schedule)).epsilon(1e-5).upper


@pytest.mark.parametrize("change", [None, 5])
def test_the_last_affordable_step_is_made_and_none_after_it(change: int | None) -> None:
    spent, made = SpentPrivacy(bounded=True), []
    while True:
        schedule = (2.0, 0.1) if change is None or len(made) < change else (1.0, 0.1)
        if not spent.affords(1.0, 1e-5, schedule):
            break
        made.append(schedule)
        spent.add(_Step(len(made), *schedule))  # type: ignore[arg-type]
    assert made
    assert certified(made) <= 1.0 < certified([*made, schedule])


def test_without_a_bound_nothing_is_affordable() -> None:
    assert not SpentPrivacy(bounded=False).affords(100.0, 1e-5, (1.0, 0.1))
    assert not SpentPrivacy(bounded=True).affords(100.0, 1e-5, (0.0, 0.1))


@pytest.mark.ci
def test_a_plain_loop_of_opacus_ends_within_its_budget(tmp_path: Path) -> None:
    """The natural check of run.epsilon after a step ends above the budget: 3.012 for 3."""
    training, steps = Training(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
        with training.recorder(tmp_path / "run") as run:
            for features, labels in training.loader:
                if not run.affords(1.5, 1e-5):
                    break
                training.private.zero_grad()
                cross_entropy(training.model(features), labels).backward()
                training.private.step()
                steps += 1
            spent = run.epsilon(1e-5)
            with pytest.raises(UsageError, match="epsilon must be finite"):
                run.affords(0.0, 1e-5)
    assert steps > 0
    assert spent <= 1.5 < certified([(1.1, 0.1)] * (steps + 1))
    checked = dpspec.check(tmp_path / "run", epsilon=1.5, delta=1e-5)
    assert checked.proved


def test_a_training_without_poisson_batches_has_no_budget(tmp_path: Path) -> None:
    training = Training(poisson=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
        with training.recorder(tmp_path / "run") as run, pytest.raises(UsageError, match="Poisson samples"):
            run.affords(3.0, 1e-5)
