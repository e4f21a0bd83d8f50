"""Results in notebooks."""

import html
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import results as factory
from support.audits import bound
from support.specs import BOUNDS

import dpspec
import dpspec.errors
from dpspec.contract import FrozenMap
from dpspec.reporters.page import render
from dpspec.reporters.read_results import is_page


def test_a_notebook_shows_the_first_screen_of_the_page_without_scripts() -> None:
    shown = factory.result()._repr_html_()
    assert shown.startswith('<iframe sandbox style="')
    assert "<!doctype" not in shown
    page = html.unescape(shown.split('srcdoc="', 1)[1].rsplit('"', 1)[0])
    assert is_page(page)
    assert "<script" not in page
    screen = page[page.index('<p class="brand">') : page.index("</main>")]
    assert screen in render(factory.result())
    assert "The privacy claim is proved" in screen


def test_claims_as_a_data_frame() -> None:
    pytest.importorskip("pandas")
    two = (factory.verdict(), factory.verdict("two", verdict="open", upper=None))
    frame = factory.result(factory.audit(verdicts=two)).to_frame()
    assert list(frame["claim"]) == ["one", "two"]
    assert frame["upper"][0] == 2.5
    assert frame["upper"].isna()[1]


def test_without_pandas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for ask in (factory.result().to_frame, factory.result().audits[0].series[0].to_frame):
        with pytest.raises(ImportError, match="pip install pandas"):
            ask()
        with pytest.raises(dpspec.errors.UsageError, match="without it, a series holds the same in `columns`"):
            ask()


def test_a_claim_is_plotted_with_the_bound_and_guessing() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    result = factory.result(factory.audit(findings=(bound(1.0, 0.0),)))
    axes = result.plot_tradeoff("one")
    labels = [line.get_label() for line in axes.get_lines()]
    assert labels[0].startswith("bound")
    assert "guessing" in labels
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert result.plot_tradeoff("one", axes=axes) is axes


def test_a_plot_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    result = factory.result(factory.audit(findings=(bound(1.0, 0.0),)))
    with pytest.raises(ValueError, match="no claim has the id 'two'; the claims are one"):
        result.plot_tradeoff("two")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        result.plot_tradeoff("one")
    with pytest.raises(ValueError, match="no proved curve"):
        factory.result(factory.audit(findings=(), series=(), verdicts=(factory.verdict(),))).plot_tradeoff("one")


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """pandas, as far as it is asked for, whether it is installed or not."""
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))


@pytest.mark.usefixtures("frames")
def test_claims_of_a_matrix_have_a_column_for_each_axis() -> None:
    cells = [
        factory.audit(f"m[{k}]", cell=FrozenMap({"mechanism.k": k, "claims.one.claimed": 1.5 * k})) for k in (1, 8)
    ]
    frame = factory.result(*cells, factory.audit("alone")).to_frame()
    assert list(frame)[:4] == ["audit", "k", "claims.one.claimed", "claim"]
    assert frame["k"] == [1, 8, None]
    assert frame["claimed"] == [3.0, 3.0, 3.0]  # what is claimed, not the axis of that name


@pytest.mark.usefixtures("frames")
def test_a_series_as_a_data_frame_of_one_audit_and_of_all_cells() -> None:
    cells = [factory.audit(f"m[{k}]", cell=FrozenMap({"mechanism.k": k})) for k in (1, 8)]
    result = factory.result(*cells)
    (series,) = result.audits[0].series
    own, joined = series.to_frame(), result.series(series.name).to_frame()
    assert own == {name: list(column) for name, column in series.columns.items()}
    assert list(joined) == ["audit", "k", *own]
    assert joined["k"] == [one for one in (1, 8) for _ in next(iter(own.values()))]
    with pytest.raises(dpspec.errors.UsageError, match="no audit has a series 'none'; there are: s"):
        result.series("none")


