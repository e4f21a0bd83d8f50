"""Words of all reports: the label of a proof where the executed run deviates, ranked tests, and users as units."""

import dataclasses
import re
from typing import Any

import pytest
import yaml
from support import audits
from support import results as factory
from support.specs import DECLARED

import dpspec
from dpspec.contract import FrozenMap, Scope
from dpspec.contract.results import Conformance, Result
from dpspec.registry.loader import load_catalog, resolve
from dpspec.reporters import deployments_registry, terminal, words
from dpspec.reporters.risk import rates
from dpspec.reporters.summary import details

LABEL = "proved as declared, run deviates"


def deviating(result: Result, *, expected: bool) -> Result:
    (audit,) = result.audits
    conformance = Conformance(status="deviates", expect="deviates", expected=expected, reason="noise-scale is halved")
    return dataclasses.replace(
        result, audits=(dataclasses.replace(audit, verdicts=audit.verdicts[:1], conformance=conformance),)
    )


def rendered(name: str, result: Result) -> str:
    render: Any = terminal.render_brief if name == "brief" else resolve(load_catalog().reporters[name].provider.render)
    return " ".join(str(render(result)).split())


@pytest.mark.parametrize("expected", [True, False])
@pytest.mark.parametrize("name", ["text", "brief", "html", "markdown", "junit", "csv", "statement"])
def test_a_proof_is_labelled_where_the_run_deviates(name: str, expected: bool, result: Result) -> None:
    text = rendered(name, deviating(result, expected=expected))
    assert LABEL in text.lower()


@pytest.mark.parametrize("name", ["github", "sarif"])
def test_formats_of_failures_label_the_proof_too(name: str, result: Result) -> None:
    """Both formats show claims that are not as expected only."""
    (audit,) = deviating(result, expected=False).audits
    verdicts = tuple(dataclasses.replace(one, expect=("refuted",), expected=False) for one in audit.verdicts)
    text = rendered(name, dataclasses.replace(result, audits=(dataclasses.replace(audit, verdicts=verdicts),)))
    assert LABEL in text


def test_the_page_has_no_green_badge_and_no_odds_for_a_deviating_run(result: Result) -> None:
    page = rendered("html", deviating(result, expected=False))
    shown = page[: page.index('<dl class="words">')]  # the legend shows every badge
    assert not re.search(r'class="verdict (proved|supported|no-deviation-found)', shown)
    assert 'class="verdict as-declared' in shown
    assert "guessing gives" not in shown
    (audit,) = result.audits
    curve = dataclasses.replace(audit.findings[0], quantity="mu", value=1.0, lower=None, at=FrozenMap())
    whole = dataclasses.replace(audit, findings=(*audit.findings, curve))
    assert "guessing gives" in rendered("html", dataclasses.replace(result, audits=(whole,)))


def test_no_guarantee_is_registered_for_a_deviating_run(result: Result) -> None:
    assert "privacy_parameters:" in rendered("registry", result)
    assert "privacy_parameters:" not in rendered("registry", deviating(result, expected=False))


@pytest.mark.parametrize("value", [-1.0, float("-inf"), 2.0, float("nan")])
def test_what_is_no_p_value_is_shown_as_rejected(value: float) -> None:
    checks = [audits.check(1.0, "a"), audits.check(value, "b")]
    assert [(check.assumption, bad) for check, bad in words.ranked(checks, 2)] == [("b", True), ("a", False)]


ONE, TWO = "one user (at most 5 records)", "2 users (at most 5 records each)"


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("users")
    (folder / "users.yaml").write_text(DECLARED, encoding="utf-8")
    return dpspec.run(folder / "users.yaml", store=folder / "store")


def test_odds_are_those_of_users(users: Result) -> None:
    one, two = map(str, rates(users.audits[0]))
    assert "of member users (at most" in one
    assert "of groups of 2 member users (at most" in two


def test_scopes_name_what_neighbours_differ_in(users: Result) -> None:
    scopes = {words.scope(finding) for finding in users.audits[0].findings}
    assert all("adding or removing a user (at most 5 records)" in scope for scope in scopes)
    assert all(scope.endswith("any dataset, any user") for scope in scopes)
    replaced = dataclasses.replace(users.audits[0].findings[0], scope=Scope(adjacency="zero-out", unit="household"))
    assert "zero-out (unit: household)" in words.scope(replaced)
    estimate = audits.bound(1.0, bound="estimate", rigor="approximate", scope=Scope(data="this", record=53))
    assert words.scope(estimate).endswith("this dataset, record 53")


