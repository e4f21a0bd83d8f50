"""What figures show: the lines of every kind of plot, the proved curves, and claims and attacks as points on them."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from support import results as factory
from support.audits import bound as upper

from dpspec.contract import Assumption, Evidence, FrozenMap, Printed, Scope, Series
from dpspec.contract.results import AuditResult
from dpspec.reporters import words
from dpspec.reporters.charts import Chart, Line
from dpspec.reporters.figures import figures, overlaid, power, profile, series_chart
from dpspec.results.evidence_weight import proven_curves

EMPTY = factory.audit(findings=(), verdicts=(), evidence=(), series=())


def series(plot: dict[str, Any], columns: dict[str, Any], **changes: Any) -> Series:
    return factory.series(columns, plot, **{"rigor": "certified", "source": "", **changes})


def drawn(plot: dict[str, Any], columns: dict[str, Any]) -> Chart:
    found = series_chart(series(plot, columns))
    assert found is not None
    assert found.svg("n").startswith("<svg")
    return found


def test_sorted_values_are_a_histogram_with_the_worst_row_as_a_line() -> None:
    """Oracle: counting by hand; the steps enclose one row each."""
    found = drawn({"kind": "sorted", "y": ["e"], "by": "g"}, {"g": [2, 1, 2, 1], "e": [4.0, 1.0, 2.0, None]})
    steps, worst = found.lines
    assert list(steps.x) == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]
    assert list(steps.y) == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    assert (worst.label, list(worst.x)) == ("worst e: 4", [4.0, 4.0])
    assert found.y == "rows"


def test_a_histogram_counts_each_row_once_on_either_axis() -> None:
    values = [10.0 ** (i / 50) for i in range(200)]
    for log in ([], ["y"]):
        steps, worst = drawn({"kind": "sorted", "y": ["e"], "log": log}, {"e": [*values, math.inf, None]}).lines
        assert sum(steps.y[1:-1:2]) == 200
        assert worst.x[0] == max(values)
    assert series_chart(series({"kind": "sorted", "y": ["e"]}, {"e": [None, math.nan]})) is None
    bounded = series({"kind": "sorted", "y": ["e"]}, {"e": [1.0, 2.0], "worst_case": [5.0, 5.0], "own": [3.0, 4.0]},
                     bounds=FrozenMap({"worst_case": "upper", "own": "upper"}))  # fmt: skip
    chart = series_chart(bounded)
    assert chart is not None
    assert [(line.label, line.x[0]) for line in chart.lines[1:]] == [("worst e: 2", 2.0), ("worst case: 5", 5.0)]
    (one, _) = drawn({"kind": "sorted", "y": ["e"]}, {"e": [2.0, 2.0]}).lines
    assert sum(one.y[1:-1:2]) == 2


def test_a_log_that_is_no_list_draws_linear_axes() -> None:
    found = drawn({"x": "x", "y": ["e"], "log": 3}, {"x": [1, 2], "e": [1.0, 2.0]})
    assert (found.log_x, found.log_y) == (False, False)


def test_lines_of_a_group_share_a_color_and_columns_a_dash() -> None:
    columns = {"x": [1, 1, 2, 2], "g": [8, 1, 8, 1], "a": [1.0, 2.0, 3.0, 4.0], "b": [5.0, 6.0, 7.0, 8.0]}
    lines = drawn({"x": "x", "y": ["a", "b"], "by": "g"}, columns).lines
    assert [(line.label, line.color, line.dash) for line in lines] == [
        ("g 1, a", 0, 0), ("g 8, a", 1, 0), ("g 1, b", 0, 1), ("g 8, b", 1, 1)
    ]  # fmt: skip
    assert list(lines[0].y) == [2.0, 4.0]


@pytest.mark.parametrize(
    "plot",
    [{}, {"x": "x"}, {"x": "x", "y": ["no"]}, {"y": ["x"]}, {"kind": "sorted"}, {"kind": "dots", "x": "x", "y": ["x"]}],
)
def test_a_plot_of_nothing_is_a_table(plot: dict[str, Any]) -> None:
    assert series_chart(series(plot, {"x": [1.0]})) is None


def test_proved_pairs_are_those_that_no_other_implies() -> None:
    pairs = [(1.0, 1e-3), (2.0, 1e-4), (2.5, 1e-4), (3.0, 1e-3), (4.0, 1e-6)]
    (curve,) = proven_curves(dataclasses.replace(EMPTY, findings=tuple(upper(*pair) for pair in pairs)))
    assert curve.pairs == ((1.0, 1e-3), (2.0, 1e-4), (4.0, 1e-6))
    assert words.curve(curve) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"rigor": "approximate"},
        {"rigor": "statistical"},
        {"bound": "lower"},
        {"value": math.inf},
        {"quantity": "delta"},
        {"at": FrozenMap({"delta": 1e-5, "alpha": 2.0})},
        {"scope": Scope(record=3)},
        {"scope": Scope(direction="add")},
        {"printed": Printed(refuted=True)},
        {"assumptions": (Assumption(name="clipping", status="unchecked"),)},
        {"assumptions": (Assumption(name="clipping", status="false"),)},
    ],
)
def test_what_proves_nothing_of_all_records_is_no_curve(changes: dict[str, Any]) -> None:
    assert proven_curves(dataclasses.replace(EMPTY, findings=(dataclasses.replace(upper(1.0, 1e-5), **changes),))) == []


@pytest.mark.parametrize(("rigor", "points"), [("certified", 2), ("theorem", 2), ("approximate", 1)])
def test_a_proved_profile_adds_its_points(rigor: Any, points: int) -> None:
    profile = series({"x": "epsilon", "y": ["delta"]}, {"epsilon": [1.0], "delta": [1e-2]}, rigor=rigor)
    (curve,) = proven_curves(dataclasses.replace(EMPTY, findings=(upper(2.0, 1e-5),), series=(profile,)))
    assert len(curve.pairs) == points
    assert proven_curves(dataclasses.replace(EMPTY, series=(profile,))) == []


def lines_of(audit: AuditResult) -> dict[str, Line]:
    found = power(audit)
    assert found is not None
    assert found.chart is not None
    return {line.label: line for line in found.chart.lines}


def test_power_is_what_the_pairs_allow() -> None:
    claim = {"id": "c", "kind": "approx-dp", "epsilon": 1.5, "delta": 1e-3}
    audit = dataclasses.replace(
        EMPTY,
        findings=(upper(1.0, 1e-3), upper(2.0, 1e-6)),
        document=FrozenMap({"claims": [claim]}),
        verdicts=(factory.verdict("c"),),
    )
    lines = lines_of(audit)
    for label, pairs in {"bound": [(1.0, 1e-3), (2.0, 1e-6)], "claim c": [(1.5, 1e-3)]}.items():
        for fpr, tpr in zip(lines[label].x, lines[label].y, strict=True):
            due = min(min(1.0, math.exp(e) * fpr + d, 1.0 - math.exp(-e) * max(0.0, 1.0 - d - fpr)) for e, d in pairs)
            assert tpr == pytest.approx(due, rel=1e-9)
    assert (lines["bound"].dash, lines["claim c"].dash) == (0, 1)


def evidence(kind: str, statistics: dict[str, Any]) -> Evidence:
    return Evidence(id="e", kind=kind, statistics=FrozenMap(statistics), scope=Scope(), method="m", source="s")


@pytest.mark.parametrize(
    ("kind", "statistics", "points"),
    [
        ("many-run", {"present": 10, "absent": 20, "true_positives": 5, "false_positives": 2}, [(0.1, 0.5)]),
        ("one-run", {"canaries": 100, "guesses": 40, "correct": 30}, [(0.1, 0.3)]),
        ("one-run-ladder", {"canaries": 10, "guesses": [2, 8], "correct": [2, 5]}, [(0.1, 0.2), (0.3, 0.5)]),
        ("many-run-ranked", {"outcomes": "00110111"}, [(1 / 3, 0.2), (1 / 3, 0.4), (1 / 3, 0.6)]),
        ("binomial", {"trials": 3, "successes": 2}, []),
    ],
)
def test_rates_of_attacks_are_a_line(kind: str, statistics: dict[str, Any], points: list[tuple[float, float]]) -> None:
    audit = dataclasses.replace(EMPTY, findings=(upper(1.0, 1e-3),), evidence=(evidence(kind, statistics),))
    lines = lines_of(audit)
    found = list(zip(lines["attack"].x, lines["attack"].y, strict=True)) if "attack" in lines else []
    assert np.array(found) == pytest.approx(np.array(points))


def test_no_false_positive_is_drawn_as_one_and_not_above_a_bound_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten right guesses among 1000 canaries, as (4, 1e-5) allows: at the left end of the axis it allows 6.5e-5."""
    right = evidence("one-run-ladder", {"canaries": 1000, "guesses": [10], "correct": [10]})
    audit = dataclasses.replace(EMPTY, findings=(upper(4.0, 1e-5),), evidence=(right,))
    (fpr,), (tpr,) = lines_of(audit)["attack"].x, lines_of(audit)["attack"].y
    assert (fpr, tpr) == (1e-3, 1e-2)
    assert tpr < math.exp(4.0) * fpr + 1e-5
    monkeypatch.setattr("dpspec.stats.attacks.evidence_tests.rates", lambda evidence: [(0.0, 0.5)])  # another's method
    assert "attack" not in lines_of(audit)


