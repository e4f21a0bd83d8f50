"""The report of ``dpspec run``: short where all is well, in full where it is not, failures last."""

from __future__ import annotations

import dataclasses
import re

import pytest
from rich.cells import cell_len
from support import results as factory

from dpspec.contract import Check
from dpspec.engine.results.result import AuditResult, Conformance, Result
from dpspec.reporters.formats import brief
from dpspec.reporters.view import words

#: Twice as unlikely as what is rejected.
LOW = 5e-7


def check(name: str, p_value: float = 0.5, detectable: float | None = 0.1, measured: float = 0.1) -> Check:
    return Check(
        assumption=name,
        test="chi-square",
        p_value=p_value,
        observed="measured",
        declared=1.0,
        measured=measured,
        detectable=detectable,
    )


def fine(name: str = "app", **changes: object) -> AuditResult:
    values = {
        "name": name,
        "verdicts": (factory.verdict("one"), factory.verdict("two", verdict="refuted", expect=("refuted",))),
        "conformance": Conformance(status="conforms-within", expect="conforms-within", expected=True, reason="fine"),
        "checks": (check("steps", detectable=0.0), check("noise-scale", detectable=0.005), check("update")),
        "notes": (),
        **changes,
    }
    return factory.audit(**values)


def deviating(name: str = "app") -> AuditResult:
    return fine(
        name,
        conformance=Conformance(
            status="deviates", expect="conforms-within", expected=False, reason="What ran is not what was declared."
        ),
        checks=(check("steps", detectable=0.0), check("clipping", LOW), check("noise-scale", 0.0)),
    )


def several(*audits: AuditResult) -> Result:
    return dataclasses.replace(factory.result(), audits=audits, notes=())


def test_what_is_as_expected_has_a_line_each():
    text = brief.render(several(fine()), width=200)
    rows = [line for line in text.splitlines() if re.match("  [A-Z]", line)]
    assert [row.split()[0] for row in rows] == ["PROVED", "REFUTED", "CONFORMS-WITHIN"]
    assert rows[1].endswith(", as expected")
    assert not rows[0].endswith(", as expected")
    assert "none of 3 checks is rejected" in rows[2]
    assert "the sharpest of each kind sees deviations from 0.5% (noise-scale) to 10% (update)" in rows[2]
    assert "Not as expected" not in text


def test_what_no_check_could_see_is_said():
    checks = (check("sampling", detectable=None), check("update"), check("update", detectable=None))
    text = brief.render(several(fine(checks=checks)), width=200)
    assert "none could see sampling" in text


def test_what_is_not_as_expected_is_last_and_in_full():
    wrong = factory.verdict("wrong", verdict="open", expected=False, reason="Undecided: no attack.")
    text = brief.render(several(fine("good"), fine("app", verdicts=(wrong, factory.verdict("right")))))
    above, _, below = text.partition("Not as expected: app\n")
    assert "wrong" not in above
    assert "right" in above
    assert "NOT AS EXPECTED (expected proved)" in below
    assert "Undecided: no attack." in below


def test_a_deviation_shows_the_checks_that_speak_against_it_worst_first():
    text = brief.render(several(deviating()), width=120)
    below = text.partition("Not as expected\n")[2]
    assert below.index("noise-scale: chi-square, p = 0,") < below.index("clipping: chi-square, p = 5e-7")
    assert "- 1 other check with p above 1e-6" in below
    assert "CONFORMS" not in text
    assert words.tally(several(deviating())) == "FAILED app deviates (noise-scale 0.1 for 1)"


def test_of_many_audits_each_that_is_fine_has_one_line():
    audits = [fine(f"cell-{number}") for number in range(199)]
    text = brief.render(several(*audits[:100], deviating("broken"), *audits[100:]))
    lines = text.splitlines()
    assert len(lines) <= 250
    assert lines[0] == "cell-0: 1 proved, 1 refuted; conforms-within, as expected"
    place = next(number for number, line in enumerate(lines) if line == "Not as expected: broken")
    assert len(lines) - place < 15


def test_many_names_are_counted():
    wrong = [factory.verdict(f"c{number}", verdict="open", expected=False) for number in range(8)]
    said = words.tally(several(fine("app", verdicts=tuple(wrong))))
    assert said == "FAILED 8 of 8 claims: app.c0, app.c1, app.c2, app.c3, app.c4 and 3 more"


def test_never_both():
    """All as expected beside not as expected."""
    for result in (several(deviating()), several(fine(), deviating("b"))):
        assert "all as expected" not in words.tally(result)


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("internal", [False, True])
def test_no_line_is_too_long_and_nothing_hostile_gets_through(result, width, internal):
    text = brief.render(result, width=width, internal=internal)
    assert all(cell_len(line) <= width for line in text.splitlines())
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_bound_that_was_broken_is_the_first_line(result):
    assert brief.render(result).startswith("!! CONTRADICTED")


def test_what_is_left_out_of_reports_is_left_out(result):
    assert "0.7777" in brief.render(result, internal=True)
    assert "0.7777" not in brief.render(result)
