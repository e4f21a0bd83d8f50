"""Every kind of outcome in every format: passed or failed, the numbers and the names agree.

The outcomes are made of values, so nothing is trained. ``EXPECTED`` states each one by hand, beside no code of dpspec.
"""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from support import results as factory
from support.schemas import sarif_errors

from dpspec.contract import Finding, FrozenMap, Scope
from dpspec.contract.executed import ExecutedSection, FiredRule
from dpspec.contract.results import AuditResult, Regression, Result, Unjudged
from dpspec.integrations import trackers
from dpspec.integrations.pytest_plugin import _MarkedSpecs
from dpspec.reporters import ci, data_files, deployments_registry, markdown, page, statement, terminal
from dpspec.reporters.summary import answer
from dpspec.results import codec

SEED = FiredRule(
    name="guessable-seed", text="torch.manual_seed(42) is the state.", why="Noise can be recomputed.", fix="Remove it."
)
SCALED = FiredRule(
    name="standardized-features", text="Columns end at 0 and 1.", why="Constants leak.", fix="Use public constants."
)
ACCEPTED = dataclasses.replace(SCALED, accepted="pixels have a public range")


@dataclass(frozen=True)
class Expected:
    """What every format must say of an outcome.

    Attributes:
        result: The outcome.
        code: The exit code.
        tone: The color of the page.
        failed: The claims, audits and rules that fail, by the name that the formats print.
        waiting: Claims that missing trials may decide, and audits that lack trials.
        accepted: The accepted cautions.
        headline: A part of the headline.
        never: Words that no report for people may print.
    """

    result: Result
    code: int
    tone: str
    failed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    headline: str = ""
    never: tuple[str, ...] = ()


CONFORMS = factory.conformance("no-deviation-found")
CLAIM = {"id": "one", "kind": "approx-dp", "epsilon": 3.0, "delta": 1e-6, "group_size": 1}


def audit(name: str = "demo", *claims: Mapping[str, Any], **changes: Any) -> AuditResult:
    threat = {"adjacency": "add-remove", "access": "all-iterates", "group_size": [1]}
    document = FrozenMap(
        {"dpspec": 1, "name": name.partition("[")[0], "claims": list(claims) or [CLAIM], "threat_model": threat}
    )
    return factory.audit(name, **{"document": document, "conformance": CONFORMS, **changes})


def recorded(*rules: FiredRule, **changes: Any) -> AuditResult:
    section = ExecutedSection(ran="an MLP", rules=rules, assumes=("one-record", "honest-script"))
    document = FrozenMap(
        {
            "dpspec": 1,
            "name": "run",
            "mechanism": {"kind": "recorded", "delta": 1e-6},
            "training": {"backend": "recorded", "run": "run"},
            "threat_model": {"adjacency": "zero-out", "group_size": [1]},
            "claims": [CLAIM],
        }
    )
    values = {"recording": section, "document": document, "trials": (), "planned_trials": 0, "source": "", **changes}
    return audit("run", **values)


def open_verdict(claim: str = "one", **changes: Any) -> Any:
    return factory.verdict(claim, **{"verdict": "open", "expected": False, "lower": None, "upper": 3.2, **changes})


def refuted(claim: str = "one", *, expected: bool, **changes: Any) -> Any:
    expect = ("refuted",) if expected else ("proved",)
    return factory.verdict(claim, verdict="refuted", expect=expect, expected=expected, **changes)


CONTROL = {"id": "low", "kind": "approx-dp", "epsilon": 0.5, "delta": 1e-6, "control": True}
DEVIATES = factory.conformance("deviates", expected=False, reason="A tenth of the noise.")
UNTESTED = factory.conformance("not-run", reason="No check was made.")


def scoped(data: str, record: str = "all") -> tuple[Finding, ...]:
    first, *rest = factory.audit().findings
    return (dataclasses.replace(first, scope=Scope(data=data, record=record)), *rest)


