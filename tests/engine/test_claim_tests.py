"""Attacks that count their successes, and tests of claims whose trials are not all there."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support import audits, counting
from support.audits import HERE, approx, attack, average, bound, check, claim, spec, unjudged, verdict, verdicts

from dpspec.contract import Claim, Finding, FrozenMap, Scope
from dpspec.contract.results import Result, Verdict
from dpspec.engine.judging.judge import judge
from dpspec.engine.running.runner import run
from dpspec.engine.running.train import RunOptions
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import ExitCode
from dpspec.results import conformance_status
from dpspec.results.redact import redact
from dpspec.stats import binomial
from dpspec.stats.attacks import evidence_tests

KAPPA = 1.0 / 16.0


def gamma(value: float, kappa: float = KAPPA, **changes: Any) -> Finding:
    return bound(value, quantity="gamma", at=FrozenMap({"kappa": kappa}), **changes)


def count_verdict(claimed: float, findings: list[Finding], successes: int, kappa: float = KAPPA) -> Verdict:
    """Judge a claim with the successes of 400 reconstructions."""
    at, scope = FrozenMap({"kappa": KAPPA}), dataclasses.replace(HERE, adversary="record")
    reconstructions = audits.counts(successes, 400, "gamma", scope=scope, at=at)
    return verdict(claim("rero", kappa=kappa, gamma=claimed), *findings, reconstructions)


def test_more_successes_than_the_claim_allows_refute_it() -> None:
    found = count_verdict(0.2, [gamma(0.5)], 120)
    assert found.verdict == "refuted"
    assert found.p_value == pytest.approx(binomial.at_least(120, 400, 0.2))
    found = count_verdict(0.29, [gamma(0.5)], 120)
    assert found.verdict == "open"
    assert found.refutable == pytest.approx(binomial.lower(400, 400, 0.95))


@pytest.mark.parametrize(
    ("claimed", "bounds", "successes", "kappa", "expected"),
    [
        (0.3, [gamma(0.25)], 100, KAPPA, "proved"),
        (0.9, [gamma(0.2)], 200, KAPPA, "contradicted"),
        (0.9, [gamma(0.2)], 95, KAPPA, "proved"),  # p = 0.03: not at one in a million
        (0.9, [gamma(0.2, kappa=0.1)], 200, KAPPA, "contradicted"),
        (0.9, [gamma(0.2, kappa=0.01)], 200, KAPPA, "open"),
        (0.9, [gamma(0.2, bound="estimate", rigor="approximate")], 200, KAPPA, "supported"),
        (0.2, [], 120, 0.1, "refuted"),
        (0.2, [], 120, 0.01, "open"),
    ],
)
def test_counts_claims_and_bounds(claimed, bounds, successes, kappa, expected):
    found = count_verdict(claimed, bounds, successes, kappa)
    assert found.verdict == expected
    assert ("gamma <= 0.2 at kappa = " in found.reason) == (expected == "contradicted")


#: p = 0.030 against epsilon = 1 at delta = 0.
WEAK = attack(500, 500, 385)
PURE = {"delta": 0.0}


def test_holm_runs_over_all_claims_of_all_specs() -> None:
    raw = evidence_tests.p_value(WEAK, 1.0, 0.0)
    assert 0.025 < raw < 0.05
    alone = verdict(approx(1.0, **PURE), WEAK)
    assert (alone.verdict, alone.p_value) == ("refuted", raw)
    pair = judge([unjudged(spec(approx(1.0, **PURE)), WEAK), unjudged(spec(approx(5.0, **PURE)), WEAK)])
    assert [j.verdicts[0].verdict for j in pair] == ["open", "open"]
    assert pair[0].verdicts[0].p_value == 2 * raw
    # Equal counts of two attacks are two tests, one attack against three claims of equal points is one.
    assert verdict(approx(1.0, **PURE), WEAK, dataclasses.replace(WEAK, id="again")).verdict == "open"
    claims = [approx(1.0, id=str(i), group_size=1 + i, **PURE) for i in range(3)]
    assert [v.verdict for v in verdicts(spec(*claims), WEAK)] == ["refuted"] * 3
    # 0.1 is rejected first, then 1.0 at the full level.
    found = verdicts(spec(approx(0.1, id="a", **PURE), approx(1.0, id="b", **PURE)), WEAK)
    assert [v.verdict for v in found] == ["refuted", "refuted"]


def test_the_strictest_confidence_holds_for_the_whole_invocation() -> None:
    easy = unjudged(spec(approx(1.0, **PURE)), WEAK)
    strict = unjudged(spec(confidence=0.99))
    assert judge([easy])[0].verdicts[0].verdict == "refuted"
    assert judge([easy, strict])[0].verdicts[0].verdict == "open"


def test_a_spec_without_an_audit_states_no_confidence() -> None:
    bounds_only = dataclasses.replace(spec(approx(1.0, **PURE)), audit=None)
    judged = judge([unjudged(bounds_only, bound(0.9, 0.0))])[0]
    assert judged.verdicts[0].verdict == "proved"
    assert (judged.conformance.status, judged.conformance.expected) == ("not-run", True)


def test_the_curve_says_more_than_its_points():
    # No single point of the bound is rejected at 1e-6, but all points together are.
    points = [(0.5, 0.055), (0.9, 0.011), (1.3, 1.4e-3), (1.7, 1e-4), (2.1, 4.2e-6), (2.5, 9.5e-8), (3.0, 3.6e-10)]
    curve = [bound(epsilon, delta) for epsilon, delta in points]
    close = attack(4000, 140, 140)
    alone = [evidence_tests.p_value(close, epsilon, delta) for epsilon, delta in points]
    together = evidence_tests.curve_p_value(close, points)
    assert together < 1e-6 < min(alone)
    found = verdict(approx(3.0, delta=9.5e-8), *curve, close)
    assert found.verdict == "contradicted"
    assert "rejects the proved curve epsilon <= " in found.reason
    assert "all 7 points" in found.reason
    assert verdict(approx(3.0, delta=9.5e-8), curve[5], close).verdict != "contradicted"


def test_a_ladder_is_one_test() -> None:
    ladder = attack(
        1,
        1,
        1,
        kind="one-run-ladder",
        statistics=FrozenMap({"canaries": 500, "guesses": [100, 500], "correct": [90, 385]}),
    )
    found = verdict(approx(1.0, **PURE), ladder)
    assert found.verdict == "refuted"
    assert found.p_value == evidence_tests.p_value(ladder, 1.0, 0.0)
    assert found.refutable is not None
    assert verdict(approx(9.0, **PURE), ladder).verdict == "open"


def test_bound_tests_are_adjusted_over_the_invocation() -> None:
    close = attack(1000, 1000, 983)  # against epsilon = 3 at delta = 0
    p = evidence_tests.p_value(close, 3.0, 0.0)
    assert 5e-8 < p < 1e-6
    one = unjudged(spec(approx(3.0, **PURE)), bound(3.0, 0.0), close)
    idle = unjudged(spec(approx(9.0, **PURE)), bound(9.0, 0.0), attack(1000, 1000, 500))
    assert judge([one])[0].verdicts[0].verdict == "contradicted"
    many = judge([one, *([idle] * 20)])
    assert many[0].verdicts[0].verdict == "refuted"
    assert {j.verdicts[0].verdict for j in many[1:]} == {"proved"}


def test_a_contradiction_reaches_every_claim_that_the_attack_speaks_of() -> None:
    claims = (
        approx(3.0, id="one"),
        approx(50.0, id="family", group_size=8),
        approx(3.0, id="final", access="final-model"),
        audits.claim("gdp", id="gdp", mu=9.0),
        audits.claim("metric", id="accuracy", name="accuracy", at_least=0.5),
    )
    found = verdicts(
        spec(*claims),
        bound(2.9),
        bound(40.0, group_size=8),
        bound(9.0, None, quantity="mu"),
        bound(0.9, quantity="accuracy", bound="lower", at={}, scope=audits.MEASURED),
        attack(1000, 1000, 1000),
    )
    by_id = {v.claim: v.verdict for v in found}
    # An attack on all iterates does not apply to the final model, but the bound that it rejects proves nothing.
    assert by_id == {
        "one": "contradicted",
        "family": "contradicted",
        "final": "contradicted",
        "gdp": "contradicted",
        "accuracy": "proved",
    }


def test_a_contradiction_of_large_groups_leaves_small_ones() -> None:
    claims = (approx(3.0, id="one"), approx(50.0, id="family", group_size=8))
    bounds = (bound(2.9), bound(3.5, group_size=8))
    found = verdicts(spec(*claims), *bounds, attack(1000, 1000, 1000, group_size=8))
    assert [v.verdict for v in found] == ["proved", "contradicted"]
    # Without a separate bound the small group would depend on the rejected one.
    assert verdict(approx(6.0), bound(3.5, group_size=8), attack(1000, 1000, 1000, group_size=8)).verdict == (
        "contradicted"
    )


def test_a_rejected_bound_for_a_narrower_scope_leaves_wider_claims() -> None:
    narrow = bound(1.0, scope=Scope(access="final-model"))
    final = attack(1000, 1000, 990, scope=dataclasses.replace(HERE, access="final-model"))
    claims = (approx(6.0, id="all"), approx(6.0, id="final", access="final-model"))
    found = verdicts(spec(*claims), narrow, bound(5.9), final)
    assert [v.verdict for v in found] == ["proved", "contradicted"]


def test_a_tighter_bound_that_stands_still_proves():
    # The rejected bound holds for a wider scope; its narrower, looser sibling is not rejected.
    loose = bound(9.0, scope=Scope(access="final-model"))
    found = verdict(approx(10.0, access="final-model"), bound(2.9), loose, attack(1000, 1000, 1000))
    assert (found.verdict, found.upper) == ("proved", 9.0)


def test_an_attack_on_large_groups_does_not_test_a_bound_for_small_ones() -> None:
    large = attack(1000, 1000, 1000, group_size=8)
    found = verdict(approx(50.0, group_size=8), bound(2.9), bound(40.0, group_size=8), large)
    assert (found.verdict, found.upper) == ("proved", 40.0)


def audited(tmp_path: Path, *overrides: str, most: int | None = None) -> Result:
    specs, options = counting.load(tmp_path, *overrides), RunOptions(max_trials=most)
    return run(specs, counting.catalog(), store=Store(tmp_path / "store"), options=options)


def test_an_incomplete_run_refutes_nothing_by_a_test_of_all_trials(tmp_path: Path) -> None:
    early = audited(tmp_path, most=3)
    held, broken = early.audits[0].verdicts
    assert (held.verdict, held.expected) == ("proved", True)
    assert (broken.verdict, broken.expected, broken.p_value) == ("open", False, None)
    assert "3 of 5 trials are available" in broken.reason
    assert "for which there is evidence" in broken.reason
    assert early.exit_code is ExitCode.INCOMPLETE
    assert verify(early, counting.catalog()) == ()
    assert verify(redact(early), counting.catalog()) == ()
    whole = audited(tmp_path)
    assert [v.verdict for v in whole.audits[0].verdicts] == ["proved", "refuted"]
    assert "Trials are missing" not in whole.audits[0].verdicts[1].reason
    assert whole.exit_code is ExitCode.OK
    assert verify(whole, counting.catalog()) == ()


def test_an_early_look_contradicts_no_bound_either(tmp_path: Path) -> None:
    lying = ("mechanism.factor=4", "claims.held.expect=contradicted", "claims.broken.expect=contradicted")
    early = audited(tmp_path, *lying, most=3)
    assert [v.verdict for v in early.audits[0].verdicts] == ["proved", "open"]
    whole = audited(tmp_path, *lying)
    assert [v.verdict for v in whole.audits[0].verdicts] == ["contradicted", "contradicted"]


FIXED = attack(1000, 1000, 990)
REFUTING_RUNS = average([100] * 8, 1000)
LOW = approx(1.0)


def early(stated: Claim, *outcomes: Any) -> Verdict:
    missing = dataclasses.replace(unjudged(spec(stated), *outcomes), trials=20, needed=64)
    return judge([missing])[0].verdicts[0]


def test_tests_that_hold_whenever_one_stops_are_judged() -> None:
    assert early(LOW, FIXED).verdict == "open"
    stated = claim("metric", name="accuracy", at_least=0.9)
    assert early(stated, REFUTING_RUNS).verdict == "refuted"
    assert (
        early(claim("metric", name="accuracy", at_least=0.9, about="model"), audits.counts(1, 1000)).verdict == "open"
    )


def statistical(value: float, side: Any, scope: Scope) -> Finding:
    return bound(value, bound=side, rigor="statistical", confidence=0.95, scope=scope)


def test_what_is_true_with_its_confidence_at_the_end_is_no_end_of_an_interval_before() -> None:
    lower = statistical(0.5, "lower", audits.HERE)
    found = early(approx(3.0), bound(2.5), lower)
    assert (found.verdict, found.upper, found.lower) == ("proved", 2.5, None)
    assert audits.verdict(approx(3.0), bound(2.5), lower).lower == 0.5
    # What theory sampled depends on no trial.
    assert early(approx(3.0), statistical(2.5, "upper", Scope())).verdict == "supported"
    executed = dataclasses.replace(Scope(), pipeline="executed")
    assert early(approx(3.0), statistical(2.5, "upper", executed)).verdict == "open"


def test_one_complete_audit_is_judged_among_the_tests_that_are_still_to_come() -> None:
    close = attack(100, 100, 63)
    whole = unjudged(spec(approx(0.0)), close)
    waiting = dataclasses.replace(unjudged(spec(approx(9.0))), trials=0, needed=8, tests=20)
    alone = judge([whole])[0].verdicts[0]
    among = judge([whole, waiting])[0].verdicts[0]
    assert (alone.verdict, among.verdict) == ("refuted", "open")
    assert among.p_value == pytest.approx(21 * alone.p_value)


def test_checks_share_their_level_among_all_looks_at_a_run_that_is_not_complete() -> None:
    counts = [conformance_status.inspections(there, needed) for there, needed in ((3, 64), (64, 64), (0, 0))]
    assert counts == [64, 1, 1]
    clear, close = check(1e-9), check(5e-7)
    assert conformance_status.rejected(close, 1)
    assert not conformance_status.rejected(close, 64)
    for found, then, later in ((clear, "deviates", "deviates"), (close, "no-deviation-found", "deviates")):
        whole = unjudged(spec(approx(3.0)), found)
        missing = dataclasses.replace(whole, trials=20, needed=64)
        assert judge([missing])[0].conformance.status == then
        assert judge([whole])[0].conformance.status == later
