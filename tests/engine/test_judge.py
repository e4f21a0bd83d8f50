"""Each verdict, and which comes first."""

import dataclasses
import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import audits
from support.audits import HERE, MEASURED, approx, attack, average, bound, claim, counts, spec, verdict, verdicts

from dpspec.contract import Assumption, Claim, Finding, FrozenMap, Printed, Scope
from dpspec.contract.results import VerdictName
from dpspec.engine.judging.judge import as_expected, judge
from dpspec.results.inequalities import statement

#: Guesses that reject epsilon = 3 overwhelmingly (1000 of 1000), a little (p about 0.002), and not at all.
OVERWHELMING = attack(1000, 1000, 1000)
CLEAR = attack(1000, 1000, 972)
NOTHING = attack(1000, 1000, 520)


def test_proved_by_a_bound_within_the_claim() -> None:
    for rigor in ("certified", "theorem"):
        found = verdict(approx(3.0), bound(2.99, rigor=rigor))
        assert (found.verdict, found.expected) == ("proved", True)
        assert (found.upper, found.upper_finding, found.provable) == (2.99, 0, 2.99)
    assert verdict(approx(3.0), bound(3.0)).verdict == "proved"
    assert verdict(approx(3.0), bound(3.0 * (1.0 + 1e-14))).verdict == "open"


@pytest.mark.parametrize("claimed", [1e-9, 0.1, 0.3, 3.0, 1e6])
def test_a_bound_that_exceeds_the_claim_by_the_rounding_of_its_parts_is_equal_to_it(claimed: float) -> None:
    """The reason states the number and the tolerance; ten times as much is not equal, on either side."""
    beyond = math.nextafter(claimed, math.inf)
    found = verdict(approx(claimed), bound(beyond))
    assert (found.verdict, found.upper) == ("proved", beyond)
    assert f"{beyond!r}"[:17] in found.reason
    assert found.reason.endswith("equal to the claim up to the rounding of declared numbers (1e-15 relative).")
    assert verdict(approx(claimed), bound(beyond, bound="lower")).verdict == "open"
    assert verdict(approx(claimed), bound(claimed * (1.0 + 1e-14))).verdict == "open"
    assert verdict(approx(claimed), bound(claimed * (1.0 + 1e-14), bound="lower")).verdict == "refuted"
    assert verdict(approx(claimed), bound(math.nan)).verdict == "open"


RUNS = FrozenMap({"present": 500, "absent": 500, "true_positives": 490, "false_positives": 1})
MANY_RUNS = attack(1, 1, 1, kind="many-run", statistics=RUNS)


@pytest.mark.parametrize(
    ("claimed", "outcomes", "expected", "says"),
    [
        (3.0, (bound(2.9), OVERWHELMING), "contradicted", "theory, implementation or attack is wrong"),
        (3.0, (bound(2.9), OVERWHELMING, audits.check(0.0)), "contradicted", "run deviates from its declaration"),
        (1.0, (bound(20.0), OVERWHELMING), "refuted", ""),
        (1.0, (bound(4.9), CLEAR), "refuted", "one-run guesses"),
        (3.0, (bound(2.9), CLEAR), "refuted", "one of the two is wrong"),
        (1.0, (MANY_RUNS,), "refuted", ""),
        (3.0, (bound(0.5, rigor="approximate"), bound(2.9)), "proved", "2.9"),
        (3.0, (bound(3.5, scope=Scope(data="this")),), "open", "claim's 'all': set over: this in the claim"),
    ],
)
def test_which_verdict_comes_first(claimed: float, outcomes: tuple[Any, ...], expected: str, says: str) -> None:
    found = verdict(approx(claimed), *outcomes)
    assert found.verdict == expected
    if expected == "contradicted":
        assert found.provable is None  # a rejected bound proves nothing any more
    assert says in found.reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rigor": "statistical", "confidence": 0.99}, "Statistical: epsilon <= 2.5 at confidence 0.99, within"),
        ({"rigor": "approximate"}, "Approximate: epsilon is about 2.5, within the claim, without a guarantee"),
        ({"bound": "estimate"}, "Approximate: epsilon is about"),
        ({"assumptions": (Assumption(name="convex", status="unchecked"),)}, "under unchecked assumptions (convex)"),
        ({"scope": Scope(data="collection")}, "only for the declared collection of datasets"),
        (
            {"scope": Scope(data="this")},
            "Proved only for this dataset: epsilon <= 2.5, within the claim. Set over: this in",
        ),
    ],
)
def test_supported_by_anything_weaker(changes: dict[str, object], words: str) -> None:
    found = verdict(approx(3.0), dataclasses.replace(bound(2.5), **changes))  # type: ignore[arg-type]
    assert (found.verdict, found.expected) == ("supported", False)
    assert words in found.reason
    assert found.provable is None


