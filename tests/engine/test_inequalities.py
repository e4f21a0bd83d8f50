"""Every claim kind: what it says, what proves it, what refutes it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from support.audits import MEASURED, approx, attack, average, bound, claim, counts, spec, verdict, verdicts

from dpspec.contract import Claim, Finding, Scope
from dpspec.engine.judging.inequalities import statement

STRONG = attack(1000, 1000, 990)


def finding(quantity: str, value: float, side: str = "upper", scope: Scope | None = None, **at: Any) -> Finding:
    return bound(value, quantity=quantity, bound=side, at=at, scope=scope or Scope())


CASES = [
    (claim("pure-dp", epsilon=2.0), "epsilon <= 2 at delta = 0", finding("epsilon", 2.0, delta=0.0)),
    (
        claim("renyi-dp", alpha=8.0, epsilon=1.5, group_size=4),
        "Renyi epsilon <= 1.5 at order 8 for groups of 4",
        finding("epsilon", 1.5, alpha=16.0, group_size=4),
    ),
    (claim("gdp", mu=1.0), "mu <= 1", finding("mu", 0.9, group_size=1)),
    (
        claim("rero", kappa=0.01, gamma=0.2),
        "reconstruction gamma <= 0.2 at kappa = 0.01",
        finding("gamma", 0.19, kappa=0.02),
    ),
    (
        claim("per-instance-dp", epsilon=1.0, delta=1e-5, record=7),
        "epsilon <= 1 at delta = 1e-5 for record 7",
        finding("epsilon", 0.5, delta=1e-6, scope=Scope(data="this", record=7)),
    ),
    (
        claim("per-instance-dp", epsilon=1.0, delta=1e-5, fraction=0.9, population="train"),
        "epsilon <= 1 at delta = 1e-5 for at least 90% of the train records",
        finding("epsilon", 0.5, delta=1e-5, fraction=0.95, population="train", scope=Scope(data="this")),
    ),
    (claim("membership", tpr=0.1, fpr=0.01), "membership tpr <= 0.1 at fpr = 0.01", finding("tpr", 0.1, fpr=0.01)),
    (claim("membership", advantage=0.3), "membership advantage <= 0.3", finding("advantage", 0.3)),
    (
        approx(40.0, group_size=8, over="collection"),
        "epsilon <= 40 at delta = 1e-9 for groups of 8 over the collection",
        finding("epsilon", 39.0, delta=1e-9, group_size=8, scope=Scope(data="collection")),
    ),
]


@pytest.mark.parametrize(("stated", "text", "proof"), CASES)
def test_each_kind_is_said_and_proved(stated: Claim, text: str, proof: Finding) -> None:
    found = verdict(stated, proof)
    assert (found.text, found.verdict, found.kind) == (text, "proved", stated.kind)
    assert found.claimed is not None
    assert verdict(stated, dataclasses.replace(proof, value=found.claimed * 1.001)).verdict == "open"
    assert verdict(stated, dataclasses.replace(proof, at={**proof.at, "step": 3})).verdict == "open"
    beyond = dataclasses.replace(proof, bound="lower", value=found.claimed * 1.001, at=_same_or_weaker(proof))
    assert verdict(stated, beyond).verdict == "refuted"
    assert verdict(stated).verdict == "open"


def _same_or_weaker(proof: Finding) -> dict[str, Any]:
    """Conditions under which a lower bound tells against the claims above."""
    weaker = {"alpha": 4.0, "kappa": 0.005, "delta": 1e-5, "fraction": 0.9}
    return {key: weaker.get(key, value) if value != 0.0 else value for key, value in proof.at.items()}


@pytest.mark.parametrize(
    ("weak", "strong"),
    [
        (claim("pure-dp", epsilon=9.0), claim("pure-dp", epsilon=1.0)),
        (claim("gdp", mu=4.0), claim("gdp", mu=0.5)),
        (claim("renyi-dp", alpha=8.0, epsilon=9.0), claim("renyi-dp", alpha=8.0, epsilon=0.5)),
        (
            claim("tradeoff", points=[{"fpr": 1e-9, "tpr": 0.01}]),
            claim("tradeoff", points=[{"fpr": 0.001, "tpr": 0.002}]),
        ),
    ],
)
def test_curves_are_refuted_by_the_points_that_they_imply(weak: Claim, strong: Claim) -> None:
    assert verdict(strong, STRONG).verdict == "refuted"
    assert verdict(weak, STRONG).verdict == "open"
    p_value = verdict(weak, STRONG).p_value
    assert p_value is not None
    assert p_value > 0.9


def test_what_could_be_refuted_is_said_in_the_claims_own_terms() -> None:
    for stated in (claim("gdp", mu=9.0), claim("renyi-dp", alpha=8.0, epsilon=99.0), claim("pure-dp", epsilon=99.0)):
        largest = verdict(stated, STRONG).refutable
        assert largest is not None
        key = "mu" if stated.kind == "gdp" else "epsilon"
        perfect = attack(1000, 1000, 1000)
        for factor, expected in ((0.999, "refuted"), (1.001, "open")):
            options = {**stated.options, key: factor * largest}
            assert verdict(claim(stated.kind, **options), perfect).verdict == expected


def test_a_tradeoff_claim_needs_every_point_proved_and_one_refuted() -> None:
    stated = claim("tradeoff", points=[{"fpr": 0.01, "tpr": 0.1}, {"fpr": 0.1, "tpr": 0.4}])
    first, second = finding("tpr", 0.09, fpr=0.01), finding("tpr", 0.39, fpr=0.1)
    assert verdict(stated, first).verdict == "open"
    assert verdict(stated, first, second).verdict == "proved"
    weak = dataclasses.replace(second, rigor="approximate")
    found = verdict(stated, first, weak)
    assert (found.verdict, found.claimed, found.upper) == ("supported", 0.4, 0.39)
    assert verdict(stated, first, finding("tpr", 0.5, "lower", fpr=0.1)).verdict == "refuted"
    assert found.text == "tpr <= 0.1 at fpr = 0.01, 0.4 at fpr = 0.1"


AT_LEAST = claim("metric", name="accuracy", at_least=0.9)
AT_MOST = claim("metric", name="accuracy", at_most=0.9)
MODEL_AT_LEAST = claim("metric", name="accuracy", at_least=0.9, about="model")
MODEL_AT_MOST = claim("metric", name="accuracy", at_most=0.9, about="model")


def measured(value: float, side: str = "estimate", **at: Any) -> Finding:
    return finding("accuracy", value, side, MEASURED, **at)


@pytest.mark.parametrize(
    ("stated", "outcome", "expected"),
    [
        (AT_LEAST, measured(0.5, "upper"), "refuted"),
        (AT_LEAST, counts(800, 1000), "open"),
        (AT_LEAST, average([750] * 8, 1000), "refuted"),
        (AT_LEAST, average([880] * 8, 1000), "open"),
        (AT_LEAST, average([750] * 8, 1000, at={"split": "train"}), "open"),
        (AT_MOST, average([1000] * 200, 10_000), "open"),
        (claim("metric", name="accuracy", at_most=0.5), average([900] * 20, 1000), "refuted"),
        (MODEL_AT_LEAST, counts(800, 1000), "refuted"),
        (MODEL_AT_LEAST, counts(890, 1000), "open"),
        (MODEL_AT_LEAST, counts(800, 1000, at={"split": "train"}), "open"),
        (MODEL_AT_LEAST, average([100] * 8, 1000), "open"),
        (MODEL_AT_MOST, counts(950, 1000), "refuted"),
        (MODEL_AT_MOST, counts(910, 1000), "open"),
        (MODEL_AT_MOST, counts(800, 1000), "open"),
    ],
)
def test_metrics_on_both_sides(stated: Claim, outcome: Any, expected: str) -> None:
    assert verdict(stated, outcome).verdict == expected


def test_a_quantity_that_is_also_one_of_privacy_is_no_metric() -> None:
    """Whoever finds the same quantity under an adversary too does not get it past its scope by measuring it."""
    stated = claim("metric", name="loss", at_most=1)
    mine = finding("loss", 0.5, "upper", MEASURED)
    assert verdict(stated, mine).verdict == "proved"
    found = verdict(stated, mine, finding("loss", 3.0, "estimate"))
    assert found.verdict == "open"
    assert "loss is not a metric" in found.reason


def test_a_metrics_numbers_stand_on_their_own_sides() -> None:
    statistical = dataclasses.replace(measured(0.91, "lower", about="model"), rigor="statistical", confidence=0.95)
    found = verdict(MODEL_AT_LEAST, measured(0.97, "upper", about="model"), statistical, counts(930, 1000))
    assert (found.verdict, found.lower, found.upper) == ("supported", 0.91, 0.97)
    assert found.refutable is not None
    assert 0.002 < found.refutable < 0.004  # with no success at all
    open_ = verdict(AT_LEAST, measured(0.85432, "lower"))
    assert "the certified bound 0.8543 is below the claimed 0.9" in open_.reason


def test_a_metric_between_two_limits_needs_both() -> None:
    stated = claim("metric", name="accuracy", at_least=0.8, at_most=0.95, about="model")
    assert statement(stated).text == "accuracy >= 0.8 and accuracy <= 0.95 of the first run's model"
    assert verdict(stated, measured(0.9, about="model")).verdict == "supported"
    assert verdict(stated, measured(0.97, about="model")).verdict == "open"
    assert verdict(stated, counts(700, 1000)).verdict == "refuted"
    assert verdict(stated, counts(990, 1000)).verdict == "refuted"


def test_what_a_metric_could_have_refuted_is_refuted_and_no_more() -> None:
    for stated, worst in ((AT_LEAST, average([0] * 8, 1000)), (MODEL_AT_LEAST, counts(0, 1000))):
        least = verdict(stated, worst).refutable
        assert least is not None
        for factor, expected in ((1.001, "refuted"), (0.999, "open")):
            again = claim("metric", **{**stated.options, "at_least": factor * least})
            assert verdict(again, worst).verdict == expected


def test_metrics_and_privacy_share_the_level_but_not_the_family() -> None:
    near, far = counts(880, 1000), counts(860, 1000)  # p = 0.022 and 3e-5 against at_least 0.9
    assert verdict(MODEL_AT_LEAST, near).verdict == "refuted"
    attacks = (attack(100, 100, 50), attack(100, 100, 20))
    three = spec(MODEL_AT_LEAST, approx(5.0, id="p"), approx(6.0, id="q"))
    assert verdicts(three, near, *attacks)[0].verdict == "open"  # a tenth of the level is left for metrics
    assert verdicts(three, far, *attacks)[0].verdict == "refuted"
    with_metric, without = verdicts(three, far, *attacks), verdicts(three, *attacks)
    assert with_metric[1:] == without[1:]  # no verdict about privacy depends on a metric's evidence


def test_a_kind_that_only_a_plugin_knows_stays_open() -> None:
    found = verdict(claim("oath", strength=1.0, group_size=2), bound(0.1), STRONG)
    assert (found.verdict, found.text, found.claimed) == ("open", "oath for groups of 2", None)
    assert "no numeric bound" in found.reason
    json.dumps(dataclasses.asdict(found), allow_nan=False)


@pytest.mark.parametrize(
    ("refuted_by", "seen", "expected"), [("any", 500, "refuted"), ("attack", 500, "open"), ("attack", 990, "refuted")]
)
def test_a_control_falls_by_its_attack_alone(refuted_by: str, seen: int, expected: str) -> None:
    """A certified bound beyond a claim hides no blind attack where the claim asks for one."""
    stated = dataclasses.replace(approx(1.0), refuted_by=refuted_by)
    found = verdict(stated, bound(3.0, bound="lower"), attack(1000, 1000, seen))
    assert found.verdict == expected
    assert ("only an attack may refute" in found.reason) == (expected == "open")