def test_a_curve_that_says_nothing_is_not_drawn() -> None:
    assert power(dataclasses.replace(EMPTY, findings=(upper(50.0, 1e-3),))) is None
    assert power(EMPTY) is None
    assert profile(dataclasses.replace(EMPTY, findings=(upper(1.0, 1e-3),))) is None


def test_delta_against_epsilon_is_drawn_once() -> None:
    found = (upper(1.0, 1e-3), upper(2.0, 1e-5))
    titles = [figure.title for figure in figures(dataclasses.replace(EMPTY, findings=found))]
    assert titles.count("Delta against epsilon") == 1
    own = series({"x": "epsilon", "y": ["delta"]}, {"epsilon": [1.0, 2.0], "delta": [1e-3, 1e-5]})
    titles = [figure.title for figure in figures(dataclasses.replace(EMPTY, findings=found, series=(own,)))]
    assert "Delta against epsilon" not in titles
    assert "T" in titles


def test_the_legend_of_many_cells_has_an_entry_for_each_cell_and_each_pattern() -> None:
    charts = [
        (f"noise={cell}", Chart("T", [Line(name, (1.0, 2.0), (1.0, 2.0)) for name in ("exact", "linear")], "x", "y"))
        for cell in range(6)
    ]
    chart = overlaid(charts)
    assert chart is not None
    assert [label for _, label in chart.legend] == [*(f"noise={cell}" for cell in range(6)), "exact", "linear"]
    assert [style for style, _ in chart.legend][-2:] == ["solid currentColor", "dashed currentColor"]
    assert "var(--series-4)" not in {style.partition(" ")[2] for style, _ in chart.legend}  # the gray of guessing
    other = [*charts[1:], ("odd", Chart("T", [Line("exact", (1.0, 2.0), (1.0, 2.0))], "x", "y"))]
    mixed = overlaid(other)
    assert mixed is not None
    assert len(mixed.legend) == 11


def test_an_axis_of_several_columns_has_their_common_unit() -> None:
    columns, plot = (
        {"x": [1.0, 2.0], "first_step": [1.0, 2.0], "run": [3.0, 4.0]},
        {"x": "x", "y": ["first_step", "run"]},
    )
    assert drawn(plot, columns).y == "first step, run"
    shared = series_chart(series(plot, columns, units=FrozenMap({"first_step": "epsilon", "run": "epsilon"})))
    assert shared is not None
    assert shared.y == "epsilon"


def test_a_caption_has_the_names_of_columns_in_words() -> None:
    bounded = series({}, {"x": [1.0], "first_step": [1.0]}, bounds=FrozenMap({"first_step": "upper"}))
    (figure,) = figures(factory.audit(findings=(), evidence=(), series=(bounded,)))
    assert "first step rounded up, all else to nearest" in figure.caption
