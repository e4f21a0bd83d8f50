"""While trials are missing: tests of a fixed number of trials are not judged, and what is said is said of later."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from support import audits, counting
from support.audits import approx, attack, average, bound, check, claim, spec, unjudged

from dpspec.contract import Claim, Finding, FrozenMap, Plan, Scope, Spec, Trial
from dpspec.engine.judging import conformance_status
from dpspec.engine.judging.judge import judge
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.redact import redact
from dpspec.engine.results.result import Result, Verdict
from dpspec.engine.running.conclude import conclude
from dpspec.engine.running.run_options import RunOptions
from dpspec.engine.running.runner import run
from dpspec.engine.storage.stored_trials import AuditState
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import ExitCode


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
    """The mechanism tells the truth far more often than it declares."""
    lying = ("mechanism.factor=4", "claims.held.expect=contradicted", "claims.broken.expect=contradicted")
    early = audited(tmp_path, *lying, most=3)
    assert [v.verdict for v in early.audits[0].verdicts] == ["proved", "open"]
    whole = audited(tmp_path, *lying)
    assert [v.verdict for v in whole.audits[0].verdicts] == ["contradicted", "contradicted"]


def test_looking_after_every_trial_errs_no_more_often_than_looking_at_the_end(tmp_path: Path) -> None:
    """Randomised response at exactly the claimed epsilon, looked at after each of 12 trials."""
    times, runs, at_any, at_end = 120, 12, 0, 0
    catalog = counting.catalog()
    for seed in range(times):
        overrides = ("claims.held.epsilon=1.0", "claims.broken.epsilon=1.0", f"audit.runs={runs}")
        specs = counting.load(
            tmp_path, *overrides, f"audit.seed={seed}", "claims.held.expect=open", "claims.broken.expect=open"
        )
        prepared = prepare(specs[0], catalog)
        trials = _trials(specs[0])
        seen = []
        for count in range(1, runs + 1):
            plan = Plan(chunks=tuple((i,) for i in range(runs)), seconds=0.0, memory_bytes=0)
            (judged,) = judge([conclude(AuditState(prepared=prepared, plan=plan), trials[:count])])
            seen.append(judged.verdicts[0].verdict == "refuted")
        at_any += any(seen)
        at_end += seen[-1]
    assert at_any == at_end
    assert stats.binom.sf(at_any - 1, times, 0.05) > 1e-4


def _trials(of: Spec) -> list[Trial]:
    import random

    assert of.audit is not None
    draw, truth = random.Random(of.audit.seed), 1.0 / (1.0 + 2.718281828459045**-1.0)
    return [
        Trial(
            index=i,
            evidence=FrozenMap(
                {
                    "hits": sum(draw.random() < truth for _ in range(200)),
                    "alarms": sum(draw.random() >= truth for _ in range(200)),
                }
            ),
        )
        for i in range(of.audit.runs)
    ]


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
    return dataclasses.replace(bound(value, bound=side), rigor="statistical", confidence=0.95, scope=scope)


def test_what_is_true_with_its_confidence_at_the_end_is_no_end_of_an_interval_before() -> None:
    lower = statistical(0.5, "lower", audits.HERE)
    found = early(approx(3.0), bound(2.5), lower)
    assert (found.verdict, found.upper, found.lower) == ("proved", 2.5, None)
    assert audits.verdict(approx(3.0), bound(2.5), lower).lower == 0.5
    # What theory sampled depends on no trial.
    assert early(approx(3.0), statistical(2.5, "upper", Scope())).verdict == "supported"
    executed = dataclasses.replace(Scope(), pipeline="executed")
    assert early(approx(3.0), statistical(2.5, "upper", executed)).verdict == "open"


def test_proofs_and_refutations_by_theory_stand_at_any_time() -> None:
    assert early(approx(3.0), bound(2.5), FIXED).verdict == "proved"
    assert early(approx(3.0), bound(3.5, bound="lower")).verdict == "refuted"


def test_one_complete_audit_is_judged_among_the_tests_that_are_still_to_come() -> None:
    """Else it could be refuted now, among few tests, and again among more at a later look."""
    close = dataclasses.replace(attack(100, 100, 63))
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
