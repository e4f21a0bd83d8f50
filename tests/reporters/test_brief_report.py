"""The report of ``dpspec run``: short where all is well, in full where it is not, failures last."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from support import results as factory

from dpspec.contract import Check, FrozenMap
from dpspec.engine.results.result import AuditResult, Conformance, Result
from dpspec.reporters.formats import brief, terminal
from dpspec.reporters.view.tally import tally

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
        "conformance": Conformance(
            status="no-deviation-found", expect="no-deviation-found", expected=True, reason="fine"
        ),
        "checks": (check("steps", detectable=0.0), check("noise-scale", detectable=0.005), check("update")),
        "notes": (),
        **changes,
    }
    return factory.audit(**values)


def deviating(name: str = "app") -> AuditResult:
    return fine(
        name,
        conformance=Conformance(
            status="deviates", expect="no-deviation-found", expected=False, reason="What ran is not what was declared."
        ),
        checks=(check("steps", detectable=0.0), check("clipping", LOW), check("noise-scale", 0.0)),
    )


def several(*audits: AuditResult) -> Result:
    return dataclasses.replace(factory.result(), audits=audits, notes=())


def test_what_is_as_expected_has_a_line_each():
    text = brief.render(several(fine()), width=200)
    rows = [line for line in text.splitlines() if re.match("  [A-Z]", line)]
    assert [row.split("  ")[1] for row in rows] == ["PROVED", "REFUTED", "NO DEVIATION FOUND"]
    assert rows[1].endswith(", as expected")
    assert not rows[0].endswith(", as expected")
    assert rows[2].endswith("3 checks; smallest detectable deviation per kind from 0.5% (noise-scale) to 10% (update)")
    assert "Not as expected" not in text


def test_what_no_check_could_see_is_said():
    checks = (check("sampling", detectable=None), check("update"), check("update", detectable=None))
    text = brief.render(several(fine(checks=checks)), width=200)
    assert "no detection limit for sampling" in text


def test_what_is_not_as_expected_is_last_and_in_full():
    wrong = factory.verdict("wrong", verdict="open", expected=False, reason="Not proved: no bound.")
    text = brief.render(several(fine("good"), fine("app", verdicts=(wrong, factory.verdict("right")))))
    above, _, below = text.partition("Not as expected: app\n")
    assert "wrong" not in above
    assert "right" in above
    assert "NOT AS EXPECTED (expected proved)" in below
    assert "Not proved: no bound." in below


def test_a_deviation_shows_the_checks_that_speak_against_it_worst_first():
    text = brief.render(several(deviating()), width=120)
    below = text.partition("Not as expected\n")[2]
    assert below.index("noise-scale: chi-square, p = 0,") < below.index("clipping: chi-square, p = 5e-7")
    assert "- 1 other check with p above 1e-6" in below
    assert "NO DEVIATION" not in text
    assert tally(several(deviating())) == "FAILED app deviates (noise-scale 0.1 for 1)"


def test_of_many_audits_each_that_is_fine_has_one_line():
    audits = [fine(f"cell-{number}") for number in range(199)]
    text = brief.render(several(*audits[:100], deviating("broken"), *audits[100:]))
    lines = text.splitlines()
    assert len(lines) <= 250
    assert lines[0] == "cell-0: 1 proved, 1 refuted; no deviation found, as expected"
    place = next(number for number, line in enumerate(lines) if line == "Not as expected: broken")
    assert len(lines) - place < 15


def test_many_names_are_counted():
    wrong = [factory.verdict(f"c{number}", verdict="open", expected=False) for number in range(8)]
    said = tally(several(fine("app", verdicts=tuple(wrong))))
    assert said == "FAILED 8 of 8 claims: app.c0, app.c1, app.c2, app.c3, app.c4 and 3 more"


def test_never_both():
    """All as expected beside not as expected."""
    for result in (several(deviating()), several(fine(), deviating("b"))):
        assert "all as expected" not in tally(result)


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


def test_a_claim_that_holds_of_a_weaker_adversary_says_so_on_its_line():
    """A proof about the final model alone must not read like one about all of training."""
    claims = [{"id": "one", "access": "final-model"}, {"id": "two"}, {"id": "good", "kind": "metric"}]
    document = FrozenMap({"claims": claims, "threat_model": {"access": "transcript"}})
    verdicts = (factory.verdict("one"), factory.verdict("two"), factory.verdict("good", kind="metric"))
    text = brief.render(several(fine(document=document, verdicts=verdicts)), width=200)
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("  PROVED")}
    assert lines["one"].endswith(": epsilon <= 3 at delta = 1e-06, seeing the final model")
    assert lines["two"].endswith(", seeing every iterate and who else was drawn")
    assert "seeing" not in lines["good"]
    plain = FrozenMap({"claims": [{"id": "one"}], "threat_model": {"access": "all-iterates"}})
    assert "seeing" not in brief.render(several(fine(document=plain)), width=200)


def test_the_last_line_has_room_on_a_terminal():
    """Names are cut to how many there are, and numbers stay."""
    wrong = [factory.verdict(f"claim-{number}", verdict="open", expected=False) for number in range(8)]
    said = tally(several(fine("an-audit-with-a-name", verdicts=tuple(wrong))), width=80)
    assert said == "FAILED 8 of 8 claims: an-audit-with-a-name.claim-0 and 7 more"
    long = tally(several(fine("x" * 90, verdicts=tuple(wrong[:1]))), width=80)
    assert long == f"FAILED 1 of 1 claim: {'x' * 45}..."


@given(
    name=st.text("abc-", min_size=1, max_size=70),
    wrong=st.integers(0, 9),
    broken=st.integers(0, 3),
    good=st.integers(0, 3),
)
def test_the_last_line_fits_and_counts_everything(name: str, wrong: int, broken: int, good: int):
    claims = tuple(factory.verdict(f"c{number}", verdict="open", expected=False) for number in range(wrong))
    audits = [fine(name, verdicts=claims), *(deviating(f"{name}{n}") for n in range(broken))]
    audits += [fine(f"{name}-{n}") for n in range(good)]
    said = tally(several(*audits), width=80)
    assert len(said) <= 80
    failed = f"FAILED {wrong} of " if wrong else "FAILED " if broken else f"{1 + good} audit"
    assert said.startswith(failed)


def test_claims_of_one_matrix_are_counted_by_claim():
    def one(noise: float, expected: bool) -> AuditResult:
        verdict = factory.verdict("main", verdict="proved" if expected else "open", expected=expected)
        return fine(f"sweep[{noise}]", cell=FrozenMap({"mechanism.noise": noise}), verdicts=(verdict,))

    several_wrong = several(one(1.0, False), one(2.0, False), one(3.0, True))
    assert tally(several_wrong) == "FAILED 2 of 3 claims: sweep.main in 2 of 3 cells"
    single = several(one(1.0, False), one(2.0, True))
    assert tally(single) == "FAILED 1 of 2 claims: sweep (noise=1).main"


def test_rejected_checks_stand_first_in_the_whole_report_and_are_marked():
    text = terminal.render(several(deviating()), width=120)
    items = [line.strip() for line in text.partition("Conformance\n")[2].splitlines() if line.startswith("    - ")]
    assert items[0].startswith("- REJECTED  noise-scale: chi-square, p = 0")
    assert items[1].startswith("- steps") or items[1].startswith("- REJECTED  clipping")
    assert [line for line in items if "REJECTED" in line] == items[: sum("REJECTED" in line for line in items)]
    assert "REJECTED" not in terminal.render(several(fine()), width=120)


def test_a_declared_number_that_was_computed_is_rounded():
    rate = dataclasses.replace(check("sampling", 0.0), declared=0.05043678918740729, measured=0.19)
    text = brief.render(several(dataclasses.replace(deviating(), checks=(rate,))), width=120)
    assert "declared 0.05044, measured 0.19" in text