def test_a_deployment_record_names_the_unit(users: Result) -> None:
    loss = yaml.safe_load(deployments_registry.render(users))["deployment"]["privacy_loss"]
    assert loss["privacy_unit"] == "user (at most 5 records)"
    assert f"for {ONE}" in loss["privacy_parameters_details"]


@pytest.mark.parametrize("name", ["html", "markdown"])
def test_no_page_speaks_of_single_records(users: Result, name: str) -> None:
    text = rendered(name, users)
    assert ONE in text
    assert TWO in text
    for wrong in (
        "a record was",
        "records were in",
        "single records",
        "groups of 5",
        "groups of 10",
        "adding or removing records",
    ):
        assert wrong not in text, wrong


def test_a_document_that_was_edited_is_read_all_the_same(users: Result) -> None:
    """Results are untrusted: a bound that is no number says nothing."""
    audit = users.audits[0]
    for bound in ("5", True, None, [5]):
        data = FrozenMap({"kind": "declared", "records_per_user": bound})
        edited = dataclasses.replace(audit, document=FrozenMap({**audit.document, "data": data}))
        assert "adding or removing a user, seeing" in dict(details(edited))["Adversary"]


UPPER = audits.bound(2.349, 1e-5)
THEORY = dataclasses.replace(UPPER, value=2.348, bound="lower")
EXECUTED = Scope(pipeline="executed", data="planted")
ATTACK = dataclasses.replace(UPPER, value=0.61, bound="lower", rigor="statistical", scope=EXECUTED)
SHOWN = "attack shows at least 0.61 of at most 2.349 (certified)"
LATER = dataclasses.replace(ATTACK, at=FrozenMap({"delta": 0.1}))
APPROXIMATE = dataclasses.replace(UPPER, rigor="approximate")
OF_DATASET = dataclasses.replace(THEORY, scope=Scope(data="this"))


@pytest.mark.parametrize(
    ("findings", "lower", "upper", "text"),
    [
        ((UPPER, THEORY, ATTACK), 2.348, 2.349, f"{SHOWN}; at least 2.348 on worst-case data"),
        ((UPPER, ATTACK), 0.61, 2.349, SHOWN),
        ((UPPER, THEORY), 2.348, 2.349, "at most 2.349 (certified); at least 2.348 on worst-case data"),
        ((UPPER, OF_DATASET), 2.348, 2.349, "at most 2.349 (certified); at least 2.348 on this dataset"),
        ((UPPER, THEORY, LATER), None, 2.349, "at most 2.349 (certified)"),
        ((UPPER, ATTACK), 0.61, None, "attack shows at least 0.61; no upper bound"),
        (
            (UPPER, ATTACK),
            0.61,
            0.5,
            f"attack shows at least 0.61 of at most 0.5 (certified){words.ATTACK_ABOVE}",
        ),
        (
            (UPPER, THEORY),
            2.348,
            2.3,
            "at most 2.3 (certified); at least 2.348 on worst-case data, a contradiction",
        ),
        ((APPROXIMATE, ATTACK), 0.61, 2.349, "attack shows at least 0.61; about 2.349"),
        ((UPPER, THEORY), None, None, "no bound"),
    ],
)
def test_the_bounds_of_a_claim_in_words(findings, lower, upper, text):
    verdict = factory.verdict(lower=lower, upper=upper)
    assert str(words.bounds(factory.audit(findings=findings), verdict)) == text


def test_a_run_that_deviates_has_the_bound_of_its_attack_only() -> None:
    """Also in results from which the bounds are not removed."""
    audit = factory.audit(findings=(UPPER, THEORY, ATTACK), conformance=factory.conformance("deviates"))
    shown = str(words.bounds(audit, factory.verdict(lower=2.348, upper=2.349)))
    assert shown == "attack shows at least 0.61; no bound applies to this run"


def test_a_metric_has_no_attack() -> None:
    verdict = factory.verdict(kind="metric", lower=0.61, upper=None)
    assert str(words.bounds(factory.audit(findings=(UPPER, ATTACK)), verdict)) == "at least 0.61"
