"""Claims about accuracy: of the pipeline, whose runs are the sample, and of one model, whose test records are."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import special
from support import audits

from dpspec.contract import Claim, Evidence, Finding, Scope, Trial
from dpspec.contract.frozen import FrozenMap
from dpspec.results.evidence_weight import claim_scope, covers, curves_of, shortfall, trade_off
from dpspec.stats import utility


def test_a_value_outside_the_orders_covers_itself_alone() -> None:
    assert covers(Scope(access="weekly"), Scope(access="weekly"))
    assert not covers(Scope(access="weekly"), Scope(access="final-model"))
    assert not covers(Scope(access="all-iterates"), Scope(access="weekly"))


def test_a_claim_speaks_of_the_threat_model_narrowed_by_its_own_keys() -> None:
    spec = audits.spec(unit="user", options={"adversary": "record"})
    assert claim_scope(spec, audits.approx()) == Scope(unit="user", adversary="record")
    narrow = audits.approx(adjacency="zero-out", access="final-model", direction="add", record=7, over="collection")
    assert claim_scope(spec, narrow) == Scope(
        adjacency="zero-out",
        unit="user",
        direction="add",
        access="final-model",
        adversary="record",
        data="collection",
        record=7,
    )


def test_a_per_instance_claim_speaks_of_this_data_set_unless_it_says_over() -> None:
    one = audits.claim("per-instance-dp", epsilon=1.0, delta=1e-6, record=2)
    assert claim_scope(audits.spec(), one) == Scope(data="this", record=2)
    assert claim_scope(audits.spec(), dataclasses.replace(one, over="collection")).data == "collection"


def test_a_bounds_requirements_on_datasets_are_reported_with_a_fix() -> None:
    bound = Scope(min_records=569, neighbours="same-missing-values")
    many, alike = shortfall(bound, Scope(min_records=0))
    assert many == "it needs datasets of at least 569 records, and the claim covers any: set threat_model.min_records"
    assert "same-missing-values" in alike
    assert alike.endswith("set threat_model.neighbours")
    assert "datasets of at least 64" in shortfall(bound, Scope(min_records=64))[0]
    assert shortfall(bound, Scope(min_records=569, neighbours="same-missing-values")) == []


PIPELINE = audits.claim("metric", name="accuracy", at_least=0.75)
MODEL = audits.claim("metric", name="accuracy", at_least=0.75, about="model")


def trials(right: list[int], records: int, first: int = 0) -> list[Trial]:
    counts = [{"accuracy": {"test": {"right": r, "records": records}}} for r in right]
    return [Trial(index=first + i, evidence=FrozenMap({"internal": c})) for i, c in enumerate(counts)]


def outcomes(stated: Claim, right: list[int], records: int = 1000, first: int = 0) -> list[Finding | Evidence]:
    return list(utility.accuracies(audits.spec(stated), trials(right, records, first)))


def judged(stated: Claim, right: list[int], records: int = 1000) -> str:
    return audits.verdict(stated, *outcomes(stated, right, records)).verdict


@pytest.mark.parametrize(
    ("stated", "right", "records", "expected"),
    [
        (MODEL, [600, 900, 900], 1000, "refuted"),
        (MODEL, [900, 100, 100], 1000, "supported"),
        (PIPELINE, [900, 100, 100], 1000, "open"),
        (PIPELINE, [600, 900, 900], 1000, "supported"),
        (PIPELINE, [400] * 8, 1000, "refuted"),
    ],
)
def test_a_model_is_the_first_run_and_a_pipeline_all(stated, right, records, expected):
    found = audits.verdict(stated, *outcomes(stated, right, records))
    assert found.verdict == expected
    assert (f"average over {len(right)} runs" in found.reason) == (stated != MODEL and expected == "refuted")


def test_one_run_estimates_a_pipeline_and_refutes_nothing() -> None:
    assert [type(o).__name__ for o in outcomes(PIPELINE, [10])] == ["Finding"]
    found = audits.verdict(PIPELINE, *outcomes(PIPELINE, [10]))
    assert (found.verdict, found.refutable) == ("open", None)
    assert judged(PIPELINE, [900]) == "supported"


def test_the_first_model_is_reported_only_if_claimed_and_present() -> None:
    def reported(stated: Claim, first: int = 0) -> list[tuple[str, str]]:
        found = outcomes(stated, [800, 700], first=first)
        return [(type(o).__name__, str(o.at.get("about", "pipeline"))) for o in found]

    pipeline = [("Finding", "pipeline"), ("Evidence", "pipeline")]
    assert reported(PIPELINE) == pipeline
    assert sorted(reported(MODEL)) == sorted([*pipeline, ("Finding", "model"), ("Evidence", "model")])
    assert reported(MODEL, first=1) == pipeline
    other = audits.claim("metric", name="accuracy-same-noise", at_least=0.5, about="model")
    assert reported(other) == pipeline


def test_runs_on_other_test_records_are_not_averaged_by_a_test() -> None:
    mixed = [*trials([80], 100), *trials([800], 1000, first=1)]
    found = list(utility.accuracies(audits.spec(PIPELINE), mixed))
    assert [type(o).__name__ for o in found] == ["Finding"]


@pytest.mark.parametrize("value", [0.0, 0.3, 2.0, 20.0])
def test_the_trade_off_of_pure_dp_is_that_of_randomized_response(value: float) -> None:
    """Oracle: the power at rate a is at most min(e^eps a, 1 - e^-eps (1 - a))."""
    series = trade_off([audits.bound(value, 0.0)], [])
    assert series is not None
    rates, powers = series.columns["false_positive_rate"], series.columns["true_positive_rate"]
    assert (rates[0], rates[-1]) == (pytest.approx(1e-6), 1.0)
    assert len(rates) == (26 if value > 0.0 and 1.0 / (1.0 + math.exp(value)) > 1e-6 else 25)  # with the vertex
    for rate, power in zip(rates, powers, strict=True):
        assert power == pytest.approx(min(math.exp(value) * rate, 1.0 - math.exp(-value) * (1.0 - rate)), rel=1e-9)


def test_the_trade_off_of_a_gaussian_has_a_curve_for_each_group_and_the_strictest_privacy() -> None:
    """Oracle: Phi(mu + Phi^-1(a)); the tangents of the curve are above it by less than 4 %."""
    mu = {1: 0.5, 3: 1.5}
    bounds = [
        audits.bound(value, None, quantity="mu", group_size=size, privacy="public" if size == 1 else "data-dependent")
        for size, value in mu.items()
    ]
    series = trade_off(bounds, [])
    assert series is not None
    assert series.privacy == "data-dependent"
    for size, rate, power in zip(*series.columns.values(), strict=True):
        exact = float(special.ndtr(mu[size] + special.ndtri(rate)))
        assert exact * (1.0 - 1e-12) <= power <= min(1.0, 1.04 * exact)


@pytest.mark.parametrize("log", [False, True])
def test_no_line_between_two_rates_is_below_the_curve(log: bool) -> None:
    bounds = [audits.bound(2.0, 0.0), audits.bound(0.5, 0.3), audits.bound(0.0, 0.45)]
    series = trade_off(bounds, [])
    assert series is not None
    (curve,) = curves_of(bounds, [])
    rates, powers = (np.array(series.columns[f"{name}_positive_rate"]) for name in ("false", "true"))
    middle = np.sqrt(rates[1:] * rates[:-1]) if log else 0.5 * (rates[1:] + rates[:-1])
    x, y = (np.log(rates), np.log(powers)) if log else (rates, powers)
    chord = np.interp(np.log(middle) if log else middle, x, y)
    assert np.all((np.exp(chord) if log else chord) >= curve.polygon.tpr(middle) * (1.0 - 1e-12))


def test_small_deltas_alone_have_no_trade_off() -> None:
    assert trade_off([audits.bound(1.0, 1e-6)], []) is None
    assert trade_off([], []) is None
