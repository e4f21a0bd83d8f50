"""The terminal report, brief and whole: golden at 80 columns, and properties at each width."""

import dataclasses
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from support import audits
from support import results as factory

from dpspec.contract import Check, FrozenMap
from dpspec.contract.results import AuditResult, Conformance
from dpspec.reporters import ci, deployments_registry, markdown, statement
from dpspec.reporters.terminal import render, render_brief
from dpspec.testing.reporter import sample_result

GOLDEN = Path(__file__).parent / "golden"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(("name", "internal"), [("report-80", False), ("report-80-internal", True)])
def test_golden(result, name, internal):
    assert render(result, internal=internal) == (GOLDEN / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("status", ["deviates", "checks-missing"])
def test_missing_checks_are_named_beside_rejected_ones(status: str) -> None:
    reason = "A check that the plan promised was not made: sampling (reported)."
    conformance = factory.conformance(status, expected=False, reason=reason)
    audit = dataclasses.replace(deviating(), conformance=conformance, promised=(check("sampling"),))
    text = " ".join(render_brief(factory.result(audit)).split())
    assert "- noise-scale: chi-square, p = 0" in text
    assert reason in text


@pytest.mark.parametrize("width", [40, 120])
def test_nothing_is_cut_and_no_line_is_too_long(result, width):
    text, brief = render(result, width=width), render_brief(result, width=width, internal=True)
    command = "    dpspec run "  # one line, which can be copied
    lines = [line for line in f"{text}\n{brief}".split("\n") if not line.startswith(command)]
    assert all(cell_len(line) <= width and line == line.rstrip() for line in lines)
    squeezed = re.sub(r"\s", "", text)
    for verdict in result.audits[0].verdicts[:4]:
        assert re.sub(r"\s", "", f"{verdict.claim}: {verdict.text}") in squeezed
    assert not set("…\x1b\u202e") & set(text + brief)


def test_color_changes_nothing_but_color(result):
    colored = render(result, color=True)
    assert ANSI.search(colored)
    assert ANSI.sub("", colored) == render(result)


def test_a_command_can_be_copied(result):
    environment = FrozenMap({"command": ["dpspec", "run", *(f"a b {n}.yaml" for n in range(9))]})
    lines = render(dataclasses.replace(result, environment=environment)).split("\n")
    assert "    dpspec run " + " ".join(f"'a b {n}.yaml'" for n in range(9)) in lines


def _with_verdicts(audit, name, **changes):
    broken = dataclasses.replace(audit.verdicts[-1], claim="family", text="", **changes)
    deviates = Conformance(status="deviates", expect="deviates", expected=True, reason="no noise")
    return dataclasses.replace(audit, name=name, verdicts=(broken,), conformance=deviates)


def test_an_alarm_is_explained_once(result):
    audits = tuple(_with_verdicts(result.audits[0], name, expected=True) for name in ("one", "two"))
    text = render(dataclasses.replace(result, audits=audits))
    assert text.startswith("Both privacy claims are contradicted by an attack: theory, code or attack is")
    assert "".join(f"!! CONTRADICTED: {name} / family, as expected\n" for name in ("one", "two")) in text
    assert text.count("resolve this before you use any result") == 1
    assert "   The executed run deviates from its declaration, which can explain it; see" in text
    assert "which can explain it" not in render(result)


def test_a_bound_is_listed_once() -> None:
    """A bound for one direction is omitted if the same bound holds in both directions, and not otherwise."""
    upper = factory.audit().findings[0]
    findings = tuple(
        dataclasses.replace(upper, value=value, scope=dataclasses.replace(upper.scope, direction=direction))
        for direction, value in (("add", 2.0), ("both", 3.0), ("remove", 3.0))
    )
    result = factory.result(factory.audit(findings=findings, verdicts=()))
    for text in (render(result), markdown.render(result)):
        findings = text.partition("Findings")[2] or text.partition("Numbers and tests")[2]
        assert [findings.count(part) for part in ("epsilon <= 2", "epsilon <= 3", "direction: add")] == [1, 1, 1]
        assert "direction: remove" not in text


#: Twice as unlikely as what is rejected.
LOW = 5e-7


def check(name: str, p_value: float = 0.5, detectable: float = 0.1) -> Check:
    return audits.check(p_value, name, detectable=detectable, measured=0.1)


def fine(name: str = "app", **changes: object) -> AuditResult:
    values = {
        "name": name,
        "verdicts": (factory.verdict("one"), factory.verdict("two", verdict="refuted", expect=("refuted",))),
        "conformance": factory.conformance("no-deviation-found"),
        "checks": (check("steps", detectable=0.0), check("noise-scale", detectable=0.005), check("update")),
        "notes": (),
        **changes,
    }
    return factory.audit(**values)


def deviating(name: str = "app") -> AuditResult:
    return fine(
        name,
        conformance=factory.conformance(expected=False),
        checks=(check("steps", detectable=0.0), check("clipping", LOW), check("noise-scale", 0.0)),
    )


def test_what_is_as_expected_has_a_line_each():
    text = render_brief(factory.result(fine()), width=200)
    rows = [line for line in text.splitlines() if re.match("  [A-Z]", line)]
    assert [row.split("  ")[1] for row in rows] == ["PROVED", "REFUTED", "NO DEVIATION FOUND"]
    assert ", as expected; " in rows[1]
    assert "as expected" not in rows[0]
    assert rows[2].endswith("3 checks; detection limits from 0.5% (noise-scale) to 10% (update) of the declared value")
    assert "Not as expected" not in text


def test_the_largest_detection_limit_is_of_all_checks_of_a_name():
    checks = (check("noise-scale", detectable=0.005), check("noise-scale", detectable=1.2), check("update"))
    text = render_brief(factory.result(fine(checks=checks)), width=200)
    assert "3 checks; detection limits from 0.5% (noise-scale) to 120% (noise-scale) of the declared value" in text


def test_what_is_not_as_expected_is_last_and_in_full():
    wrong = factory.verdict("wrong", verdict="open", expected=False, reason="Not proved: no bound.")
    text = render_brief(factory.result(fine("good"), fine("app", verdicts=(wrong, factory.verdict("right")))))
    above, _, below = text.partition("Not as expected: app\n")
    assert above.splitlines()[0] == "The claim app.wrong is not proved: claimed epsilon 3, at most 2.5 (proved"
    assert above.count("wrong") == 1
    assert "right" in above
    assert "NOT AS EXPECTED (expected proved)" in below
    assert "Not proved: no bound." in below


def test_a_deviation_shows_the_checks_that_speak_against_it_worst_first():
    text = render_brief(factory.result(deviating()), width=120)
    below = text.partition("Not as expected\n")[2]
    assert below.index("noise-scale: chi-square, p = 0,") < below.index("clipping: chi-square, p = 5e-7")
    assert "- 1 other check with p above 1e-6" in below
    assert "NO DEVIATION" not in text


def test_a_claim_that_holds_of_a_weaker_adversary_says_so_on_its_line():
    """A proof about the final model alone must not read like one about all of training."""
    claims = [{"id": "one", "access": "final-model"}, {"id": "two"}, {"id": "good", "kind": "metric"}]
    document = FrozenMap({"claims": claims, "threat_model": {"access": "transcript"}})
    verdicts = (factory.verdict("one"), factory.verdict("two"), factory.verdict("good", kind="metric"))
    text = render_brief(factory.result(fine(document=document, verdicts=verdicts)), width=200)
    lines = {line.split()[1].rstrip(":"): line for line in text.splitlines() if line.startswith("  PROVED")}
    assert ": epsilon <= 3 at delta = 1e-06, seeing the final model; " in lines["one"]
    assert ", seeing every iterate and the other drawn records; " in lines["two"]
    assert "seeing" not in lines["good"]
    plain = FrozenMap({"claims": [{"id": "one"}], "threat_model": {"access": "all-iterates"}})
    assert "seeing" not in render_brief(factory.result(fine(document=plain)), width=200)


def test_a_claim_with_a_large_delta_is_named():
    result = sample_result()
    assert "1000 records" not in render_brief(result)
    (audit,) = result.audits
    large = [{**claim, "delta": 1e-3} for claim in audit.document["claims"]]
    changed = dataclasses.replace(audit, document=FrozenMap({**audit.document, "claims": large}))
    for form in (
        render_brief,
        render,
        ci.render_github,
        ci.render_junit,
        ci.render_sarif,
        statement.render,
        deployments_registry.render,
    ):
        text = " ".join(form(dataclasses.replace(result, audits=(changed,))).split())
        assert re.search(r"delta = 0\.001 (of claim \w+ of [\w-]+ )?is not below 1 (over the|/) 1000 records", text)
