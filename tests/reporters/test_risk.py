"""Success rates of attackers follow from proved curves and claims, rounded up."""

import dataclasses
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats
from support import results as factory

from dpspec.contract import Finding, FrozenMap
from dpspec.contract.executed import ExecutedSection, FiredRule
from dpspec.contract.results import AuditResult
from dpspec.reporters.page import render
from dpspec.reporters.risk import highest_rate, rates, risk


def audit(name: str = "demo", **changes: object) -> AuditResult:
    return factory.audit(name, **changes)


def _bound(mu: float, access: str = "all-iterates") -> Finding:
    found = dataclasses.replace(factory.audit().findings[0], quantity="mu", value=mu, lower=None, at=FrozenMap())
    return dataclasses.replace(found, scope=dataclasses.replace(found.scope, access=access))


def _shown(audit: AuditResult) -> list[float]:
    (rate,) = rates(audit)
    return [float(text) for text in re.findall(r"at most ([0-9.e-]+)%", str(rate))]


@given(mu=st.floats(0.05, 3.5))
def test_rates_are_those_of_the_whole_curve(mu: float) -> None:
    """Oracle: the power of the best test of a Gaussian shift at level a is Phi(mu + Phi^-1(a))."""
    for shown, level in zip(_shown(audit(findings=(_bound(mu),), series=())), (0.01, 0.1), strict=True):
        true = 100.0 * special.ndtr(mu + special.ndtri(level))
        assert true <= shown <= min(100.0, 1.04 * true)


@given(epsilon=st.floats(0.0, 3.0))
def test_rates_of_pure_dp_are_those_of_randomized_response(epsilon: float) -> None:
    """Oracle: power at rate a is at most min(e^eps a, 1 - e^-eps (1 - a))."""
    pure = dataclasses.replace(_bound(0.0), quantity="epsilon", value=epsilon, at=FrozenMap({"delta": 0.0}))
    for shown, level in zip(_shown(audit(findings=(pure,), series=())), (0.01, 0.1), strict=True):
        true = 100.0 * min(math.exp(epsilon) * level, 1.0 - math.exp(-epsilon) * (1.0 - level))
        assert true * (1.0 - 1e-12) <= shown <= 1.01 * true


@given(mu=st.floats(0.05, 3.0))
def test_right_guesses_of_memberships_follow_from_the_whole_curve(mu: float) -> None:
    """Oracle: for one target of a Gaussian shift the best guess is right with probability Phi(mu / 2)."""
    (rate,) = rates(audit(findings=(_bound(mu),), series=()))
    (mean,) = map(float, re.findall(r"at most ([0-9.]+) on average", rate.of_many()))
    true = 100.0 * special.ndtr(mu / 2)
    assert true <= mean <= 1.002 * true


@given(epsilon=st.floats(0.1, 2.5))
def test_right_guesses_of_pure_dp_are_those_of_randomized_response(epsilon: float) -> None:
    """Oracle: the number of right guesses is binomial with the success probability of randomized response."""
    pure = dataclasses.replace(_bound(0.0), quantity="epsilon", value=epsilon, at=FrozenMap({"delta": 0.0}))
    (rate,) = rates(audit(findings=(pure,), series=()))
    (most,) = map(int, re.findall(r"about more than (\d+) with probability at most 5%", rate.of_many()))
    right = stats.binom(100, special.expit(epsilon))
    assert right.sf(most) <= 0.05 * (1.0 + 1e-6)
    assert right.sf(most - 1) > 0.05 * (1.0 - 1e-6)


def test_a_report_names_right_guesses_about_all_targets() -> None:
    two = dataclasses.replace(_bound(1.0), at=FrozenMap({"group_size": 8}))
    sentences = risk(audit(findings=(_bound(0.5), two), series=()))
    assert sentences[-2].startswith("If fair coins decide which of 100 records are in the data, an attacker who")
    assert sentences[-2].endswith("; without the release 50 and 58.")
    assert sentences[-1].startswith("If fair coins decide which of 100 groups of 8 records are in the data, ")
    replaced = dataclasses.replace(_bound(0.5).scope, adjacency="replace-one", min_records=500)
    of_replaced = risk(audit(findings=(dataclasses.replace(_bound(0.5), scope=replaced),), series=()))
    assert "100 records are in the data, rather than their replacements, an attacker" in of_replaced[-1]