def test_supported_for_this_data_alone_says_how_many_records_a_proof_needs() -> None:
    here, large = bound(2.5, scope=Scope(data="this")), bound(2.6, scope=Scope(min_records=479))
    found = verdict(approx(3.0), here, large)
    assert found.verdict == "supported"
    assert "at least 479 records: set min_records" in found.reason
    for other in (bound(3.1, scope=Scope(min_records=479)), bound(2.6, scope=Scope(min_records=479, direction="add"))):
        assert "min_records" not in verdict(approx(3.0), here, other).reason


def test_open_says_what_could_have_been_shown() -> None:
    found = verdict(approx(3.0), bound(3.21234), NOTHING)
    assert found.verdict == "open"
    assert found.provable == 3.21234
    assert found.refutable is not None
    assert 5.5 < found.refutable < 6.0
    assert found.reason == (
        "Not proved: the certified bound 3.213 exceeds the claimed 3. "
        "Not refuted: with perfect results, the evidence could refute claims up to 5.808."
    )
    alone = verdict(approx(3.0))
    no_bound = "Not proved: no proved upper bound applies to this claim. Not refuted: no attack tested it."
    assert alone.reason == no_bound
    assert (alone.provable, alone.refutable, alone.p_value, alone.upper, alone.lower) == (None,) * 5


def test_open_says_in_what_a_proof_is_out_of_scope() -> None:
    weak = bound(2.0, scope=Scope(adjacency="replace-one", access="final-model"))
    near = bound(9.0, scope=Scope(access="final-model"))
    found = verdict(approx(3.0), weak, near, bound(1.0, scope=Scope(access="final-model"), rigor="approximate"))
    assert found.verdict == "open"
    assert found.reason == (
        "Not proved: no proved upper bound applies to this claim (the nearest: its access is "
        "'final-model', and the claim's 'all-iterates'). Not refuted: no attack tested it."
    )


@pytest.mark.parametrize(
    "useless",
    [
        bound(1.0, printed=Printed(refuted=True, reason="wrong constant")),
        bound(math.nan),
    ],
)
def test_findings_that_back_no_verdict(useless: object) -> None:
    assert verdict(approx(3.0), useless).verdict == "open"  # type: ignore[arg-type]


def test_an_accountants_lower_end_never_refutes() -> None:
    tight = bound(5.0, lower=4.999)
    assert verdict(approx(3.0), tight).verdict == "open"
    assert verdict(approx(3.0), tight).lower is None
    assert verdict(approx(3.0, access="final-model"), tight).verdict == "open"


def test_a_certified_lower_bound_refutes_and_weaker_ones_are_shown() -> None:
    beyond = bound(3.5, bound="lower", scope=HERE)
    found = verdict(approx(3.0), beyond)
    assert (found.verdict, found.lower, found.lower_finding) == ("refuted", 3.5, 0)
    weaker = verdict(approx(3.0), dataclasses.replace(beyond, rigor="statistical", confidence=0.95))
    assert (weaker.verdict, weaker.lower) == ("open", 3.5)


def test_an_unknown_kind_of_evidence_is_an_error() -> None:
    with pytest.raises(ValueError, match="oracle"):
        verdict(approx(1.0), attack(1, 1, 1, kind="oracle"))


