"""The table of epsilon by group size: the paper's first figure, recomputed, and what is known to be wrong about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpspec.contract import Series, Spec
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec_group.mechanism import GroupAudit

PAPERS = Path(__file__).parents[3] / "specs" / "papers"


def specs_of(path: Path, *overrides: str) -> tuple[Spec, ...]:
    loaded = load_specs([path], load_catalog(), overrides)
    assert loaded.ok, loaded.diagnostics
    return loaded.specs


def table(path: Path, store: Path, *overrides: str) -> Series:
    (audit,) = run(specs_of(path, *overrides), load_catalog(), store=Store(store), device="cpu").audits
    (series,) = [series for series in audit.series if series.name == "epsilon-by-group-size"]
    return series


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
    (plain,) = specs_of(PAPERS / "ganesh-figure-1.yaml", "mechanism.noise_multiplier=1.0")
    (other,) = specs_of(
        PAPERS / "ganesh-figure-1.yaml", "mechanism.noise_multiplier=1.0", "mechanism.baselines=[full-batch]"
    )
    audit = GroupAudit()
    assert plain.digest != other.digest
    assert audit.trial_inputs(plain) == audit.trial_inputs(other)
