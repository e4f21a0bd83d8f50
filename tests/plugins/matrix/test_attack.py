"""Executed neighbors against the declared change, scores against the Gaussian curve, and checks of broken runs."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import dpspec.contract as dps
from dpspec import kit
from dpspec_matrix import attack
from dpspec_matrix.encoders import encoder_of
from dpspec_matrix.mechanism import Matrix
from dpspec_matrix.options import FIXED, Schedule
from dpspec_matrix.theory import sensitivity
from dpspec_matrix.training import Correlated, Independent

RECORDS = 10


def block(scheme: str = "cyclic", encoder: dict[str, Any] | None = None, **keys: Any) -> dps.FrozenMap:
    participation = {"scheme": scheme, **({} if scheme == "single" else {"separation": 3})}
    if scheme == "cyclic-poisson":
        participation["rate"] = 0.5
    usual = {
        "encoder": encoder or {"kind": "square-root", "bands": 2},
        "participation": participation,
        "steps": 6,
        "noise_multiplier": 1.0,
        "clip_norm": 0.5,
    }
    return dps.freeze({**usual, **keys})  # type: ignore[return-value]


class World:
    """What core hands to an audit, for a linear model of three inputs and two classes on ten records."""

    device = "cpu"
    facts = SimpleNamespace(records=RECORDS, classes=2)
    data = SimpleNamespace(train_x=np.ones((RECORDS, 3), dtype=np.float32), train_y=np.arange(RECORDS) % 2)
    progress = staticmethod(lambda *values, **more: None)
    cancelled = staticmethod(lambda: False)
    resumable = staticmethod(lambda index: None)
    loss = None

    class model:  # noqa: N801
        @staticmethod
        def build(seed: int) -> torch.nn.Module:
            module = torch.nn.Linear(3, 2)
            torch.nn.init.zeros_(module.weight)
            torch.nn.init.zeros_(module.bias)
            return module

    def __init__(self, trainer: dps.Trainer | None = None) -> None:
        self.trainer = trainer or Correlated()

    def seed(self, index: int, *purpose: str) -> int:
        return int.from_bytes(np.random.default_rng([*map(ord, repr((index, *purpose)))]).bytes(7), "big")


def inputs(mechanism: dps.FrozenMap) -> dps.FrozenMap:
    return dps.freeze({"mechanism": mechanism, "training": {"learning_rate": 0.5, "reduction": "sum"}})  # type: ignore[return-value]


@pytest.mark.family
@pytest.mark.parametrize("scheme", ["single", "cyclic", "min-separation", "random-allocation", "balls-in-bins"])
@pytest.mark.parametrize("encoder", [{"kind": "tree"}, {"kind": "buffers", "weights": [0.4], "decays": [0.5]}])
def test_executed_neighbors_differ_by_the_declared_steps(scheme: str, encoder: dict[str, Any]) -> None:
    """Two runs of one seed, with a pair and with null records: C times the difference is within the sensitivity."""
    mechanism = block(scheme, encoder)
    schedule, phase, world = Schedule.of(mechanism), dps.Phase.all_of(mechanism)[0], World()
    members = 2 if scheme in FIXED else 1
    sums = []
    for coin in (True, False):
        phases = [phase.replace(sampling={"scheme": "poisson", "rate": 0.1})]
        job = kit.training_job(inputs(mechanism), world, 0, "training", phases=phases)  # type: ignore[arg-type]
        direction = attack.direction_of(job.model, 2)
        canaries = attack.canaries(direction, coin, schedule, RECORDS, members, 0.5)
        noise_directions = attack.noise_directions_of(8, 1, "cpu")
        watch = attack.Watch(direction, 0.5, noise_directions, schedule, RECORDS + canaries.count)
        Correlated().train(replace(job, canaries=canaries, observers=(watch,)))
        assert watch.misplaced == 0
        sums.append(np.array(watch.sums))
    steps = (sums[0] - sums[1]) / 0.5
    assert set(np.round(steps, 3)) <= {0.0, float(members)}
    moved = encoder_of(schedule.encoder, 6).matrix() @ steps
    possible = [rows.sum(axis=0) for rows in np.array([[0.0] * 6])]
    if scheme in FIXED:
        assert moved @ moved <= members**2 * sensitivity(schedule).upper * (1 + 1e-4)
        ((_, rows),) = attack.changes(schedule, members)
        possible = [*rows]
        assert min(np.abs(moved - row).max() for row in possible) < 1e-3
    else:
        assert steps.reshape(2, 3).sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-3)


@pytest.mark.ci
def test_scores_have_the_distribution_of_the_gaussian_curve() -> None:
    """Ratios of N(0, 1) and N(mu, 1), 60 each. A correct attack fails with probability 2e-3 over seeds."""
    mechanism = block()
    coins = np.array([0, 1] * 60)
    releases = Matrix().release(inputs(mechanism), World(), 0, 1, coins)  # type: ignore[arg-type]
    mu = math.sqrt(sensitivity(Schedule.of(mechanism)).lower)
    for coin in (0, 1):
        standard = (releases.scores[coin::2] + mu**2 / 2 - coin * mu**2) / mu
        assert stats.kstest(standard, "norm").pvalue > 1e-3


def checks(mechanism: dps.FrozenMap, trainer: dps.Trainer) -> dict[str, float]:
    spec = SimpleNamespace(mechanism=SimpleNamespace(options=mechanism))
    releases = Matrix().release(inputs(mechanism), World(trainer), 0, 1, np.array([0, 1] * 10))  # type: ignore[arg-type]
    outcomes = [*Matrix().further_checks(spec, releases.told)]  # type: ignore[arg-type]
    planned = [*Matrix().further_checks(spec, None)]  # type: ignore[arg-type]
    assert [(c.assumption, c.test) for c in outcomes] == [(c.assumption, c.test) for c in planned]
    return {f"{check.assumption} {check.test.split()[0]}": check.p_value for check in outcomes}


@pytest.mark.family
@pytest.mark.parametrize("scheme", ["cyclic", "cyclic-poisson", "random-allocation", "balls-in-bins"])
def test_correct_runs_pass_and_other_ones_deviate(scheme: str) -> None:
    assert min(checks(block(scheme), Correlated()).values()) > 1e-4
    assert checks(block(scheme), Independent())["independent-noise chi-square"] < 1e-6


class WrongPlaces(Correlated):
    """Takes all records at every step."""

    def train(self, job: dps.TrainingJob) -> None:
        (options,) = job.phases
        super().train(replace(job, phases=[options.replace(participation={"scheme": "cyclic", "separation": 1})]))  # type: ignore[attr-defined]


class WrongRate(Correlated):
    """Draws nine of ten records of a slot."""

    def train(self, job: dps.TrainingJob) -> None:
        (options,) = job.phases
        wrong = {"scheme": "cyclic-poisson", "separation": 3, "rate": 0.9}
        super().train(replace(job, phases=[options.replace(participation=wrong)]))  # type: ignore[attr-defined]


@pytest.mark.ci
@pytest.mark.parametrize("scheme", ["cyclic", "cyclic-poisson", "random-allocation", "balls-in-bins"])
def test_records_outside_their_steps_are_counted(scheme: str) -> None:
    assert checks(block(scheme), WrongPlaces())["sampling places"] == 0.0


@pytest.mark.ci
def test_another_rate_deviates() -> None:
    outcome = checks(block("cyclic-poisson"), WrongRate())
    assert outcome["sampling places"] == 1.0
    assert outcome["sampling binomial,"] < 1e-6


class HalfNoise(Correlated):
    """Adds half of the declared noise."""

    def train(self, job: dps.TrainingJob) -> None:
        (options,) = job.phases
        super().train(replace(job, phases=[options.replace(noise_multiplier=0.5 * options.noise_multiplier)]))


@pytest.mark.family
@pytest.mark.parametrize(("trainer", "std"), [(Correlated(), 1.0), (HalfNoise(), 0.5)])
def test_released_noise_has_the_standard_deviation_that_was_added(trainer: dps.Trainer, std: float) -> None:
    """Relative to the declared one; of n normal numbers it is off by 5 / sqrt(2 n) once in 10^6 runs."""
    releases = Matrix().release(inputs(block()), World(trainer), 0, 1, np.array([0, 1] * 10))  # type: ignore[arg-type]
    assert abs(releases.noise.std() / std - 1.0) < 5.0 / math.sqrt(2.0 * len(releases.noise))