@pytest.mark.parametrize(
    "scope",
    [{"data": "this"}, {"data": "collection"}, {"min_records": 500}, {"neighbours": "same-missing-values"}],
)
def test_bounds_of_some_datasets_bound_no_guesses_about_several_targets(scope: dict[str, object]) -> None:
    """With other targets in the data or not, a dataset is outside the scope of such a bound."""
    bound = dataclasses.replace(_bound(0.5), scope=dataclasses.replace(_bound(0.5).scope, **scope))
    (rate,) = rates(audit(findings=(bound,), series=()))
    assert rate.of_many() == ""


def test_hardly_a_bound_is_not_stated() -> None:
    (rate,) = rates(audit(findings=(_bound(6.0),), series=()))
    assert rate.of_many() == ""


@pytest.mark.parametrize("deltas", [(1e-6,), (1e-6, 1e-5), (0.3,)])
def test_no_rate_follows_from_small_deltas_or_from_one(deltas: tuple[float, ...]) -> None:
    points = [
        dataclasses.replace(_bound(0.0), quantity="epsilon", value=epsilon, at=FrozenMap({"delta": delta}))
        for epsilon, delta in zip((1.44, 1.3), deltas, strict=False)
    ]
    alone = audit(findings=tuple(points), series=())
    assert rates(alone) == ()
    (reason,) = risk(alone)
    assert reason.startswith("Bounds at small deltas alone would overstate an attacker's success, so no rate is stated")
    found = highest_rate([alone, alone], ["one", "two"])
    assert found.rate is None
    assert found.caveats[0].startswith("No attacker's rate follows")


def test_a_run_that_deviates_and_a_contradicted_bound_have_no_rate_to_rely_on() -> None:
    (sentence,) = risk(audit(conformance=factory.conformance()))
    assert sentence.startswith("The executed run deviates from the declared mechanism. No bound applies to it")
    contradicted = (factory.verdict("c", verdict="contradicted", expected=False),)
    broken = audit(findings=(_bound(1.0),), verdicts=contradicted)
    assert risk(broken)[0].endswith("do not rely on them.")
    weak = dataclasses.replace(factory.audit().findings[0], rigor="approximate")
    assert risk(audit(findings=(weak,), series=()))[0].startswith("No proved bound covers every record")


def test_the_risk_of_a_run_with_a_caution_holds_only_if_it_is_resolved() -> None:
    rule = FiredRule(name="guessable-seed", text="seed 0", why="It can be tried.", fix="Use the system's.", accepted="")
    section = ExecutedSection(rules=(rule,))
    tested = factory.conformance("no-deviation-found")
    cautioned = audit(findings=(_bound(0.5),), verdicts=(factory.verdict(),), recording=section, conformance=tested)
    sentence = "This risk holds only if the caution is resolved: guessable-seed. Otherwise it may be far higher."
    assert risk(cautioned)[0] == sentence
    assert highest_rate([cautioned], ["demo"]).caveats == (sentence,)
    assert "Risk for one person, if the cautions are resolved</h" in render(factory.result(cautioned))
    accepted = dataclasses.replace(section, rules=(dataclasses.replace(rule, accepted="The seed is secret."),))
    assert highest_rate([dataclasses.replace(cautioned, recording=accepted)], ["demo"]).condition == ""


def test_a_bound_on_the_final_model_says_so() -> None:
    """Such a bound does not apply to an adversary who sees every iterate."""
    final, every = _bound(0.5, "final-model"), _bound(2.0)
    (rate,) = rates(audit(findings=(final,), series=()))
    assert str(rate).startswith("Seeing the final model: at a 1% false-positive rate")
    both = rates(audit(findings=(final, every), series=()))
    assert sorted(str(one).lower().count("seeing") for one in both) == [1, 1]
    one, other = audit("last", findings=(final,)), audit("every", findings=(every,))
    found = highest_rate([one, other], ["last", "every"])
    declared = "This is the risk of the declared mechanism: no executed run was compared with it."
    assert (found.title, found.caveats, found.condition) == ("every", (declared,), ", if the training is as declared")
    assert found.rate == rates(other)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"conformance": factory.conformance()},
        {"verdicts": (factory.verdict("c", verdict="contradicted", expected=False),)},
    ],
)
def test_audits_without_a_rate_are_not_compared(changes: dict[str, object]) -> None:
    audits = [audit("bad", findings=(_bound(0.1),), **changes), audit("good", findings=(_bound(2.0),))]
    found = highest_rate(audits, ["bad", "good"])
    assert found.title == "good"
    assert found.rate is not None
    assert found.rate.identified == 38  # Phi(2 + Phi^-1(0.01)) = 0.3722, and the proved curve is a little above
    assert "No rate follows for bad, which this risk does not cover." in found.caveats
    assert found.condition.startswith(" in 1 of 2 audits")


