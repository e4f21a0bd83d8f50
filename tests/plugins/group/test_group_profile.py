"""Delta against epsilon for every group size: points above the privacy profile, in the widest direction asked for."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dpspec.accounting import gaussian
from dpspec.contract import Series
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

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