def cell(noise: float, verdict: Any) -> AuditResult:
    return audit(f"sweep[{noise}]", cell=FrozenMap({"mechanism.noise": noise}), verdicts=(verdict,))


FAMILY = {**CLAIM, "id": "family", "epsilon": 40.0, "group_size": 8}

EXPECTED = {
    "sound": Expected(factory.result(audit()), 0, "good", headline="The privacy claim is proved"),
    "caution open": Expected(
        factory.result(recorded(SEED, SCALED)),
        1,
        "bad",
        failed=("guessable-seed", "standardized-features"),
        headline="2 open cautions (guessable-seed and standardized-features)",
    ),
    "caution accepted": Expected(
        factory.result(recorded(ACCEPTED)),
        0,
        "good",
        accepted=("standardized-features",),
        headline="The privacy claim is proved under 2 assumptions, accepting standardized-features",
    ),
    "one caution open, one accepted": Expected(
        factory.result(recorded(SEED, ACCEPTED)),
        1,
        "bad",
        failed=("guessable-seed",),
        accepted=("standardized-features",),
        headline="1 open caution (guessable-seed)",
    ),
    "recorded, not proved, with a caution": Expected(
        factory.result(recorded(SEED, verdicts=(open_verdict(),))),
        1,
        "bad",
        failed=("one", "guessable-seed"),
        headline="with 1 open caution (guessable-seed)",
    ),
    "deviating": Expected(
        factory.result(audit(conformance=DEVIATES)),
        1,
        "bad",
        failed=("demo",),
        headline="The executed run deviates from its declaration",
    ),
    "recorded, deviating": Expected(
        factory.result(recorded(conformance=DEVIATES, verdicts=(open_verdict(),))),
        1,
        "bad",
        failed=("run", "one"),
        headline="The executed run deviates from its declaration",
    ),
    "deviating on purpose": Expected(
        factory.result(audit(conformance=factory.conformance("deviates"))),
        0,
        "open",
        headline="proved for the declared mechanism only",
    ),
    "refuted as expected": Expected(
        factory.result(audit(verdicts=(refuted(expected=True),))),
        0,
        "open",
        headline="The privacy claim is refuted as expected",
        never=("negative control", "(a control"),
    ),
    "refuted, not as expected": Expected(
        factory.result(audit(verdicts=(refuted(expected=False, lower=4.2, upper=4.3),))),
        1,
        "bad",
        failed=("one",),
        headline="The claim is not met",
    ),
    "control refuted": Expected(
        factory.result(
            audit("demo", CLAIM, CONTROL, verdicts=(factory.verdict(), refuted("low", expected=True, claimed=0.5)))
        ),
        0,
        "good",
        headline="The privacy claim is proved",
    ),
    "control not refuted": Expected(
        factory.result(
            audit("demo", CLAIM, CONTROL, verdicts=(factory.verdict(), open_verdict("low", expect=("refuted",))))
        ),
        1,
        "bad",
        failed=("low",),
        headline="The control low was not refuted",
    ),
    "control contradicted": Expected(
        factory.result(
            audit(
                "demo",
                CLAIM,
                CONTROL,
                verdicts=(factory.verdict(), refuted("low", expected=True, claimed=0.5)),
                conformance=factory.conformance("deviates"),
            )
        ),
        0,
        "open",
    ),
    "contradicted": Expected(
        factory.result(audit(verdicts=(factory.verdict(verdict="contradicted", expected=False, lower=4.0),))),
        1,
        "bad",
        failed=("one",),
        headline="An attack contradicts a proof",
    ),
    "incomplete before training": Expected(
        factory.result(
            audit(
                "demo",
                CLAIM,
                CONTROL,
                verdicts=(factory.verdict(), open_verdict("low", expect=("refuted",))),
                trials=(),
                planned_trials=5,
                conformance=UNTESTED,
                checks=(),
            )
        ),
        6,
        "open",
        waiting=("low", "demo"),
        headline="Not finished: 5 of 5 trials are missing",
        never=("does not detect", "was not tested"),
    ),
    "incomplete after training": Expected(
        factory.result(audit(planned_trials=3)),
        6,
        "open",
        waiting=("demo",),
        headline="Not finished: 2 of 3 trials are missing",
    ),
    "incomplete, and already refuted": Expected(
        factory.result(audit(verdicts=(refuted(expected=False, lower=4.2, upper=4.3),), planned_trials=3)),
        6,
        "bad",
        failed=("one",),
        waiting=("demo",),
        headline="not finished: 2 of 3 trials are missing",
    ),
    "missing checks": Expected(
        factory.result(audit(conformance=factory.conformance("checks-missing", expected=False))),
        1,
        "bad",
        failed=("demo",),
        headline="Planned checks of the executed run are missing",
    ),
    "several cells": Expected(
        factory.result(cell(1.0, open_verdict()), cell(2.0, open_verdict()), cell(3.0, factory.verdict())),
        1,
        "bad",
        failed=("one", "one"),
        headline="2 of 3 claims failed: one in 2 of 3 cells",
    ),
    "best of cells": Expected(
        factory.result(
            audit("best", {**CLAIM, "over": "matrix"}, trials=(), planned_trials=0, conformance=UNTESTED, checks=())
        ),
        0,
        "good",
        headline="The privacy claim is proved",
    ),
    "recorded, nothing claimed": Expected(
        factory.result(recorded(verdicts=(), findings=factory.audit().findings[:1])),
        5,
        "open",
        headline="Nothing is claimed",
    ),
    "composition": Expected(
        factory.result(audit(trials=(), planned_trials=0, conformance=UNTESTED, checks=(), verdicts=(open_verdict(),))),
        1,
        "bad",
        failed=("one",),
        headline="The claim is not proved",
    ),
    "per-instance": Expected(
        factory.result(
            audit("demo", {**CLAIM, "kind": "per-instance-dp", "record": 3}, findings=scoped("this", "record 3"))
        ),
        0,
        "open",
        headline="proved for this dataset and its neighbors only",
    ),
    "preprocessing, declared collection": Expected(
        factory.result(audit("demo", {**CLAIM, "over": "collection"}, findings=scoped("collection"))),
        0,
        "open",
        headline="proved for datasets of the declared collection only",
    ),
    "a spec with errors beside a sound one": Expected(
        factory.result(audit(), unjudged=(Unjudged(file="bad.yaml", line=8, message="steps must be at least 1"),)),
        3,
        "bad",
        failed=("bad.yaml",),
        headline="1 spec has errors and was not judged: bad.yaml. The privacy claim is proved",
    ),
    "delta at or above one over the records": Expected(
        factory.result(audit("demo", {**CLAIM, "delta": 0.1})),
        1,
        "bad",
        failed=("large-delta",),
        headline="1 open caution (large-delta)",
    ),
    "large delta accepted": Expected(
        factory.result(audit("demo", {**CLAIM, "delta": 0.1, "accept": {"large-delta": "a teaching example"}})),
        0,
        "good",
        accepted=("large-delta",),
        headline="The privacy claim is proved, accepting large-delta",
    ),
    "claims of several group sizes": Expected(
        factory.result(audit("demo", CLAIM, FAMILY, verdicts=(factory.verdict(), open_verdict("family")))),
        1,
        "bad",
        failed=("family",),
        headline="The claim family is not proved",
    ),
}


