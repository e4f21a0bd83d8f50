"""A matrix as one in the terminal and on the page: cells by what varies, one table."""

import dataclasses

import numpy as np
from support import audits
from support import results as factory

from dpspec.accounting import gaussian
from dpspec.contract import FrozenMap
from dpspec.contract.results import AuditResult, Remedy, Result
from dpspec.reporters import markdown
from dpspec.reporters.page import render
from dpspec.reporters.terminal import render_brief


def cell(values: dict[str, object], upper: float | None = 2.5, **changes: object) -> AuditResult:
    name = ", ".join(map(str, values.values()))
    verdict = factory.verdict("main", upper=upper, **changes)
    at = FrozenMap({f"mechanism.{key}": value for key, value in values.items()})
    return factory.audit(f"sweep[{name}]", cell=at, verdicts=(verdict,), notes=())


def grid(**axes: tuple[object, ...]) -> Result:
    (first, ones), (second, others) = axes.items()
    pairs = [(one, other) for one in ones for other in others]
    return factory.result(*(cell({first: a, second: b}, upper=1.0 + i) for i, (a, b) in enumerate(pairs)))


def test_the_terminal_names_cells_by_what_varies_in_one_table() -> None:
    result = grid(noise=(0.5, 1.0), k=(1, 8))
    lines = render_brief(result).splitlines()
    assert lines[:6] == [
        "All 4 privacy claims are proved.",
        "sweep, 4 cells",
        "  noise  k  main                                conformance",
        "  0.5    1  proved, at most 1 (proved formula)  not tested",
        "  0.5    8  proved, at most 2 (proved formula)  not tested",
        "  1      1  proved, at most 3 (proved formula)  not tested",
    ]


def test_a_cell_that_is_not_as_expected_is_marked_there_and_told_in_full_below() -> None:
    result = factory.result(cell({"k": 1}), cell({"k": 8}, verdict="open", expected=False))
    text = render_brief(result)
    assert "8  open, at most 2.5 (proved formula), NOT AS EXPECTED" in text
    assert "Not as expected: sweep, k=8 (sweep[8])" in text
    assert "Not as expected: sweep, k=1" not in text


def test_a_narrow_page_and_200_cells_have_a_line_for_each() -> None:
    result = factory.result(*(cell({"noise": i, "description": "x" * 30}) for i in range(200)))
    wide, narrow = (render_brief(result, width=width).splitlines() for width in (80, 36))
    assert len(wide) <= 220
    assert "  noise=7: main: proved, at most 2.5" in narrow


def test_the_page_shows_one_table_and_folds_what_is_as_expected() -> None:
    result = factory.result(
        *(cell({"noise": k}, upper=1.0 + k) for k in range(2)), cell({"noise": 7}, verdict="open", expected=False)
    )
    page = render(result)
    assert '<h2 id="m0-h">sweep: 3 cells</h2>' in page
    assert page.count('<details class="cell">') == 2
    assert page.count('<details class="cell" open>') == 1
    assert ">noise=7</a>" in page
    assert "<li>main: epsilon ≤ 3 at delta" in page.split("Cells of sweep")[0]
    assert "S, all cells" in page  # the series that every cell has, joined


def test_a_refuted_cell_shows_the_end_that_refutes_it() -> None:
    finding = factory.audit().findings[0]
    lower = dataclasses.replace(finding, value=10.15, lower=None, bound="lower", rigor="certified")
    refuted = {"verdict": "refuted", "lower": 10.15, "lower_finding": 1, "claimed": 10.0, "expected": False}
    wrong = dataclasses.replace(cell({"noise": 2}, upper=10.16, **refuted), findings=(finding, lower), evidence=())
    page = render(factory.result(cell({"noise": 1}), wrong))
    assert "10.15 &gt; 10" in page
    assert "≤ 10.16" not in page.split("Cells of sweep")[-1].split("</table>")[0]


def test_the_page_has_the_remedies_of_each_failing_cell() -> None:
    def failing(noise: int, value: float) -> AuditResult:
        remedy = Remedy(place="mechanism.noise_multiplier", now=float(noise), value=value)
        audit = cell({"noise": noise}, verdict="open", expected=False, provable=None)
        return dataclasses.replace(audit, remedies=(remedy,))

    different = [failing(noise, 9.0 + noise) for noise in range(7)]
    text = render(factory.result(cell({"noise": 8}), *different))
    assert text.count("<strong>noise=") == 7
    assert "<strong>noise=3</strong>: mechanism.noise_multiplier" in text
    assert "<summary>2 more</summary>" in text
    few = render(factory.result(cell({"noise": 8}), *different[:5]))
    assert "more audits</summary>" not in few
    same = render(factory.result(*[dataclasses.replace(audit, remedies=different[0].remedies) for audit in different]))
    assert "<strong>The same for each of 7 audits</strong>" in same


