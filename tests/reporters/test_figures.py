"""What figures show: the lines of every kind of plot, the proved curves, and claims and attacks as points on them."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
from support import results as factory

from dpspec.contract import Assumption, Evidence, Finding, FrozenMap, Printed, Scope, Series
from dpspec.engine.judging.evidence_weight import proven_curves
from dpspec.engine.results.result import AuditResult
from dpspec.reporters import labels
from dpspec.reporters.drawing import Drawing, Line, svg
from dpspec.reporters.figures import figures, power, profile
from dpspec.reporters.series_plots import drawing

EMPTY = factory.audit(findings=(), verdicts=(), evidence=(), series=())


def series(plot: dict[str, Any], columns: dict[str, Any], **changes: Any) -> Series:
    return factory.series(columns, plot, **{"rigor": "certified", "source": "", **changes})


def drawn(plot: dict[str, Any], columns: dict[str, Any], audit: AuditResult = EMPTY) -> Drawing:
    found = drawing(series(plot, columns), audit)
    assert found is not None
    assert svg(found, "n").startswith("<svg")
    return found


def upper(epsilon: float, delta: float, **changes: Any) -> Finding:
    base = Finding(
        quantity="epsilon", value=epsilon, bound="upper", rigor="certified", method="m", source="s",
        at=FrozenMap({"delta": delta}),
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def test_sorted_values_of_all_rows_and_of_every_group() -> None:
    found = drawn({"kind": "sorted", "y": ["e"], "by": "g"}, {"g": [2, 1, 2, 1], "e": [4.0, 1.0, 2.0, None]})
    assert [line.label for line in found.lines] == ["all rows", "g 1", "g 2"]
    assert [list(line.y) for line in found.lines] == [[1.0, 2.0, 4.0], [1.0], [2.0, 4.0]]
    assert [list(line.x) for line in found.lines] == [[0.0, 0.5, 1.0], [0.5], [0.0, 1.0]]


def test_many_sorted_values_keep_their_ends_and_their_order() -> None:
    values = np.random.default_rng(0).normal(size=5000)
    (line,) = drawn({"kind": "sorted", "y": ["e"]}, {"e": list(map(float, values))}).lines
    assert len(line.y) <= 201
    assert (line.y[0], line.y[-1]) == (values.min(), values.max())
    assert list(line.y) == sorted(line.y)


def test_dots_beside_names() -> None:
    found = drawn(
        {"kind": "dots", "x": "way", "y": ["e"], "by": "delta", "log": ["y"]},
        {"way": ["a", "b", "a"], "delta": [0.1, 0.1, 0.2], "e": [1.0, 2.0, 3.0]},
    )
    assert found.names == ("a", "b")
    assert found.log_x
    assert [(line.label, list(line.x), list(line.y)) for line in found.lines] == [
        ("delta 0.1", [1.0, 2.0], [0.0, 1.0]),
        ("delta 0.2", [3.0], [0.0]),
    ]


@pytest.mark.parametrize("log", [None, 3, "y", {}])
@pytest.mark.parametrize("plot", [{"x": "x", "y": ["e"]}, {"kind": "dots", "x": "x", "y": ["e"]}])
def test_a_log_that_is_no_list_draws_linear_axes(plot, log) -> None:
    found = drawn({**plot, "log": log}, {"x": [1, 2], "e": [1.0, 2.0]})
    assert (found.log_x, found.log_y) == (False, False)


def test_lines_of_a_group_share_a_colour_and_columns_a_dash() -> None:
    columns = {"x": [1, 1, 2, 2], "g": [8, 1, 8, 1], "a": [1.0, 2.0, 3.0, 4.0], "b": [5.0, 6.0, 7.0, 8.0]}
    lines = drawn({"x": "x", "y": ["a", "b"], "by": "g"}, columns).lines
    assert [(line.label, line.colour, line.dash) for line in lines] == [
        ("g 1, a", 0, 0), ("g 8, a", 1, 0), ("g 1, b", 0, 1), ("g 8, b", 1, 1)
    ]  # fmt: skip
    assert list(lines[0].y) == [2.0, 4.0]


def test_a_band_is_drawn_about_its_line() -> None:
    found = drawn(
        {"x": "x", "y": ["m"], "band": ["l", "h"]}, {"x": [1, 2], "m": [2.0, 3.0], "l": [1.0, 2.0], "h": [3, 4]}
    )
    (line,) = found.lines
    assert line.band is not None
    assert [list(edge) for edge in line.band] == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    "plot",
    [{}, {"x": "x"}, {"x": "x", "y": ["no"]}, {"y": ["x"]}, {"kind": "sorted"}, {"x": "x", "y": ["x"], "band": ["no"]}],
)
def test_a_plot_of_nothing_is_a_table(plot: dict[str, Any]) -> None:
    assert drawing(series(plot, {"x": [1.0]}), EMPTY) is None


def test_claims_and_attacks_stand_where_their_two_numbers_are() -> None:
    claims = [
        {"id": "r", "kind": "rero", "kappa": 0.1, "gamma": 0.5, "refuted_by": "attack"},
        {"id": "other", "kind": "approx-dp", "epsilon": 1.0, "delta": 1e-5},
        {"id": "one", "kind": "rero", "kappa": 0.1, "gamma": 0.5, "record": 3},
    ]
    shown = upper(0.3, 0.0, quantity="gamma", bound="lower", rigor="statistical", at=FrozenMap({"kappa": 0.1}))
    elsewhere = dataclasses.replace(shown, at=FrozenMap({"kappa": 0.1, "split": "test"}))
    verdicts = tuple(
        factory.verdict(str(c["id"]), quantity="epsilon" if "epsilon" in c else "gamma", claimed=c.get("gamma", 1.0))
        for c in claims
    )
    audit = dataclasses.replace(
        EMPTY, document=FrozenMap({"claims": claims}), verdicts=verdicts, findings=(shown, elsewhere)
    )
    lines = drawn({"x": "kappa", "y": ["gamma"]}, {"kappa": [0.1, 0.2], "gamma": [0.6, 0.7]}, audit).lines
    assert [(line.label, line.marker, tuple(line.x), tuple(line.y)) for line in lines[1:]] == [
        ("claim r", "D", (0.1,), (0.5,)),
        ("attack", "o", (0.1,), (0.3,)),
    ]


def test_proved_pairs_are_those_that_no_other_implies() -> None:
    pairs = [(1.0, 1e-3), (2.0, 1e-4), (2.5, 1e-4), (3.0, 1e-3), (4.0, 1e-6)]
    (curve,) = proven_curves(dataclasses.replace(EMPTY, findings=tuple(upper(*pair) for pair in pairs)))
    assert curve.pairs == ((1.0, 1e-3), (2.0, 1e-4), (4.0, 1e-6))
    assert labels.curve(curve) == ""


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
    assert proven_curves(dataclasses.replace(EMPTY, findings=(upper(1.0, 1e-5, **changes),))) == []


def test_curves_of_several_scopes_are_told_apart() -> None:
    narrow = upper(1.0, 1e-5, scope=Scope(data="collection"))
    families = upper(9.0, 1e-5, at=FrozenMap({"delta": 1e-5, "group_size": 8}))
    found = proven_curves(dataclasses.replace(EMPTY, findings=(upper(2.0, 1e-5), narrow, families)))
    assert [(labels.curve(curve), curve.pairs) for curve in found] == [
        (", any dataset", ((2.0, 1e-5),)),
        (", the declared collection of datasets", ((1.0, 1e-5),)),
        (", groups of 8, any dataset", ((9.0, 1e-5),)),
    ]


@pytest.mark.parametrize(("rigor", "points"), [("certified", 2), ("theorem", 2), ("approximate", 1)])
def test_a_proved_profile_adds_its_points(rigor: Any, points: int) -> None:
    profile = series({"x": "epsilon", "y": ["delta"]}, {"epsilon": [1.0], "delta": [1e-2]}, rigor=rigor)
    (curve,) = proven_curves(dataclasses.replace(EMPTY, findings=(upper(2.0, 1e-5),), series=(profile,)))
    assert len(curve.pairs) == points
    assert proven_curves(dataclasses.replace(EMPTY, series=(profile,))) == []


def lines_of(audit: AuditResult) -> dict[str, Line]:
    found = power(audit)
    assert found is not None
    return {line.label: line for line in found[0].lines}


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
    assert (lines["bound"].dash, lines["claim c"].dash, lines["claim c"].colour) == (0, 1, 0)


def evidence(kind: str, statistics: dict[str, Any]) -> Evidence:
    return Evidence(id="e", kind=kind, statistics=FrozenMap(statistics), scope=Scope(), method="m", source="s")


@pytest.mark.parametrize(
    ("kind", "statistics", "points"),
    [
        ("many-run", {"present": 10, "absent": 20, "true_positives": 5, "false_positives": 2}, [(0.1, 0.5)]),
        ("one-run", {"canaries": 100, "guesses": 40, "correct": 30}, [(0.1, 0.3)]),
        ("one-run-ladder", {"canaries": 10, "guesses": [2, 8], "correct": [2, 5]}, [(1e-6, 0.2), (0.3, 0.5)]),
        ("many-run-ranked", {"outcomes": "00110111"}, [(1e-6, 0.2), (1e-6, 0.4), (1 / 3, 0.6)]),
        ("binomial", {"trials": 3, "successes": 2}, []),
    ],
)
def test_attacks_are_points(kind: str, statistics: dict[str, Any], points: list[tuple[float, float]]) -> None:
    audit = dataclasses.replace(EMPTY, findings=(upper(1.0, 1e-3),), evidence=(evidence(kind, statistics),))
    lines = lines_of(audit)
    found = list(zip(lines["attack"].x, lines["attack"].y, strict=True)) if "attack" in lines else []
    assert np.array(found) == pytest.approx(np.array(points))


def test_a_curve_that_says_nothing_is_not_drawn() -> None:
    assert power(dataclasses.replace(EMPTY, findings=(upper(50.0, 1e-3),))) is None
    assert power(EMPTY) is None
    assert profile(dataclasses.replace(EMPTY, findings=(upper(1.0, 1e-3),))) is None


def test_delta_against_epsilon_is_drawn_once() -> None:
    found = (upper(1.0, 1e-3), upper(2.0, 1e-5))
    titles = [figure.title for figure in figures(dataclasses.replace(EMPTY, findings=found), "n")]
    assert titles.count("Delta against epsilon") == 1
    own = series({"x": "epsilon", "y": ["delta"]}, {"epsilon": [1.0, 2.0], "delta": [1e-3, 1e-5]})
    titles = [figure.title for figure in figures(dataclasses.replace(EMPTY, findings=found, series=(own,)), "n")]
    assert "Delta against epsilon" not in titles
    assert "T" in titles


def test_no_label_is_written_that_no_figure_has_room_for() -> None:
    """They come from what anybody wrote into a result."""
    text = "1" * 50_000
    lines = (Line(text, (0.0, 1.0), (0.0, 1.0)), Line("b", (0.0, 1.0), (1.0, 0.0)))
    for names in ((), (text, "b")):
        written = svg(Drawing("T", lines, text, text, names=names), "n")
        assert 100 < max(map(len, re.findall("1+", written))) <= 200