@dataclass(frozen=True)
class Said:
    """What one format says; None for what it has no place for."""

    passed: bool | None = None
    code: int | None = None
    failed: tuple[str, ...] | None = None
    waiting: tuple[str, ...] | None = None
    accepted: tuple[str, ...] | None = None
    text: str = field(default="", repr=False)


def sorted_names(names: Any) -> tuple[str, ...]:
    return tuple(sorted(names))


def junit(result: Result) -> Said:
    root = ET.fromstring(ci.render_junit(result))
    failed, waiting, accepted, codes = [], [], [], set()
    for suite in root.findall("testsuite"):
        codes |= {int(item.get("value", "")) for item in suite.iter("property") if "exit_code" in item.get("name", "")}
        for case in suite.findall("testcase"):
            name = case.get("name", "")
            if suite.get("name") == "specs":
                failed.append(name)
                continue
            name = {"conformance": suite.get("name", ""), "trials": suite.get("name", "")}.get(name, name)
            if case.find("failure") is not None:
                failed.append(name.removeprefix("caution "))
            skipped = case.find("skipped") is not None and case.get("name") != "conformance"
            if case.find("error") is not None or skipped:
                waiting.append(name)
            if name.startswith("accepted caution "):
                accepted.append(name.removeprefix("accepted caution "))
        assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure"))
    (code,) = codes
    return Said(not failed and not waiting, code, sorted_names(failed), sorted_names(waiting), sorted_names(accepted))


