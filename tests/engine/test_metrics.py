"""Claims about accuracy: of the pipeline, whose runs are the sample, and of one model, whose test records are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from support import audits

from dpspec.contract import Claim, Evidence, Finding, Trial
from dpspec.contract.frozen import FrozenMap
from dpspec.engine.judging.evidence_weight import unmeasured
from dpspec.stats import utility

PIPELINE = audits.claim("metric", name="accuracy", at_least=0.75)
MODEL = audits.claim("metric", name="accuracy", at_least=0.75, about="model")


def trials(right: list[int], records: int, first: int = 0) -> list[Trial]:
    """As plugins keep them."""
    counts = [{"accuracy": {"test": {"right": r, "records": records}}} for r in right]
    return [Trial(index=first + i, evidence=FrozenMap({"internal": c})) for i, c in enumerate(counts)]


def outcomes(stated: Claim, right: list[int], records: int = 1000, first: int = 0) -> list[Finding | Evidence]:
    return list(utility.accuracies(audits.spec(stated), trials(right, records, first)))


def judged(stated: Claim, right: list[int], records: int = 1000) -> str:
    return audits.verdict(stated, *outcomes(stated, right, records)).verdict


def runs(seed: int, count: int = 8, records: int = 360) -> list[int]:
    """Runs of a pipeline whose models have 0.78 on average, and differ: 0.6 or 0.84 on fresh records."""
    rng = np.random.default_rng(seed)
    truth = np.where(rng.random(count) < 0.25, 0.6, 0.84)
    return rng.binomial(records, truth).tolist()


@pytest.mark.ci
def test_a_true_claim_about_the_pipeline_is_not_refuted_by_one_of_its_runs() -> None:
    times = 200
    refuted = sum(judged(PIPELINE, runs(seed), 360) == "refuted" for seed in range(times))
    assert stats.binom.sf(refuted - 1, times, 0.05) > 1e-4


def test_a_true_claim_about_a_model_is_refuted_no_more_often_than_it_says() -> None:
    rng, times = np.random.default_rng(0), 500
    refuted = sum(judged(MODEL, [int(rng.binomial(360, 0.75))], 360) == "refuted" for _ in range(times))
    assert stats.binom.sf(refuted - 1, times, 0.05) > 1e-4
    assert refuted > 0  # it is a test: exact, and close to its level


def test_what_a_model_is_claimed_to_do_speaks_of_the_first_run_alone() -> None:
    assert judged(MODEL, [600, 900, 900]) == "refuted"
    assert judged(MODEL, [900, 100, 100]) == "supported"
    assert judged(PIPELINE, [900, 100, 100]) == "open"
    assert judged(PIPELINE, [600, 900, 900]) == "supported"


def test_false_claims_about_the_pipeline_are_refuted_by_enough_runs() -> None:
    assert judged(PIPELINE, [400] * 8) == "refuted"
    assert judged(PIPELINE, [600] * 30, 10_000) == "refuted"
    assert judged(audits.claim("metric", name="accuracy", at_most=0.3), [900] * 8) == "refuted"


def test_one_run_estimates_a_pipeline_and_refutes_nothing() -> None:
    assert [type(o).__name__ for o in outcomes(PIPELINE, [10])] == ["Finding"]
    found = audits.verdict(PIPELINE, *outcomes(PIPELINE, [10]))
    assert (found.verdict, found.refutable) == ("open", None)
    assert judged(PIPELINE, [900]) == "supported"


def test_the_first_model_is_spoken_of_only_where_it_is_asked_for_and_there() -> None:
    def told(stated: Claim, first: int = 0) -> list[tuple[str, str]]:
        found = outcomes(stated, [800, 700], first=first)
        return [(type(o).__name__, str(o.at.get("about", "pipeline"))) for o in found]

    pipeline = [("Finding", "pipeline"), ("Evidence", "pipeline")]
    assert told(PIPELINE) == pipeline
    assert sorted(told(MODEL)) == sorted([*pipeline, ("Finding", "model"), ("Evidence", "model")])
    assert told(MODEL, first=1) == pipeline
    other = audits.claim("metric", name="accuracy-same-noise", at_least=0.5, about="model")
    assert told(other) == pipeline


def test_runs_on_other_test_records_are_not_averaged_by_a_test() -> None:
    mixed = [*trials([80], 100), *trials([800], 1000, first=1)]
    found = list(utility.accuracies(audits.spec(PIPELINE), mixed))
    assert [type(o).__name__ for o in found] == ["Finding"]


@pytest.mark.parametrize("right", [0, 1000])
def test_the_reason_names_what_was_measured(right: int) -> None:
    false = (
        audits.claim("metric", name="accuracy", at_least=0.9)
        if right == 0
        else audits.claim("metric", name="accuracy", at_most=0.1)
    )
    found = audits.verdict(false, *outcomes(false, [right] * 8))
    assert found.verdict == "refuted"
    assert "average over 8 runs" in found.reason


def test_an_open_claim_about_what_nobody_measured_is_told_what_was() -> None:
    misspelt = audits.claim("metric", name="acuracy", at_least=0.75)
    found = [one for one in outcomes(MODEL, [500]) if isinstance(one, Finding)]
    told = list(unmeasured([audits.verdict(misspelt, *found)], found))
    assert told == [f"claim {misspelt.id}: 'acuracy' was not measured; measured were accuracy"]
    assert not list(unmeasured([audits.verdict(PIPELINE, *found), audits.verdict(MODEL, *found)], found))
    assert not list(unmeasured([audits.verdict(misspelt)], []))
