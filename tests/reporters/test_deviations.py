"""A run that deviates: the cause in the first line, and what to do, on the page and in the terminal."""

import pytest
from support import audits
from support import results as factory

from dpspec.contract import Check
from dpspec.contract.executed import ExecutedSection, SectionGroup
from dpspec.contract.findings import Channel
from dpspec.contract.results import AuditResult
from dpspec.reporters import deviations, page, terminal
from dpspec.reporters.deviations import next_steps
from dpspec.reporters.summary import answer
from dpspec.stats.conformance.table import TABLE


def check(assumption: str, p_value: float = 0.0, measured: float | None = 0.1017) -> Check:
    return audits.check(p_value, assumption, measured=measured, detectable=None)


def deviating(*checks: Check, name: str = "app", **changes: object) -> AuditResult:
    outcome = {"conformance": factory.conformance("deviates", expected=False), "checks": checks, **changes}
    return factory.audit(name, **outcome)


def test_the_answer_names_the_worst_check_in_words() -> None:
    audit = deviating(check("update", 1e-7), check("noise-scale"), check("steps", 0.5))
    cause = "deviates from its declaration: the scale of the noise (noise-scale), 0.1 measured, 1 declared"
    assert answer(factory.result(audit)).headline == f"The executed run {cause}"
    assert answer(factory.result(factory.audit("fine"), audit)).headline == f"The executed run of app {cause}"
    channels = [
        Channel(name="noise", status="tested", text=""),
        Channel(name="sensitivity", status="violated", text=""),
        Channel(name="sampling", status="violated", text=""),
    ]
    facts = ("Adam moved the model: look for hooks, a second optimizer, or a callback. Remove it.",)
    recording = ExecutedSection(faults=facts, groups=(SectionGroup(title="Channels", rows=tuple(channels)),))
    recorded = factory.result(deviating(check("noise-scale"), recording=recording))
    declared = "The executed run deviates from its declaration"
    assert answer(recorded).headline == f"{declared}: sensitivity and sampling"
    screen = page.render(recorded).split('<section id="claims"')[0]
    assert screen.count(facts[0]) == 1  # below, as the next step
    both = factory.result(audit, deviating(check("update"), name="b"))
    assert answer(both).headline == "The executed run deviates from its declaration: app and b"


@pytest.mark.parametrize("render", [page.render, terminal.render_brief])
def test_reports_say_what_to_fix_for_each_assumption(render) -> None:
    audit = deviating(
        check("noise-scale"), check("noise-scale"), check("other-gap", measured=None), check("steps", 0.5)
    )
    text = " ".join(render(factory.result(audit, factory.audit("fine"))).split())
    assert text.count("before you divide by the batch size") == 1
    assert "Other gap (other-gap), measured: chi-square: correct the training, or declare the executed one." in text
    assert "number of steps" not in text


def test_other_failures_of_conformance_have_a_step_too() -> None:
    missing = factory.conformance("checks-missing", expected=False, reason="A check was not made.")
    assert next(next_steps(factory.audit(conformance=missing))).startswith("A check was not made. Let the backend")
    intact = factory.conformance("no-deviation-found", expected=False)
    assert "dpspec plan shows the limits" in next(next_steps(factory.audit(conformance=intact)))
    assert list(next_steps(factory.audit())) == []
    recorded = ExecutedSection()
    assert list(next_steps(deviating(check("noise-scale"), recording=recorded))) == []


def test_every_check_of_core_has_words() -> None:
    assert {row.assumption for row in TABLE} == set(deviations._ASSUMPTIONS)