def sarif(result: Result) -> Said:
    document = json.loads(ci.render_sarif(result))
    assert sarif_errors(document) == []
    (run,) = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    failed, waiting, accepted = [], [], []
    for item in run["results"]:
        assert rules[item["ruleIndex"]] == item["ruleId"]
        if item["ruleId"] == "dpspec/invalid-spec":
            failed.append(item["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])
            continue
        rule, subject = item["ruleId"].removeprefix("dpspec/"), item["message"]["text"].partition(":")[0]
        audit_name, comma, claim = subject.partition(", claim ")
        cautions = (SEED.name, SCALED.name, "large-delta")
        name = rule if rule in cautions else claim if comma else audit_name
        into = accepted if item.get("suppressions") else failed if item["level"] == "error" else waiting
        into.append(name)
    code = run["invocations"][0]["exitCode"]
    return Said(not failed and not waiting, code, sorted_names(failed), sorted_names(waiting), sorted_names(accepted))


def spreadsheet(result: Result) -> Said:
    rows = list(csv.DictReader(io.StringIO(data_files.render_csv(result))))
    failed, waiting, accepted = [], [], []
    for row in rows:
        name = row["claim"] or {"caution": row["verdict"], "spec": row["file"]}.get(row["kind"], row["audit"])
        if row["kind"] == "caution" and row["as_expected"] == "yes":
            accepted.append(name)
        elif row["as_expected"] == "no":
            late = row["kind"] == "trials" or "missing" in row["reason"] or (row["verdict"] == "open" and _late(result))
            (waiting if late and row["kind"] in ("trials", "approx-dp") else failed).append(name)
    (code,) = {int(row["exit_code"]) for row in rows} or {5}
    return Said(not failed and not waiting, code, sorted_names(failed), sorted_names(waiting), sorted_names(accepted))


def _late(result: Result) -> bool:
    return not all(len(one.trials) == one.planned_trials for one in result.audits)


def document(result: Result) -> Said:
    data = json.loads(data_files.render_json(result))
    found = [(item["name"] or item["audit"], item["status"], item["kind"]) for item in data["problems"]]
    late = [name for name, status, kind in found if kind == "trials" or (status == "open" and _late(result))]
    failed = [name for name, status, kind in found if not (kind == "trials" or (status == "open" and _late(result)))]
    accepted = [item["name"] for item in data["accepted"]]
    assert codec.load(data_files.render_json(result)).exit_code == data["exit_code"]
    return Said(data["passed"], data["exit_code"], sorted_names(failed), sorted_names(late), sorted_names(accepted))


def github(result: Result) -> Said:
    lines = ci.render_github(result).splitlines()
    (code,) = (int(found) for found in re.findall(r"exit code (\d)", lines[-1]))
    count = {kind: sum(line.startswith(f"::{kind} ") for line in lines[:-1]) for kind in ("error", "warning", "notice")}
    text = "\n".join(lines)
    return Said(
        lines[-1].startswith("::notice"),
        code,
        ("?",) * count["error"],
        ("?",) * count["warning"],
        ("?",) * count["notice"],
        text,
    )


def tracker(result: Result) -> Said:
    verdict, texts, metrics = trackers._summary(result)
    return Said(verdict == "passed", int(metrics["dp/exit_code"]), text="\n".join([verdict, *texts, *texts.values()]))


def pytest_failures(result: Result) -> Said:
    """The pytest plugin fails the tests of an audit's claims."""
    specs = _MarkedSpecs([], {})
    specs._result = result
    text = "\n".join(
        specs.failure_of(number, claim)
        for number, one in enumerate(result.audits)
        for claim in [verdict.claim for verdict in one.verdicts] or [""]
    )
    return Said(not text.strip(), text=f"{text}\n{answer(result).headline}")


def people(render: Callable[[Result], str]) -> Callable[[Result], Said]:
    """A report for people: its words, and its exit code if it states one."""

    def said(result: Result) -> Said:
        text = re.sub(r"(?s)<(style|script).*?</\1>", " ", render(result))
        text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).replace("\\", "").split())
        codes = re.findall(r"exit code (\d)\)", text)
        return Said(code=int(codes[0]) if codes else None, text=text)

    return said