def test_of_many_cells_single_ones_are_not_drawn_and_the_page_says_where_their_numbers_are() -> None:
    few, many, more = (render(factory.result(*(cell({"noise": k}) for k in range(n)))) for n in (2, 9, 19))
    assert (len(more) - len(many)) / 10 < 1500  # characters for each further cell
    assert 'id="a0-f0-title"' in few
    assert "a0-f0-title" not in many
    assert "<h3>Findings</h3>" in few
    assert "<h3>Findings</h3>" not in many
    assert many.count("writes the embedded result with all of them") == 1
    assert many.count("<h3>Audited mechanism</h3>") == many.count("<h3>Assumptions</h3>") == many.count("<article") == 1
    further = many.split('<h2 id="brief-h">')[1].split("</section>")[0]
    assert [f'id="a{n}"' in further for n in range(9)] == [n > 0 for n in range(9)]
    assert further.count("The privacy claim is proved") == 8
    assert many.count("1 claim as expected") == 1  # the reason of the first cell; the grid has the claims


def test_of_many_audits_those_that_are_not_as_expected_are_drawn_first() -> None:
    wrong = factory.audit("wrong", verdicts=(factory.verdict("main", verdict="open", expected=False),))
    page = render(factory.result(*(factory.audit(f"a{n}") for n in range(40)), wrong))
    drawn = [number for number in range(41) if f'id="a{number}-f0-title"' in page]
    assert drawn == [*range(23), 40]
    assert page.count("writes the embedded result with all of them") == 17


def test_a_large_matrix_has_one_grid_with_numbers_and_no_table_of_its_claims() -> None:
    cells = [cell({"noise": k}, upper=1.0 + k) for k in range(8)]
    page = render(factory.result(*cells, cell({"noise": 8}, verdict="refuted", expected=False, upper=9.5)))
    claims = page.split('<section id="claims"')[1].split("</section>")[0]
    assert "<table" not in claims
    assert "Each row of a grid is a cell" in claims
    matrix = page.split('<section class="matrix"')[1].split("</section>")[0]
    assert matrix.count('<span class="verdict proved">') == 8
    assert matrix.count("not as expected") == 1
    assert "\u2264 8" in matrix
    assert '<table class="sortable">' in matrix


def test_the_markdown_of_45_cells_fits_a_comment() -> None:
    cells = [cell({"noise": k, "rate": 0.5}, verdict="open", expected=False) for k in range(45)]
    text = markdown.render(factory.result(*cells))
    assert len(text.encode()) < 60_000
    assert text.count("| open, at most 2.5 (proved formula), NOT AS EXPECTED |") == 45


def test_cells_with_equal_curves_are_one_line_with_one_entry() -> None:
    pairs = [(noise, rate) for noise in (1, 2) for rate in (0.1, 0.2, 0.3)]
    audits = []
    for noise, rate in pairs:
        series = factory.series({"x": [1, 2], "y": [noise, noise + 1]}, {"x": "x", "y": ["y"]})
        audits.append(dataclasses.replace(cell({"noise": noise, "rate": rate}), series=(series,)))
    legend = render(factory.result(*audits)).split('<ul class="legend"><li>')[1].split("</ul>")[0]
    assert (legend.count("noise=1<"), legend.count("noise=2<"), legend.count("rate")) == (1, 1, 0)


def test_the_risk_of_a_failed_claim_is_not_called_the_highest() -> None:
    def gaussian_cell(noise: int, mu: float, **changes: object) -> AuditResult:
        points = [(epsilon, float(gaussian.delta(epsilon, mu))) for epsilon in np.linspace(0.0, 8.0, 60)]
        found = tuple(audits.bound(float(epsilon), delta) for epsilon, delta in points)
        return dataclasses.replace(cell({"noise": noise}, **changes), findings=found)

    failing = gaussian_cell(2, 1.0, verdict="open", expected=False)
    screen = render(factory.result(failing, gaussian_cell(1, 2.0))).split('<section id="claims"')[0]
    assert "<p>In noise=2. Of" in screen
    assert "Highest in" not in screen
    assert "<p>Noise=1, members: at most " in screen
    milder = gaussian_cell(3, 0.5, verdict="open", expected=False)
    screen = render(factory.result(milder, failing, gaussian_cell(1, 2.0))).split('<section id="claims"')[0]
    assert "<p>In noise=2. Of" in screen, "of two failures the one with the higher risk"
    screen = render(factory.result(gaussian_cell(2, 1.0), gaussian_cell(1, 2.0))).split('<section id="claims"')[0]
    assert "<p>Highest in noise=1. Of" in screen


def test_a_matrix_of_failed_controls_has_a_page() -> None:
    document = FrozenMap(
        {"dpspec": 1, "name": "demo", "claims": [{"id": "main", "kind": "approx-dp", "control": True}]}
    )
    missed = {"verdict": "open", "expect": ("refuted",), "expected": False}
    cells = [dataclasses.replace(cell({"noise": noise}, **missed), document=document) for noise in (1, 2)]
    assert "2 of 2 claims failed" in render(factory.result(*cells))