@pytest.mark.parametrize(
    ("specs", "arguments", "message"),
    [
        (
            "a.yaml",
            {"overrides": "mechanism.steps=2"},
            "overrides must be a list of strings, such as .* not 'mechanism",
        ),
        ("a.yaml", {"overrides": {"mechanism.steps": 2}}, "overrides must be a list of strings"),
        ("a.yaml", {"overrides": [2]}, r"overrides must be a list of strings, .* not \[2\]"),
        ("a.yaml", {"device": "gpu"}, 'device must be "auto", "cpu", "cuda" or "cuda:1", not \'gpu\''),
        ("a.yaml", {"device": 0}, "device must be .* not 0"),
        ("a.yaml", {"workers": 0}, "workers must be an integer of at least 1, or None, not 0"),
        ("a.yaml", {"workers": 1.5}, "workers must be an integer"),
        ("a.yaml", {"store": None}, "store must be the path of a folder, or a URL, not None"),
        ([3], {}, "or dictionaries, not a int"),
        (3, {}, "not a int"),
        (b"spec.yaml", {}, "not a bytes"),
    ],
)
def test_an_argument_that_is_none_of_its_kind_is_named(specs: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(dpspec.errors.UsageError, match=message):
        dpspec.run(specs, **arguments)


@pytest.mark.parametrize("call", [lambda: dpspec.run("x", device=3), lambda: dpspec.run([3])])
def test_invalid_arguments_are_value_errors(call: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        call()


def test_a_result_is_read_from_a_path_alone() -> None:
    with pytest.raises(dpspec.errors.UsageError, match="file must be a path, not a Result"):
        dpspec.load(factory.result())  # type: ignore[arg-type]


SPEC = BOUNDS.replace("ordinary", "notebook")


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "notebook.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return path


def test_one_call_audits_a_file_and_one_reads_what_it_left(spec: Path, tmp_path: Path) -> None:
    result = dpspec.run("notebook.yaml", store=tmp_path / "store")
    assert [v.verdict for v in result.audits[0].verdicts] == ["proved"]
    saved = tmp_path / "result.json"
    saved.write_text(dpspec.dump(result), encoding="utf-8")
    assert dpspec.load(saved) == result == dpspec.load(str(saved))
    assert dpspec.verify(result, dpspec.load_catalog()) == ()
    page = tmp_path / "report.html"
    from dpspec.reporters.page import render

    page.write_text(render(result), encoding="utf-8")
    assert dpspec.load(page).audits[0].verdicts == result.audits[0].verdicts
    with pytest.raises(dpspec.errors.ResultError, match=r"cannot read nothing\.json"):
        dpspec.load("nothing.json")


@pytest.mark.ci
def test_several_files_are_one_family(spec: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(SPEC.replace("name: notebook", "name: other"), encoding="utf-8")
    result = dpspec.run([spec, other], overrides=["claims.one.epsilon=0.01"], train=False)
    assert [audit.name for audit in result.audits] == ["notebook", "other"]
    assert [audit.verdicts[0].verdict for audit in result.audits] == ["refuted", "refuted"]
    assert not (tmp_path / ".dpspec" / "store").exists()


def test_what_is_wrong_is_raised_with_the_lines_at_fault(spec: Path) -> None:
    with pytest.raises(dpspec.errors.SpecError) as caught:
        dpspec.run(spec, overrides=["mechanism.nois_multiplier=1"])
    assert caught.value.diagnostics[0].code == "unknown-key"
    assert "--set:1:11: error[unknown-key]" in caught.value.__notes__[0]
    with pytest.raises(dpspec.errors.PluginError) as missing:
        dpspec.run(spec, overrides=["mechanism.kind=grop"])
    assert "did you mean 'group'?" in missing.value.__notes__[0]
    with pytest.raises(dpspec.errors.NothingToRunError):
        dpspec.run([])


def test_a_missing_file_is_named() -> None:
    with pytest.raises(dpspec.errors.SpecError) as caught:
        dpspec.run("absent.yaml")
    assert str(caught.value) == "absent.yaml: no such file"


DOCUMENT: dict[str, Any] = {
    "dpspec": 1,
    "name": "demo",
    "mechanism": {
        "kind": "group",
        "noise_multiplier": np.float64(1.1),
        "clip_norm": 1.0,
        "sampling": {"scheme": "poisson", "rate": 0.01},
        "steps": 1000,
    },
    "data": {"kind": "declared", "records": 50000, "features": 10, "classes": 2},
}
CLAIM = {"id": "one", "kind": "approx-dp", "epsilon": 1.0, "delta": 1e-5}


def test_a_spec_may_be_a_dictionary_without_claims(tmp_path: Path) -> None:
    result = dpspec.run(DOCUMENT, store=tmp_path)
    assert result.exit_code == 0
    assert not result.audits[0].verdicts
    assert any(finding.quantity == "epsilon" for finding in result.audits[0].findings)
    cells = dpspec.run(
        [DOCUMENT | {"matrix": {"mechanism.steps": [10, 20]}}, DOCUMENT | {"name": "two"}], store=tmp_path
    )
    assert [audit.name for audit in cells.audits] == ["demo[10]", "demo[20]", "two"]


def test_errors_of_a_dictionary_point_into_its_yaml() -> None:
    with pytest.raises(dpspec.errors.SpecError) as raised:
        dpspec.run(DOCUMENT | {"claims": [CLAIM | {"delta": "x"}]})
    assert "<dictionary 1>:" in str(raised.value)
    assert "delta" in raised.value.__notes__[0]
    with pytest.raises(dpspec.errors.UsageError, match="not a object"):
        dpspec.run(DOCUMENT | {"name": object()})


def test_calibrate_finds_the_noise_and_writes_plain_values() -> None:
    (found,) = dpspec.calibrate(DOCUMENT | {"claims": [CLAIM]}, "mechanism.noise_multiplier", precision=0.05)
    assert found.proved is not None
    assert found.unproved is not None
    noises = [found.proved.value, found.unproved.value]
    bounds = dpspec.epsilon(noise_multiplier=noises, rate=0.01, steps=1000, width=1e-5)
    assert bounds.upper[0] <= 1.0 < bounds.upper[1]
    proved = json.loads(json.dumps(found.as_json()))["proved"]
    assert (proved["value"], proved["verdicts"][0]["verdict"]) == (found.proved.value, "proved")
    with pytest.raises(dpspec.errors.UsageError, match="precision must be above 0 and below 1"):
        dpspec.calibrate(DOCUMENT, "mechanism.steps", precision=2)


def test_a_result_is_a_short_table_without_values_of_the_data(tmp_path: Path) -> None:
    many = [CLAIM | {"id": f"c{i}", "epsilon": 1.6} for i in range(40)]
    result = dpspec.run(DOCUMENT | {"claims": many}, store=tmp_path)
    lines = repr(result).splitlines()
    assert len(lines) == 32
    assert lines[1].startswith("  demo  c0: proved  epsilon <= 1.6 at delta = 1e-5  epsilon >= 1.515")
    assert len(repr(result.audits[0])) < 5000
    audit = factory.audit(verdicts=(factory.verdict(upper_finding=0),))
    private = tuple(replace(finding, privacy="data-dependent") for finding in audit.findings)
    assert "epsilon <= 2.5" in repr(factory.result(audit))
    assert "epsilon <= 2.5" not in repr(factory.result(replace(audit, findings=private)))