def statement_json(result: Result) -> Said:
    statements = json.loads(statement.render_json(result))["statements"]
    names = {
        state: sorted_names(c["name"] for s in statements for c in s["cautions"] if bool(c["accepted"]) == bool(state))
        for state in (0, 1)
    }
    alone = len(statements) == 1 and not result.unjudged
    return Said(
        passed=statements[0]["passed"] if alone else None,
        code=statements[0]["exit_code"] if alone else None,
        accepted=names[1],
        text=" ".join(s["headline"] for s in statements),
    )


def registry(result: Result) -> Said:
    documents = list(yaml.safe_load_all(deployments_registry.render(result)))
    return Said(text=json.dumps(documents).replace("\\", ""))


FORMATS: dict[str, Callable[[Result], Said]] = {
    "junit": junit,
    "sarif": sarif,
    "csv": spreadsheet,
    "json": document,
    "github": github,
    "tracker": tracker,
    "pytest": pytest_failures,
    "html": people(page.render),
    "markdown": people(markdown.render),
    "terminal": people(terminal.render),
    "notebook": people(page.first_screen),
    "repr": people(repr),
    "statement": people(statement.render),
    "statement-json": statement_json,
    "registry": registry,
}

#: Formats that need not name a failed utility claim or audit beyond their headline.
UNNAMED = ("statement", "statement-json", "registry", "notebook")

#: Formats whose first words are the headline.
HEADED = ("html", "markdown", "terminal", "notebook", "repr", "statement", "tracker", "pytest")


def agree(said: Said, expected: Expected) -> None:
    passed = expected.code == 0
    if said.passed is not None and expected.code != 5:  # a failure of no claim has no row
        assert said.passed == passed
    assert said.code in (None, expected.code)
    for part in ("failed", "waiting", "accepted"):
        names, due = getattr(said, part), getattr(expected, part)
        if names is not None and "?" in names:
            assert len(names) == len(due)
        elif names is not None:
            assert names == sorted_names(due)


def every_third(pairs: Iterable[tuple[str, str]]) -> list[Any]:
    """Every kind in five formats and every format with nine kinds; ``--ci`` runs the other pairs."""
    places = [*EXPECTED], [*FORMATS]
    return [
        pytest.param(*pair, marks=[pytest.mark.ci] * bool(sum(map(list.index, places, pair)) % 3)) for pair in pairs
    ]