@pytest.mark.parametrize(
    ("verdict_name", "expect", "expected"),
    [
        ("proved", ("proved",), True),
        ("proved", ("supported",), True),
        ("contradicted", ("refuted",), True),
        ("open", ("open", "supported"), True),
        ("refuted", ("open", "supported"), False),
        ("proved", ("refuted", "open"), False),
    ],
)
def test_the_expect_rule(verdict_name: VerdictName, expect: tuple[str, ...], expected: bool) -> None:
    assert as_expected(verdict_name, expect) == expected


def test_verdicts_of_extreme_numbers_are_finite_json() -> None:
    for outcome in (bound(math.inf), bound(math.inf, bound="lower"), OVERWHELMING, bound(1e300)):
        found = verdict(approx(3.0), outcome, attack(1000, 0, 0))
        json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_a_deviating_pipeline_leaves_what_is_proved_of_the_declared_mechanism() -> None:
    declared = bound(2.9, assumptions=(Assumption(name="noise-scale", status="declared"),))
    executed = dataclasses.replace(declared, scope=Scope(pipeline="executed"))
    spec = audits.spec(approx(3.0))
    judged = judge([audits.unjudged(spec, declared, audits.check(0.0))])[0]
    assert judged.verdicts[0].verdict == "proved"
    assert judged.conformance.status == "deviates"
    assert judge([audits.unjudged(spec, executed, audits.check(0.0))])[0].verdicts[0].verdict == "open"


GUESSES = st.integers(1, 400).flatmap(lambda r: st.tuples(st.integers(r, 500), st.just(r), st.integers(0, r)))


@given(GUESSES, st.floats(0.0, 8.0), st.floats(0.0, 4.0), st.sampled_from([0.0, 1e-12, 1e-9, 1e-6, 1e-3]))
def test_never_proved_and_refuted_when_the_attack_agrees_with_the_bound(drawn, upper, slack, delta):
    evidence = attack(*drawn)
    found = verdict(approx(upper + slack, delta=1e-3), bound(upper, delta=delta), evidence)
    own = verdict(approx(upper, delta=delta), evidence)
    if own.verdict != "refuted":
        assert found.verdict == "proved"
    else:
        assert found.verdict in ("proved", "refuted", "contradicted")


@given(GUESSES, st.lists(st.floats(0.0, 8.0), min_size=2, max_size=5, unique=True), st.floats(0.0, 8.0))
def test_a_larger_claim_is_never_refuted_before_a_smaller_one(drawn, claimed, upper):
    claims = [approx(epsilon, id=str(i)) for i, epsilon in enumerate(sorted(claimed))]
    found = audits.verdicts(audits.spec(*claims), bound(upper), attack(*drawn))
    names = [v.verdict for v in found]
    assert all(b != "refuted" or a in ("refuted", "contradicted") for a, b in pairwise(names))
    assert ("contradicted" in names) == all(n == "contradicted" for n in names)


STRONG = attack(1000, 1000, 990)


def finding(quantity: str, value: float, side: str = "upper", scope: Scope | None = None, **at: Any) -> Finding:
    return bound(value, quantity=quantity, bound=side, at=at, scope=scope or Scope())


TEXTS = [
    (claim("pure-dp", epsilon=2.0), "epsilon <= 2 at delta = 0"),
    (claim("renyi-dp", alpha=8.0, epsilon=1.5, group_size=4), "Renyi epsilon <= 1.5 at order 8 for groups of 4"),
    (claim("gdp", mu=1.0), "mu <= 1"),
    (claim("zcdp", rho=0.5), "zCDP rho <= 0.5"),
    (claim("rero", kappa=0.01, gamma=0.2), "reconstruction gamma <= 0.2 at kappa = 0.01"),
    (claim("per-instance-dp", epsilon=1.0, delta=1e-5, record=7), "epsilon <= 1 at delta = 1e-5 for record 7"),
    (claim("membership", tpr=0.1, fpr=0.01), "membership true-positive rate <= 0.1 at false-positive rate 0.01"),
    (claim("membership", advantage=0.3), "membership advantage <= 0.3"),
    (
        approx(40.0, group_size=8, over="collection"),
        "epsilon <= 40 at delta = 1e-9 for groups of 8 over the collection",
    ),
]


