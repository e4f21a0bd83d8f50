"""Comparisons stand beside the bounds of a mechanism: they decide no verdict, and trials do not know their keys."""

import dataclasses
import re
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from support import specs
from support.specs import BOUNDS, written

import dpspec.contract as dps
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.results import AuditResult
from dpspec.engine.preparing.comparisons import without_comparisons
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import PluginError
from dpspec.kit import block, flag
from dpspec.language.load import load_specs
from dpspec.registry.loader import Candidate, build, load_catalog

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "plugins" / "comparison.md"
GROUP = Candidate(distribution="dpspec", version="0", plugin="group", value="dpspec_group")
OURS = (GROUP, *(Candidate(distribution="dpspec", version="0", plugin=p, value=f"dpspec_{p}") for p in ("papers",)))
BUILTIN = Candidate(distribution="dpspec", version="0", plugin="builtin", value="dpspec.registry.builtin")
THEIRS = Candidate(distribution="dpspec-other", version="1.0", plugin="other", value="other_comparison")

Outcomes = Sequence[dps.Finding | dps.Series]


def first_upper(bounds: Outcomes) -> dps.Finding:
    return next(bound for bound in bounds if isinstance(bound, dps.Finding) and bound.bound == "upper")


def too_small(spec: dps.Spec, facts: dps.Facts, bounds: Outcomes) -> Iterator[dps.Finding]:
    """A wrong bound that would prove any claim, and a wrong lower one that would refute any."""
    yield dataclasses.replace(first_upper(bounds), value=1e-6, rigor="theorem")
    yield dataclasses.replace(first_upper(bounds), value=1e6, rigor="theorem", bound="lower")


def called_certified(spec: dps.Spec, facts: dps.Facts, bounds: Outcomes) -> Iterator[dps.Finding]:
    """A wrong bound that reports would print as the mechanism's, although no attack tests it."""
    yield dataclasses.replace(first_upper(bounds), value=1e-6)


def repeated(spec: dps.Spec, facts: dps.Facts, bounds: Outcomes) -> Iterator[dps.Finding]:
    """The mechanism's own bound."""
    yield first_upper(bounds)


def series_of(bounds: Outcomes, name: str) -> dps.Series:
    return next(bound for bound in bounds if isinstance(bound, dps.Series) and bound.name == name)


def changed_column(spec: dps.Spec, facts: dps.Facts, bounds: Outcomes) -> Iterator[dps.Series]:
    series = series_of(bounds, "epsilon-by-group-size")
    yield dataclasses.replace(series, columns=dps.FrozenMap({**series.columns, "epsilon": (0.0,)}))


def further_column(spec: dps.Spec, facts: dps.Facts, bounds: Outcomes) -> Iterator[dps.Series]:
    series = series_of(bounds, "epsilon-by-group-size")
    columns = dps.FrozenMap({**series.columns, "zero": (0.0,)})
    yield dataclasses.replace(series, columns=columns, units=dps.FrozenMap({**series.units, "zero": ""}))


def profile(spec: dps.Spec, facts: dps.Facts, bounds: Outcomes) -> Iterator[dps.Series]:
    yield dataclasses.replace(series_of(bounds, "delta-against-epsilon"), name="another-profile")


def no_outcome(spec: dps.Spec, facts: dps.Facts, bounds: Outcomes) -> Iterable[object]:
    return [1.0]