@pytest.mark.parametrize(("kind", "name"), every_third(itertools.product(EXPECTED, FORMATS)))
def test_every_format_says_the_same(kind: str, name: str) -> None:
    expected = EXPECTED[kind]
    if name == "pytest" and expected.result.unjudged:
        return  # pytest refuses such specs when it collects tests
    said = FORMATS[name](expected.result)
    agree(said, expected)
    if name in HEADED and len(expected.result.audits) == 1:
        assert expected.headline in said.text
    for word in (*expected.failed, *expected.accepted):
        assert not said.text or word in said.text or name in UNNAMED
    if said.text:
        assert not any(word in said.text for word in expected.never)


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_answer_is_the_outcome(kind: str) -> None:
    expected, outcome = EXPECTED[kind], answer(EXPECTED[kind].result)
    assert (int(outcome.exit_code), outcome.tone) == (expected.code, expected.tone)
    assert expected.headline in outcome.headline
    assert outcome.passed == (expected.code == 0)
    assert (outcome.tone == "bad") == bool(expected.failed)
    for name in expected.accepted:
        assert name in outcome.headline
        assert name in outcome.tally


@pytest.mark.parametrize("kind", [kind for kind, expected in EXPECTED.items() if expected.failed])
def test_proved_never_heads_a_failure(kind: str) -> None:
    result = EXPECTED[kind].result
    for text in (terminal.render_brief(result), markdown.render(result), answer(result).headline):
        first = next(line for line in text.splitlines() if line.strip(" *#") and line != "# dpspec")
        assert not re.match(r"\W*(PROVED(?!, but)|The privacy claim is proved)", first)


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_deviating_run_has_no_checked_mechanism(kind: str) -> None:
    text = statement.render(EXPECTED[kind].result)
    bad = "deviat" in kind or "caution open" in kind or kind == "control contradicted"
    assert not (bad and "| Mechanism | **checked**" in text)


def test_a_forged_exit_code_is_noticed(tmp_path: Any) -> None:
    from dpspec.reporters.read_results import outcome_differs

    path = tmp_path / "result.json"
    text = data_files.render_json(EXPECTED["deviating"].result)
    path.write_text(text)
    assert outcome_differs(path, codec.load(text)) == ""
    path.write_text(text.replace('"passed":false', '"passed":true'))
    assert outcome_differs(path, codec.load(path.read_text())).startswith("passed: True")


def test_an_untried_audit_is_not_said_to_have_failed_or_passed() -> None:
    outcome = answer(EXPECTED["incomplete before training"].result)
    assert "1 negative control not yet tested: trials are missing." in outcome.detail
    assert "is not yet tested" in outcome.detail
    text = page.render(EXPECTED["incomplete before training"].result)
    assert "Risk for one person: " not in text


REGRESSION = Regression(audit="demo", claim="one", name="upper")


@pytest.mark.parametrize("name", ["sound", "refuted"])
@pytest.mark.parametrize("regressions", [(), (REGRESSION,)])
def test_compared_with_an_earlier_result_regressions_alone_fail(name: str, regressions: tuple[Regression, ...]) -> None:
    """Each format fails if and only if the command does, also where claims are not as expected, as before."""
    audited = audit(verdicts=(refuted(expected=False),)) if name == "refuted" else audit()
    result = dataclasses.replace(factory.result(audited), regressions=regressions)
    assert result.exit_code == len(regressions)
    assert len(ET.fromstring(ci.render_junit(result)).findall(".//failure")) == len(regressions)
    run = json.loads(ci.render_sarif(result))["runs"][0]
    assert [r["ruleId"] for r in run["results"] if r["level"] == "error"] == ["dpspec/regression"] * len(regressions)
    assert run["invocations"][0]["exitCode"] == len(regressions)
    assert ci.render_github(result).count("::error ") == 2 * len(regressions)  # the regression, and the outcome
    assert json.loads(codec.dump(result))["passed"] is (not regressions)
    assert codec.load(codec.dump(result)) == result
    assert ("FAILED" in answer(result).tally) is bool(regressions)
