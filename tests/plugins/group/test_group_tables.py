"""Tables of the plugin: epsilon by group size with baselines, as in the paper's figures, and delta against epsilon."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.attacks import spec_at

from dpspec.accounting import Interval, Mixture, PrivacyLoss, gaussian
from dpspec.contract import Series
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.registry.loader import load_catalog
from dpspec.testing import MechanismSuite, decreasing, increasing
from dpspec_group import bounds, theory
from dpspec_group.mechanism import GroupAudit

SPECS = Path(__file__).parents[3] / "specs"
PAPERS, BOUNDS_ONLY = SPECS / "papers", SPECS / "bounds-only.yaml"


def series_of(name: str, path: Path, store: Path, *overrides: str) -> Series:
    (audit,) = run([spec_at(path, *overrides)], load_catalog(), store=Store(store), device="cpu").audits
    (series,) = [series for series in audit.series if series.name == name]
    return series


table = functools.partial(series_of, "epsilon-by-group-size")
profile = functools.partial(series_of, "delta-against-epsilon", BOUNDS_ONLY)


def test_figure_1_at_noise_1(tmp_path: Path) -> None:
    """Values of an independent computation, relative 1e-4; None where no epsilon below k * 400 was found."""
    sizes = "threat_model.group_size=[1, 2, 5, 8, 9, 10]"
    series = table(PAPERS / "ganesh-figure-1.yaml", tmp_path, "mechanism.noise_multiplier=1.0", sizes)
    expected = {
        "group_size": [1, 2, 5, 8, 9, 10],
        "epsilon": [2.95524591, 6.43259993, 19.11905618, 34.89069562, 40.80104472, 47.03011269],
        "linear": [2.955246, 5.910492, 14.776230, 23.641967, 26.597213, 29.552459],
        "vadhan-literal": [2.95525, 8.55565, 50.19425, 1614.62734, None, None],
        "vadhan-sharp": [2.95525, 6.95835, 33.32644, 272.71978, 1766.00878, None],
    }
    for name, values in expected.items():
        for found, wanted in zip(series.columns[name], values, strict=True):
            assert found == (None if wanted is None else pytest.approx(wanted, rel=1e-4)), name
    assert series.columns["ratio"][-1] == pytest.approx(1.5914, rel=1e-3)
    assert series.rigor == "approximate"


def test_figure_2_at_noise_2(tmp_path: Path) -> None:
    series = table(
        PAPERS / "ganesh-figure-2.yaml",
        tmp_path,
        "mechanism.noise_multiplier=2.0",
        "threat_model.group_size=[8, 12]",
        "claims.text.group_size=12",
        "mechanism.baselines=[full-batch]",
    )
    assert series.columns["epsilon"][1] == pytest.approx(60.39340542, rel=1e-4)
    assert series.columns["full-batch"][0] > 100 * series.columns["epsilon"][0]


def test_without_baselines_the_table_is_certified(tmp_path: Path) -> None:
    series = table(
        PAPERS / "ganesh-figure-1.yaml", tmp_path, "mechanism.noise_multiplier=4.0", "mechanism.baselines=[]"
    )
    assert set(series.columns) == {"group_size", "epsilon"}
    assert series.rigor == "certified"


def test_baselines_are_no_part_of_a_trial() -> None:
    figure, noise = PAPERS / "ganesh-figure-1.yaml", "mechanism.noise_multiplier=1.0"
    plain, other = spec_at(figure, noise), spec_at(figure, noise, "mechanism.baselines=[full-batch]")
    assert plain.digest != other.digest
    assert GroupAudit().trial_inputs(plain) == GroupAudit().trial_inputs(other)


# --- delta against epsilon


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
    [([("approx-dp", {"epsilon": 9.0, "delta": 1e-6})], {1e-6}), ([("gdp", {"mu": 9.0})], set(bounds.PROFILE_DELTAS))],
    ids=["epsilon", "mu"],
)
def test_what_claims_rest_on_is_narrow_and_the_rest_is_the_worse_of_both(tmp_path, claims, fine):
    stated = [{"id": f"claim-{i}", "kind": kind, **options} for i, (kind, options) in enumerate(claims)]
    overrides = ["threat_model.group_size=[1]", f"claims={json.dumps(stated)}"]
    spec = spec_at(BOUNDS_ONLY, *overrides)
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


class TestGroup(MechanismSuite):
    kind = "group"
    monotone = {  # noqa: RUF012
        "mechanism.noise_multiplier": decreasing(0.8, 1.0, 2.0),
        "mechanism.steps": increasing(5, 20, 60),
        "mechanism.sampling.rate": increasing(0.02, 0.1, 0.4),
    }


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