def complaint(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    yield dps.Diagnostic(code="bad-value", message="it never fits", path=("mechanism",))


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module of a third party, with the functions above."""
    module = types.ModuleType("other_comparison")
    functions = (too_small, called_certified, repeated, changed_column, further_column, profile, no_outcome, complaint)
    module.__dict__.update({function.__name__: function for function in functions})
    monkeypatch.setitem(sys.modules, "other_comparison", module)
    return module


def with_comparison(compare: str, distribution: str = "dpspec-other", **fields: object) -> Catalog:
    """The installed plugins, with a comparison of ``group`` whose code is a function of ``other_comparison``."""
    comparison = dps.Comparison(
        name="other",
        mechanism="group",
        summary="Another formula",
        compare=f"other_comparison:{compare}",
        **fields,  # type: ignore[arg-type]
    )
    offered = Offered(provider=comparison, plugin="other", distribution=distribution, version="1.0")
    catalog = load_catalog()
    group = catalog.mechanisms["group"]
    group = dataclasses.replace(group, comparisons=(*group.comparisons, offered))
    return dataclasses.replace(catalog, mechanisms={**catalog.mechanisms, "group": group})


def audited(folder: Path, catalog: Catalog) -> AuditResult:
    (spec,) = load_specs([written(folder, BOUNDS)], catalog).specs
    return run([spec], catalog, store=Store(folder / "store"), train=False).audits[0]


@pytest.mark.usefixtures("other")
def test_a_wrong_comparison_decides_nothing_and_is_shown_last(tmp_path: Path) -> None:
    catalog = with_comparison("too_small")
    usual, found = audited(tmp_path, load_catalog()), audited(tmp_path, catalog)
    assert [f.value for f in found.findings[-2:]] == [1e-6, 1e6]
    assert found.findings[: len(usual.findings)] == usual.findings
    for before, now in zip(usual.verdicts, found.verdicts, strict=True):
        assert dataclasses.replace(now, claim=before.claim) == before
    assert all("dpspec-other" in f.origin for f in found.findings[-2:])  # a report names who computed it
    assert "bound-code" in {assumption.name for assumption in found.findings[-1].assumptions}


@pytest.mark.usefixtures("other")
def test_verify_recomputes_comparisons(tmp_path: Path) -> None:
    catalog = with_comparison("too_small")
    (spec,) = load_specs([written(tmp_path, BOUNDS)], catalog).specs
    result = run([spec], catalog, store=Store(tmp_path / "store"), train=False)
    assert not [m for m in verify(result, catalog) if m.differs]
    again = verify(result, with_comparison("further_column"))
    assert [m for m in again if m.differs]  # another formula is noticed


@pytest.mark.usefixtures("other")
def test_a_bound_that_a_comparison_repeats_still_proves(tmp_path: Path) -> None:
    usual, found = audited(tmp_path, load_catalog()), audited(tmp_path, with_comparison("repeated", "dpspec"))
    assert usual.verdicts == found.verdicts
    assert usual.verdicts[0].verdict == "proved"


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize(
    ("compare", "error"),
    [
        ("changed_column", "changes the column 'epsilon' of the series 'epsilon-by-group-size'"),
        ("profile", "'another-profile' is a privacy profile"),
        ("called_certified", 'rigor "certified", which only a mechanism states: use "theorem"'),
        ("no_outcome", "yields a float, not a Finding or Series"),
    ],
)
def test_a_comparison_that_changes_bounds_is_refused(tmp_path: Path, compare: str, error: str) -> None:
    with pytest.raises(PluginError, match=error) as raised:
        audited(tmp_path, with_comparison(compare))
    assert "comparison 'other' of dpspec-other 1.0" in str(raised.value)


@pytest.mark.usefixtures("other")
def test_a_series_may_get_further_columns(tmp_path: Path) -> None:
    found = audited(tmp_path, with_comparison("further_column"))
    (series,) = [series for series in found.series if series.name == "epsilon-by-group-size"]
    assert list(series.columns) == ["group_size", "epsilon", "linear", "zero"]


@pytest.mark.usefixtures("other")
def test_the_check_of_a_comparison_is_part_of_the_diagnostics(tmp_path: Path) -> None:
    catalog = with_comparison("repeated", check="other_comparison:complaint")
    messages = [d.message for d in specs.diagnosed(written(tmp_path, BOUNDS), catalog=catalog)]
    assert messages == ["it never fits"]


PHASES = BOUNDS.replace(
    "noise_multiplier: 4.0, clip_norm: 1.0, sampling: {scheme: full}, steps: 10",
    "clip_norm: 1.0, sampling: {scheme: full}, phases: [{steps: 5, noise_multiplier: 4.0}, "
    "{steps: 5, noise_multiplier: 5.0, baselines: [vadhan-sharp]}]",
)


@pytest.mark.parametrize("text", [BOUNDS, PHASES], ids=["block", "phases"])
def test_trials_do_not_know_the_keys_of_comparisons(tmp_path: Path, text: str) -> None:
    catalog = load_catalog()
    usual = specs.spec_of(tmp_path, text)
    other = specs.spec_of(tmp_path, text, "mechanism.baselines=[vadhan-sharp]")
    assert usual.document != other.document
    assert prepare(usual, catalog).trial_inputs() == prepare(other, catalog).trial_inputs()
    assert "baselines" not in str(prepare(other, catalog).trial_inputs())
    assert without_comparisons(other, ()) is other


def registry_of(*candidates: Candidate) -> Catalog:
    return build([BUILTIN, *candidates]).catalog


def test_a_key_that_the_mechanism_has_is_refused(other: types.ModuleType) -> None:
    comparison = dps.Comparison(
        name="other",
        mechanism="group",
        summary="Another formula",
        compare="other_comparison:repeated",
        schema=block(None, clip_norm=flag("A key of the mechanism.", default=False)),
    )
    other.__dict__.update(DPSPEC_API=1, dpspec_comparisons=dps.hookimpl(_offering(comparison)))
    catalog = registry_of(*OURS, THEIRS)
    (broken,) = catalog.broken
    assert broken.reason == "comparison 'other': mechanism 'group' already has the key 'clip_norm'"
    assert [offered.provider.name for offered in catalog.mechanisms["group"].comparisons] == ["ganesh-baselines"]


def _offering(comparison: dps.Comparison) -> object:
    def dpspec_comparisons() -> Iterable[dps.Comparison]:
        return (comparison,)

    return dpspec_comparisons


def test_without_the_papers_a_mechanism_proves_the_same(tmp_path: Path) -> None:
    """Only the lines of baselines go, and their key is unknown."""
    usual, alone = audited(tmp_path, load_catalog()), audited(tmp_path, registry_of(GROUP))
    assert alone.verdicts == usual.verdicts
    assert alone.findings == usual.findings
    columns = [series.columns for series in alone.series if series.name == "epsilon-by-group-size"]
    assert [list(names) for names in columns] == [["group_size", "epsilon"]]
    path = written(tmp_path, BOUNDS.replace("steps: 10", "steps: 10, baselines: [linear]"))
    assert "unknown-key" in {d.code for d in load_specs([path], registry_of(GROUP)).diagnostics}


def test_the_example_of_the_page_is_a_larger_epsilon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("dpspec_basic_composition")
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code[1], str(PAGE), "exec"), module.__dict__)
    candidate = Candidate(distribution="dpspec-basic", version="1.0", plugin="basic", value=module.__name__)
    found = audited(tmp_path, registry_of(GROUP, candidate))
    exact = {f.at["delta"]: f.value for f in found.findings if f.method != "basic composition" and f.bound == "upper"}
    basic = {f.at["delta"]: f.value for f in found.findings if f.method == "basic composition"}
    assert basic.keys() == exact.keys()
    assert all(basic[delta] > exact[delta] for delta in basic)
