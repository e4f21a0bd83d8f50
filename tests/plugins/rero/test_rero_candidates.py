"""Candidates that are made to be told apart: orthogonal where they can be, one bound below which no attack stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.rero_attacks import spec_of, trials_of

from dpspec.contract import DataError
from dpspec.stats import binomial
from dpspec.training.gradients.persample import per_example_gradients
from dpspec_rero.attack import hide_target, make_records
from dpspec_rero.options import Candidates, declared_steps
from dpspec_rero.theory import Leakage


def data(records: int = 50, features: tuple[int, ...] = (1, 4, 5), classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(0)
    x = source.normal(size=(records, *features)).astype(np.float32)
    return x, source.integers(0, classes, size=records)


def test_planted_records_differ_in_feature_or_label_and_are_as_long_as_the_longest() -> None:
    x, y = data()
    made, labels = make_records(60, x, y, 3, np.random.default_rng(1))
    assert made.shape == (60, 1, 4, 5)
    assert made.dtype == np.float32
    flat = made.reshape(60, -1)
    assert ((flat != 0).sum(1) == 1).all()
    assert np.linalg.norm(flat, axis=1) == pytest.approx(np.linalg.norm(x.reshape(50, -1), axis=1).max())
    assert len(set(zip(flat.argmax(1).tolist(), labels.tolist(), strict=True))) == 60
    with pytest.raises(DataError, match="20 features and 3 classes tell 60 records apart"):
        make_records(61, x, y, 3, np.random.default_rng(1))


def test_gradients_of_planted_records_are_orthogonal_or_opposed() -> None:
    """In a linear model that is indifferent between labels; those of natural records of one class are not."""
    x, y = data()
    made, labels = make_records(40, x, y, 3, np.random.default_rng(2))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(20, 3, bias=False))
    torch.nn.init.zeros_(model[1].weight)
    g = per_example_gradients(model, torch.tensor(made), torch.tensor(labels)).numpy()
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    cosines = g @ g.T - np.eye(40)
    assert cosines.max() < 1e-6
    assert cosines.min() == pytest.approx(-0.5)


def test_planted_records_join_all_others_and_the_seed_decides_which() -> None:
    x, y = data()
    one, again, other = (hide_target(Candidates(count=8, source="planted"), x, y, 3, seed) for seed in (4, 4, 5))
    assert one.places.tolist() == list(range(50, 58))
    assert one.rows.tolist() == [*range(50), 50 + one.target]
    assert (one.x == again.x).all()
    assert one.target == again.target
    assert not (one.x == other.x).all()


@pytest.mark.parametrize("noise", [0.6, 1.0])
def test_the_attack_comes_close_to_the_bound_and_stays_below(tmp_path: Path, noise: float) -> None:
    """A correct attack fails either test once in 10^4 seeds at most; natural records leave a wider gap."""
    prior = "threat_model.prior={candidates: 32, from: planted}"
    spec = spec_of(tmp_path, prior, f"mechanism.noise_multiplier={noise}", "claims.c.kappa=0.03125")
    trials = trials_of(spec, 96)
    right = sum(trial.evidence["rank"] == 0 for trial in trials)
    (gamma,) = Leakage(declared_steps(spec.phases)).gammas([1 / 32])
    assert binomial.at_least(right, 96, gamma.upper) > 1e-4
    assert binomial.at_most(right, 96, gamma.lower / 1.5) > 0.5
    assert all(len(trial.evidence["internal"]["named"]) == 5 for trial in trials)