@pytest.mark.parametrize(("stated", "text"), TEXTS)
def test_each_kind_is_said(stated: Claim, text: str) -> None:
    """:mod:`tests.engine.test_judge_catalogue` has their proofs and refutations."""
    found = verdict(stated)
    assert (found.text, found.verdict, found.kind) == (text, "open", stated.kind)


def test_a_fraction_of_the_records_is_proved_by_a_larger_one() -> None:
    stated = claim("per-instance-dp", epsilon=1.0, delta=1e-5, fraction=0.9, population="train")
    this = Scope(data="this")
    proof = finding("epsilon", 0.5, delta=1e-5, fraction=0.95, population="train", scope=this)
    found = verdict(stated, proof)
    assert (found.text, found.verdict) == (
        "epsilon <= 1 at delta = 1e-5 for at least 90% of the train records",
        "proved",
    )
    assert verdict(stated, dataclasses.replace(proof, at={**proof.at, "fraction": 0.8})).verdict == "open"
    beyond = finding("epsilon", 1.1, "lower", delta=1e-5, fraction=0.9, population="train", scope=this)
    assert verdict(stated, beyond).verdict == "refuted"


def test_what_could_be_refuted_is_said_in_the_claims_own_terms() -> None:
    one_line, curves = claim("pure-dp", epsilon=99.0), (claim("gdp", mu=9.0), claim("zcdp", rho=9.0))
    for stated in (one_line, *curves, claim("renyi-dp", alpha=8.0, epsilon=99.0)):
        largest = verdict(stated, STRONG).refutable
        assert largest is not None
        key = {"gdp": "mu", "zcdp": "rho"}.get(stated.kind, "epsilon")
        perfect = attack(1000, 1000, 1000)
        # several lines have weights that a search finds: its p-values are not monotone in the claimed value
        tolerance = 0.001 if stated is one_line else 0.05
        for factor, expected in ((1.0 - tolerance, "refuted"), (1.0 + tolerance, "open")):
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
    assert verdict(claim("tradeoff", points=[{"fpr": 0.001, "tpr": 0.002}]), STRONG).verdict == "refuted"
    assert verdict(claim("tradeoff", points=[{"fpr": 1e-9, "tpr": 0.01}]), STRONG).verdict == "open"
    assert found.text == "true-positive rate <= 0.1 at false-positive rate 0.01, 0.4 at false-positive rate 0.1"


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
        (MODEL_AT_MOST, counts(800, 1000), "open"),
    ],
)
def test_metrics_on_both_sides(stated: Claim, outcome: Any, expected: str) -> None:
    assert verdict(stated, outcome).verdict == expected


def test_a_quantity_that_is_also_one_of_privacy_is_no_metric() -> None:
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
    stated = dataclasses.replace(approx(1.0), refuted_by=refuted_by)
    found = verdict(stated, bound(3.0, bound="lower"), attack(1000, 1000, seen))
    assert found.verdict == expected
    assert ("only an attack may refute" in found.reason) == (expected == "open")


def test_a_claim_refuted_by_an_attack_shows_the_bound_of_the_attack() -> None:
    theory, shown = bound(29.2, bound="lower"), bound(5.19, bound="lower", rigor="statistical", confidence=0.95)
    stated = dataclasses.replace(approx(1.0), refuted_by="attack")
    outcomes = (bound(29.3), theory, dataclasses.replace(shown, scope=HERE), CLEAR)
    found = verdict(stated, *outcomes)
    assert (found.verdict, found.lower, found.upper, found.lower_finding) == ("refuted", 5.19, 29.3, 2)
    assert found.reason.startswith("Shown: epsilon >= 5.19 at confidence 0.95. The attack (")
    assert found.reason.endswith("family-wise at confidence 0.95.")
    # Without refuted_by the interval is the tightest one, and the reason names both.
    found = verdict(approx(1.0), *outcomes)
    assert (found.verdict, found.lower) == ("refuted", 29.2)
    assert "Shown: epsilon >= 5.19" in found.reason
    found = verdict(approx(10.0), *outcomes)
    assert found.reason.startswith("Certified: epsilon >= 29.2, above the claimed 10, an accountant. The attack")
    assert "is weaker and does not reject it, p = 1." in found.reason