@pytest.mark.parametrize(
    ("mu", "identified"), [(0.0, 1), (0.2, 2), (0.5, 4), (1.0, 10), (2.0, 38), (3.0, 76), (6.0, 100)]
)
def test_a_rate_counts_people(mu: float, identified: int) -> None:
    """Oracle: 100 Phi(mu + Phi^-1(0.01)), rounded up."""
    (rate,) = rates(audit(findings=(_bound(mu),), series=()))
    assert abs(identified - math.ceil(100.0 * special.ndtr(mu + special.ndtri(0.01)) - 1e-9)) <= 1
    assert rate.identified == identified
    text = rate.of_hundred()
    assert text.startswith("Of 100 people in the data, with one record each, an attacker who falsely accuses 1 of 100")
    assert (f"at most {identified} on average" in text) == (identified < 100)


def test_larger_groups_are_named_after_the_first() -> None:
    sizes = [dataclasses.replace(_bound(0.5 * size), at=FrozenMap({"group_size": size})) for size in (1, 2, 4, 8)]
    found = highest_rate([audit(findings=tuple(sizes), series=())], ["demo"])
    assert [rate.group_size for rate in found.larger] == [2, 8]
    assert found.larger[1].short.startswith("Groups of 8 members: at most 96 of 100 groups.")


def test_the_risk_of_groups_is_never_called_one_of_a_person() -> None:
    of_groups = dataclasses.replace(_bound(0.5), at=FrozenMap({"group_size": 8}))
    page = render(factory.result(audit(findings=(of_groups,), series=())))
    assert "Risk for a group of 8" in page
    assert "Risk for one person" not in page


def test_of_audits_whose_attackers_identify_all_the_worst_has_the_highest_epsilon() -> None:
    audits = [audit(str(mu), findings=(_bound(mu),), series=()) for mu in (9.0, 30.0, 12.0)]
    found = highest_rate(audits, ["9", "30", "12"])
    assert (found.title, found.rate.identified if found.rate else 0) == ("30", 100)


def test_the_documented_epsilons_are_those_of_a_gaussian_mechanism() -> None:
    """Oracle: the closed form of the Gaussian mechanism's delta, solved for epsilon."""
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "strength.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([0-9.]+) \|$", page, re.MULTILINE)
    assert len(rows) == 5
    for most, epsilon in rows:
        mu = special.ndtri(int(most) / 100) - special.ndtri(0.01)
        for shift, sign in ((0.0, 1.0), (0.1, -1.0)):  # rounded down to a tenth
            e = float(epsilon) + shift
            delta = special.ndtr(mu / 2 - e / mu) - math.exp(e) * special.ndtr(-mu / 2 - e / mu)
            assert sign * (delta - 1e-5) > 0.0


def test_a_second_rate_of_one_audit_keeps_its_scope() -> None:
    """The proof covers a collection of datasets; for any dataset the risk is higher."""
    of_collection = dataclasses.replace(_bound(0.5), scope=dataclasses.replace(_bound(0.5).scope, data="collection"))
    document = FrozenMap({"dpspec": 1, "claims": [{"id": "main", "kind": "gdp", "over": "collection"}]})
    verdict = factory.verdict("main", kind="gdp", upper_finding=0)
    both = audit(findings=(of_collection, _bound(3.0)), series=(), document=document, verdicts=(verdict,))
    screen = render(factory.result(both)).split('<section id="claims"')[0]
    assert "<p>The declared collection of datasets: of 100 people" in screen
    assert "<p>Any dataset, members: at most 76 of 100" in screen
