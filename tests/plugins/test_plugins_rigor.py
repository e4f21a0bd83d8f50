"""Equal numbers have equal rigor in every plugin, methods name the computation, and lower ends may refute."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import scope_oracle as oracle

from dpspec.accounting import Mixture, PrivacyLoss, findings, refinement
from dpspec.accounting.privacy_loss import _cached_answers
from dpspec.contract import Audit, Claim, Finding, FrozenMap
from dpspec.contract.results import Verdict
from dpspec.engine.judging.claim_tests import Concluded
from dpspec.engine.judging.judge import judge
from dpspec_group import GroupAudit
from dpspec_group import theory as group_theory
from dpspec_modelmix import ModelMixAudit
from dpspec_modelmix import findings as modelmix_bounds
from dpspec_per_instance import PerInstanceAudit
from dpspec_rero import ReroAudit, theory
from dpspec_rero import findings as bounds_of_gamma

DPSGD: dict[str, Any] = {
    "noise_multiplier": 1.0,
    "clip_norm": 1.0,
    "sampling": {"scheme": "poisson", "rate": 0.1},
    "steps": 20,
    "baselines": (),
}

#: The same DP-SGD as each plugin declares it; ModelMix's mixing amplifies nothing without a gap.
SAME: dict[str, tuple[Callable[[], Audit], dict[str, Any]]] = {
    "group": (GroupAudit, DPSGD),
    "per-instance": (PerInstanceAudit, {**DPSGD, "orders": (2.0, 8.0, 32.0)}),
    "rero": (ReroAudit, DPSGD),
    "modelmix": (ModelMixAudit, {**DPSGD, "mixing": {"threshold": 0.0}}),
}

#: Where the dominating pair is attained by a real one.
ATTAINED = ("group", "per-instance", "rero")

DELTA = 1e-5


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds_of_gamma, "CURVE", ())
    monkeypatch.setattr(theory, "WIDTH", 1e-4)


def stated(kind: str, claim: Claim | None = None, training: dict[str, Any] | None = None, **more: Any) -> list[Finding]:
    make, mechanism = SAME[kind]
    asked = oracle.claim_of("approx-dp", epsilon=1.0, delta=DELTA) if claim is None else claim
    spec = oracle.spec_of(kind, {**mechanism, **more}, [asked], training)
    return oracle.findings_of(make(), spec, 100)


def accountant(findings: list[Finding], bound: str = "upper") -> list[Finding]:
    return [
        f
        for f in findings
        if (f.quantity, f.bound) == ("epsilon", bound) and "pld/connect-the-dots" in f.method and f.at["delta"] == DELTA
    ]


@pytest.mark.family
@pytest.mark.parametrize("kind", SAME)
def test_the_accountants_number_is_certified_everywhere(kind: str) -> None:
    truth = PrivacyLoss(((Mixture.poisson(1, 0.1, 1.0), 20),)).epsilon(DELTA)
    found = [f for f in accountant(stated(kind)) if f.scope.direction == "both"]
    assert found
    for finding in found:
        assert finding.rigor == "certified"
        assert finding.value == pytest.approx(truth.upper, rel=2e-4)
        assert [a.status for a in finding.assumptions if a.name == "library-accuracy"] == ["not-rejected"]


def test_a_library_that_is_off_proves_nothing_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "find_inaccurate_functions", lambda: ("exp",))
    for kind in SAME:
        for finding in accountant(stated(kind)):
            assert [a.status for a in finding.assumptions if a.name == "library-accuracy"] == ["false"]


#: Three kinds of computation by mechanism, with distinct names.
WAYS = {
    "full batches": ({"sampling": {"scheme": "full"}}, "closed form"),
    "one sampled step": ({"steps": 1}, "exact profile of one step"),
    "many sampled steps": ({}, "pld/connect-the-dots"),
}


@pytest.mark.family
@pytest.mark.parametrize("kind", SAME)
@pytest.mark.parametrize("way", WAYS)
def test_methods_name_what_ran(monkeypatch: pytest.MonkeyPatch, kind: str, way: str) -> None:
    changes, method = WAYS[way]
    _cached_answers.cache_clear()
    modelmix_bounds._plain.cache_clear()
    group_theory._epsilons.cache_clear()
    refined = []
    begin = refinement.GridRefinement.begin
    monkeypatch.setattr(refinement.GridRefinement, "begin", lambda self: refined.append(self) or begin(self))
    found = [f for f in stated(kind, **changes) if f.rigor == "certified" and f.bound != "estimate"]
    names = {m for _, m in WAYS.values()}
    said = {name for f in found for name in names if name in f.method}
    assert said == {method}
    assert bool(refined) == (method == "pld/connect-the-dots")
    assert all(any(name in f.method for name in names) for f in found)


def verdict(kind: str, claim: Claim, **changes: Any) -> Verdict:
    make, mechanism = SAME[kind]
    training = changes.pop("training", None)
    spec = oracle.spec_of(kind, {**mechanism, **changes}, [claim], training)
    findings = tuple(oracle.findings_of(make(), spec, 100))
    return judge([Concluded(spec=spec, findings=findings)])[0].verdicts[0]


def claiming(claim: Claim, **numbers: float) -> Claim:
    return dataclasses.replace(claim, options=FrozenMap({**claim.options, **numbers}))


def claims_below(kind: str, **changes: Any) -> Iterator[tuple[Claim, Finding]]:
    for direction in ("add", "remove", "both"):
        asked = oracle.claim_of("approx-dp", direction, epsilon=1.0, delta=DELTA)
        found = [f for f in accountant(stated(kind, asked, **changes)) if f.scope.direction == direction]
        for finding in found[:1]:
            yield oracle.claim_of("approx-dp", direction, epsilon=0.999 * finding.lower, delta=DELTA), finding


@pytest.mark.family
@pytest.mark.parametrize("kind", ATTAINED)
def test_what_is_attained_refutes_without_a_run(kind: str) -> None:
    below = list(claims_below(kind))
    assert len(below) == 3
    for claim, finding in below:
        found = verdict(kind, claim)
        assert found.verdict == "refuted"
        assert found.lower == finding.lower
        assert found.p_value is None
        fine = claiming(claim, epsilon=finding.value)
        assert verdict(kind, fine).verdict == "proved"
        between = claiming(claim, epsilon=finding.lower)
        assert verdict(kind, between).verdict in ("open", "proved")


def test_mixing_attains_nothing() -> None:
    for claim, _ in claims_below("modelmix"):
        assert verdict("modelmix", claim).verdict == "open"


@pytest.mark.family
@pytest.mark.parametrize("kind", ATTAINED)
def test_it_is_about_all_datasets_and_updates_that_show_every_sum(kind: str) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any] | None, str]] = [
        ({"access": "final-model"}, None, "open"),
        ({"over": "this"}, None, "open"),
        ({"record": 3}, None, "open"),
        ({"neighbours": "same-missing-values"}, None, "open"),
        ({"min_records": 10**6}, None, "refuted"),
        ({}, {"optimizer": {"kind": "adam"}}, "open"),
        ({}, {"optimizer": {"kind": "momentum"}}, "refuted"),
        ({}, {"learning_rate": 5e-324, "schedule": {"kind": "linear"}}, "open"),  # the last rate rounds to 0
    ]
    claim, _ = next(claims_below(kind))
    for narrowed, training, expected in cases:
        assert verdict(kind, dataclasses.replace(claim, **narrowed), training=training).verdict == expected


def test_a_smaller_group_and_a_larger_delta_refute_a_claim() -> None:
    four = oracle.claim_of("approx-dp", group_size=4, epsilon=1.0, delta=DELTA)
    (bound,) = [f for f in accountant(stated("group", four)) if f.scope.direction == "both" and f.at["group_size"] == 4]
    below = claiming(four, epsilon=0.999 * bound.value)
    assert verdict("group", below).verdict == "refuted"
    (lower,) = [f for f in accountant(stated("group", four), "lower") if f.at["group_size"] == 4]
    spec = oracle.spec_of("group", DPSGD, [])
    for changes, expected in (
        ({"group_size": 8}, "refuted"),
        ({"group_size": 3}, "open"),
        ({"options": FrozenMap({**below.options, "delta": 1e-9})}, "refuted"),
        ({"options": FrozenMap({**below.options, "delta": 1e-3})}, "open"),
        ({"direction": "add"}, "open"),
    ):
        asked = dataclasses.replace(spec, claims=(dataclasses.replace(below, **changes),))
        (judged,) = judge([Concluded(spec=asked, findings=(lower,))])
        assert judged.verdicts[0].verdict == expected, changes


def test_fixed_size_batches_speak_of_data_sets_large_enough() -> None:
    """Theorem 3.3 applies to datasets with at least the records outside the group, and is attained there."""
    fixed = {"sampling": {"scheme": "fixed", "batch_size": 10}}
    asked = oracle.claim_of("approx-dp", group_size=4, epsilon=1.0, delta=DELTA)
    uppers = accountant([f for f in stated("group", asked, **fixed) if f.at.get("group_size") == 4])
    both = [f for f in uppers if f.scope.direction == "both"]
    assert {(f.scope.data, f.scope.min_records) for f in both} == {("all", 96), ("this", 0)}
    within = claiming(asked, epsilon=both[0].value)
    assert verdict("group", within, **fixed).verdict == "supported"
    assert verdict("group", dataclasses.replace(within, over="this"), **fixed).verdict == "proved"
    for least, expected in ((95, "supported"), (96, "proved"), (100, "proved")):
        assert verdict("group", dataclasses.replace(within, min_records=least), **fixed).verdict == expected
    below = claiming(asked, epsilon=0.999 * both[0].value)
    for least, expected in ((0, "refuted"), (96, "refuted"), (97, "open")):
        assert verdict("group", dataclasses.replace(below, min_records=least), **fixed).verdict == expected


def test_poisson_and_fixed_batches_in_turn_attain_nothing() -> None:
    """Both would need other directions of the records outside the group."""
    turns = [{"sampling": {"scheme": "fixed", "batch_size": 10}, "steps": 2}, {"steps": 2}]
    claim = oracle.claim_of("approx-dp", epsilon=0.01, delta=DELTA)
    for phases, lower in ((turns, 0), (turns[:1], 1), (turns[1:], 1)):
        assert len([f for f in stated("group", claim, phases=phases) if f.bound == "lower"]) == lower


def test_without_noise_a_drawn_record_shows_and_a_missing_one_does_not() -> None:
    for direction, judged in {"add": "open", "remove": "refuted", "both": "refuted"}.items():
        claim = oracle.claim_of("approx-dp", direction, epsilon=1.0, delta=DELTA)
        lowers = [f.value for f in stated("group", claim, noise_multiplier=0.0) if f.bound == "lower"]
        assert lowers == ([] if judged == "open" else [math.inf])
        assert verdict("group", claim, noise_multiplier=0.0).verdict == judged


def test_reconstruction_is_bounded_and_not_attained() -> None:
    claim = oracle.claim_of("rero", kappa=0.1, gamma=0.11)
    found = stated("rero", claim)
    (gamma,) = [f for f in found if f.quantity == "gamma" and f.at["kappa"] == 0.1 and f.rigor == "certified"]
    assert gamma.lower > 0.11
    assert verdict("rero", claim).verdict == "open"
    member = oracle.claim_of("membership", tpr=0.11, fpr=0.1)
    assert verdict("rero", member).verdict == "refuted"
