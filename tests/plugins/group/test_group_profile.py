"""Delta against epsilon for every group size: points above the privacy profile, in the widest direction asked for."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpspec.accounting import Interval, Mixture, PrivacyLoss, gaussian
from dpspec.contract import Series
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec_group import bounds, theory

BOUNDS_ONLY = Path(__file__).parents[3] / "specs" / "bounds-only.yaml"


def profile(store: Path, *overrides: str) -> Series:
    loaded = load_specs([BOUNDS_ONLY], load_catalog(), overrides)
    assert loaded.ok, loaded.diagnostics
    (audit,) = run(loaded.specs, load_catalog(), store=Store(store), device="cpu").audits
    (series,) = [series for series in audit.series if series.name == "delta-against-epsilon"]
    return series


def rows(series: Series) -> list[tuple[int, float, float, float]]:
    names = ("group_size", "epsilon", "lower", "delta")
    return list(zip(*(series.columns[name] for name in names), strict=True))


def test_epsilon_falls_with_delta_and_rises_with_the_group(tmp_path: Path) -> None:
    found = rows(profile(tmp_path))
    by_size = {size: list(group) for size, group in itertools.groupby(found, key=lambda row: row[0])}
    assert list(by_size) == [1, 2, 4, 8]
    for group in by_size.values():
        assert len({delta for *_, delta in group}) == len(group) >= 24
        epsilons = [epsilon for _, epsilon, _, _ in sorted(group, key=lambda row: row[3])]
        assert epsilons == sorted(epsilons, reverse=True)
        assert all(0.0 <= lower <= epsilon for _, epsilon, lower, _ in group)
    for small, large in itertools.pairwise(by_size.values()):
        assert all(a[1] <= b[1] for a, b in zip(small, large, strict=True))


@pytest.mark.parametrize(
    ("claims", "fine"),
    [
        ([("approx-dp", {"epsilon": 9.0, "delta": 1e-6})], {1e-6}),
        ([("gdp", {"mu": 9.0})], set(bounds.PROFILE_DELTAS)),
    ],
    ids=["epsilon", "mu"],
)
def test_what_claims_rest_on_is_narrow_and_the_rest_is_the_worse_of_both(
    tmp_path: Path, claims: list[tuple[str, dict[str, float]]], fine: set[float]
) -> None:
    """Oracle: each direction at each delta asked by itself."""
    stated = [{"id": f"claim-{i}", "kind": kind, **options} for i, (kind, options) in enumerate(claims)]
    overrides = ["threat_model.group_size=[1]", f"claims={json.dumps(stated)}"]
    loaded = load_specs([BOUNDS_ONLY], load_catalog(), overrides)
    assert loaded.ok, loaded.diagnostics
    (spec,) = loaded.specs
    context = SimpleNamespace(facts=SimpleNamespace(records=50_000), progress=lambda *_: None)
    curves = bounds.epsilon_curves(spec, context)  # type: ignore[arg-type]
    found = curves.intervals[1]
    assert set(found) == {"remove", "add", "both"}
    assert curves.whole == "both"
    assert set(found["remove"]) == set(found["add"]) == fine
    assert set(found["both"]) == set(bounds.PROFILE_DELTAS)
    step = Mixture.poisson(1, spec.phases[0].rate(), spec.phases[0].noise_multiplier)
    alone = {
        name: PrivacyLoss(((step, spec.steps),), way).epsilons(sorted(found["both"]))
        for name, way in theory.DIRECTIONS.items()
    }
    for delta, remove, add in zip(sorted(found["both"]), alone["remove"], alone["add"], strict=True):
        width = theory.WIDTH if delta in fine else theory.CURVE_WIDTH
        assert meet(found["both"][delta], remove.worse(add))
        assert found["both"][delta].relative_width <= width
        if delta in fine:
            assert meet(found["remove"][delta], remove)
            assert meet(found["add"][delta], add)
            assert max(found[side][delta].relative_width for side in ("remove", "add")) <= width


def meet(one: Interval, other: Interval) -> bool:
    return one.lower <= other.upper and other.lower <= one.upper


def test_full_batches_give_the_gaussian_profile(tmp_path: Path) -> None:
    """With every record in every step, T steps of noise s and groups of k are one Gaussian of effect k sqrt(T) / s."""
    series = profile(
        tmp_path, "mechanism.sampling={scheme: full}", "mechanism.steps=100", "mechanism.noise_multiplier=20"
    )
    for size, epsilon, lower, delta in rows(series):
        exact = float(gaussian.epsilon(delta, size * 0.5))
        assert lower <= exact * (1 + 1e-12)
        assert exact * (1 - 1e-12) <= epsilon <= exact * (1 + 1e-6) + 1e-12


def test_without_noise_there_is_no_curve(tmp_path: Path) -> None:
    assert rows(profile(tmp_path, "mechanism.noise_multiplier=0")) == []


def test_one_direction_is_no_wider_than_both(tmp_path: Path) -> None:
    both = rows(profile(tmp_path))
    add = rows(
        profile(
            tmp_path,
            "threat_model.direction=add",
            "claims=[{id: a, kind: approx-dp, epsilon: 9, delta: 1e-6, direction: add}]",
        )
    )
    assert len(add) == pytest.approx(len(both), abs=4)
    ours = {(size, delta): epsilon for size, epsilon, _, delta in add}
    assert all(ours[size, delta] <= epsilon for size, epsilon, _, delta in both if (size, delta) in ours)
