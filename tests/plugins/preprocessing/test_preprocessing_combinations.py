"""Every step in front of every mechanism: what is proved lies between ignoring pre-processing and group privacy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from dpspec_preprocessing.bounds import proved_divergence, proved_epsilon
from dpspec_preprocessing.options import Declaration
from dpspec_preprocessing.private import KINDS
from dpspec_preprocessing.published import theorem_2_sensitivity
from dpspec_preprocessing.sensitivity import REQUIRED_LIMITS

LIMITS = {
    "max_missing_rows": 20,
    "max_missing_in_row": 2,
    "min_observed": 950,
    "max_mean_norm": 0.5,
    "max_spread": 0.01,
    "min_eigenvalue": 100.0,
    "max_eigenvalue": 400.0,
    "max_ball": 5,
    "max_cluster": 2,
    "min_eigengap": 0.3,
    "min_std": 0.2,
}
STEPS: dict[str, dict[str, Any]] = {
    "mean": {"impute": "mean"},
    "median": {"impute": "median"},
    "trimmed": {"impute": "trimmed", "trim": 10},
    "regression": {"impute": "regression"},
    "deduplicate": {"deduplicate": 0.01},
    "quantise": {"quantise": 0.01},
    "pca": {"pca": 2},
    "scale": {"scale": "standard", "clip": 1.0},
}
COMBINATIONS = list(itertools.product(STEPS, KINDS))


def block(step: str, kind: str, **limits: float) -> dict[str, Any]:
    private: dict[str, Any] = {"kind": kind, "eps_noise": 0.01}
    if kind in ("dp-gd", "sgd-sampled", "sgd-iterated"):
        private |= {"loss": "logistic", "steps": 100}
    return {"pipeline": (STEPS[step],), "private": private, "collection": {**LIMITS, **limits}}


@pytest.mark.parametrize(("step", "kind"), COMBINATIONS)
def test_what_is_proved_lies_between(step: str, kind: str) -> None:
    found = Declaration.of(block(step, kind)).pipeline(1000, 6)
    assert found.repaired is not None
    for order in (2.0, 16.0):
        ignored, proved, group = (proved_divergence(found, way, order) for way in ("ignored", "repaired", "group"))
        assert 0.0 < ignored <= proved * (1.0 + 1e-12)
        assert proved <= group
        assert math.isfinite(proved) or kind == "sgd-iterated"
    ignored, proved, group = (proved_epsilon(found, way, 1e-5) for way in ("ignored", "repaired", "group"))
    assert 0.0 <= ignored <= proved * (1.0 + 1e-9)
    assert proved <= group
    # Scaled records move so far that no order is admissible for the last iterate's curve.
    assert math.isfinite(proved) == ((step, kind) != ("scale", "sgd-iterated"))


@pytest.mark.parametrize("step", STEPS)
def test_wider_collections_cost_more(step: str) -> None:
    tight = Declaration.of(block(step, "gaussian")).pipeline(1000, 6)
    wider = {key: LIMITS[key] * (0.9 if key.startswith("min_") else 1.2) for key in REQUIRED_LIMITS[step]}
    wide = Declaration.of(
        block(step, "gaussian", **{k: int(v) if isinstance(LIMITS[k], int) else v for k, v in wider.items()})
    ).pipeline(1000, 6)
    values = [proved_epsilon(found, "repaired", 1e-5) for found in (tight, wide)]
    assert values[0] < values[1]


@pytest.mark.parametrize("step", STEPS)
def test_without_its_limits_only_group_privacy_for_all_records_is_proved(step: str) -> None:
    mechanism = {**block(step, "gaussian"), "collection": {}}
    found = Declaration.of(mechanism).pipeline(1000, 6)
    assert found.repaired is None
    assert found.changed == 1000
    chain = Declaration.of({**block(step, "gaussian"), "pipeline": (STEPS[step], STEPS["pca"])}).pipeline(1000, 6)
    assert proved_divergence(chain, "repaired", 2.0) == proved_divergence(found, "group", 2.0)


def test_unknown_smoothness_leaves_group_privacy_for_what_can_change() -> None:
    mechanism = block("deduplicate", "dp-gd")
    mechanism["private"] = {"kind": "dp-gd", "eps_noise": 0.1, "steps": 10, "lipschitz": 1.0}
    found = Declaration.of(mechanism).pipeline(1000, 6)
    assert theorem_2_sensitivity(found) is None
    assert found.changed == 10
    proved = proved_divergence(found, "repaired", 2.0)
    assert (
        proved
        == proved_divergence(found, "group", 2.0)
        == pytest.approx(121 * proved_divergence(found, "ignored", 2.0))
    )
    assert proved_epsilon(found, "repaired", 1e-5) == proved_epsilon(found, "group", 1e-5)


def test_a_ball_of_another_radius_scales_with_it() -> None:
    for step in ("mean", "pca", "quantise"):
        one, two = block(step, "gaussian"), block(step, "gaussian", min_eigengap=1.2, max_mean_norm=1.0)
        two["radius"] = 2.0
        tau = [Declaration.of(mechanism).pipeline(1000, 6).tau or 0.0 for mechanism in (one, two)]
        assert tau[1] == pytest.approx(tau[0] * (1.0 if step == "quantise" else 2.0))
