"""Each verdict, and which comes first."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import audits
from support.audits import HERE, approx, attack, bound, verdict

from dpspec.contract import Assumption, FrozenMap, Printed, Scope
from dpspec.engine.judging.judge import as_expected, judge
from dpspec.engine.results.result import VerdictName

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
    assert verdict(approx(3.0), bound(math.nextafter(3.0, 4.0))).verdict == "open"


RUNS = FrozenMap({"present": 500, "absent": 500, "true_positives": 490, "false_positives": 1})
MANY_RUNS = attack(1, 1, 1, kind="many-run", statistics=RUNS)


@pytest.mark.parametrize(
    ("claimed", "outcomes", "expected", "says"),
    [
        (3.0, (bound(2.9), OVERWHELMING), "contradicted", "theory, implementation or attack is wrong"),
        (3.0, (bound(2.9), OVERWHELMING, audits.check(0.0)), "contradicted", "run deviates from its declaration"),
        (1.0, (bound(2.9), OVERWHELMING), "contradicted", ""),
        (1.0, (bound(20.0), OVERWHELMING), "refuted", ""),
        (1.0, (bound(4.9), CLEAR), "refuted", "one-run guesses"),
        (3.0, (bound(2.9), CLEAR), "refuted", "one of the two is wrong"),
        (1.0, (MANY_RUNS,), "refuted", ""),
        (1.0, (MANY_RUNS, bound(1.0)), "contradicted", ""),
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
        ({"rigor": "statistical", "confidence": 0.99}, "statistical, at confidence 0.99"),
        ({"rigor": "approximate"}, "the approximate value 2.5 (an accountant) is within the claim; it carries no"),
        ({"bound": "estimate"}, "approximate value"),
        ({"assumptions": (Assumption(name="convex", status="unchecked"),)}, "under unchecked assumptions (convex)"),
        ({"scope": Scope(data="collection")}, "only for the declared collection of datasets"),
        ({"scope": Scope(data="this")}, "only for this dataset. Set over: this in the claim."),
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
        "Not proved: no proved upper bound applies to this claim (an accountant: its access is "
        "'final-model', and the claim's 'all-iterates'). Not refuted: no attack tested it."
    )


@pytest.mark.parametrize(
    "useless",
    [
        bound(1.0, printed=Printed(refuted=True, reason="wrong constant")),
        bound(1.0, assumptions=(Assumption(name="a", status="false"),)),
        bound(math.nan),
        bound(math.inf),
        bound(1.0, bound="lower"),
        bound(1.0, scope=Scope(data="this"), bound="estimate"),
    ],
)
def test_findings_that_back_no_verdict(useless: object) -> None:
    assert verdict(approx(3.0), useless).verdict == "open"  # type: ignore[arg-type]


def test_an_accountants_lower_end_never_refutes() -> None:
    tight = bound(5.0, lower=4.999)
    assert verdict(approx(3.0), tight).verdict == "open"
    assert verdict(approx(3.0), tight).lower is None
    assert verdict(approx(3.0, access="final-model"), tight).verdict == "open"


def test_a_certified_lower_bound_in_scope_refutes_and_weaker_ones_do_not() -> None:
    beyond = bound(3.5, bound="lower", scope=HERE)
    found = verdict(approx(3.0), beyond)
    assert (found.verdict, found.lower, found.lower_finding) == ("refuted", 3.5, 0)
    for weaker in (
        dataclasses.replace(beyond, rigor="theorem"),
        dataclasses.replace(beyond, rigor="statistical", confidence=0.95),
        dataclasses.replace(beyond, rigor="approximate"),
        dataclasses.replace(beyond, value=3.0),
        dataclasses.replace(beyond, assumptions=(Assumption(name="a", status="unchecked"),)),
    ):
        found = verdict(approx(3.0), weaker)
        assert found.verdict == "open"
        assert found.lower == weaker.value
    # Out of scope: a larger group, a smaller delta, all iterates where the claim is about the final model.
    for outside in (dataclasses.replace(beyond, at={"delta": 1e-9, "group_size": 2}), bound(3.5, 1e-12, bound="lower")):
        assert verdict(approx(3.0), outside).verdict == "open"
    assert verdict(approx(3.0, access="final-model"), beyond).verdict == "open"


def test_an_unknown_kind_of_evidence_is_an_error() -> None:
    with pytest.raises(ValueError, match="oracle"):
        verdict(approx(1.0), attack(1, 1, 1, kind="oracle"))


@pytest.mark.parametrize(
    ("verdict_name", "expect", "expected"),
    [
        ("proved", ("proved",), True),
        ("proved", ("supported",), True),
        ("supported", ("proved",), False),
        ("contradicted", ("refuted",), True),
        ("refuted", ("contradicted",), False),
        ("open", ("open", "supported"), True),
        ("refuted", ("open", "supported"), False),
        ("contradicted", ("open", "refuted"), True),
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


counts = st.integers(1, 400).flatmap(lambda r: st.tuples(st.integers(r, 500), st.just(r), st.integers(0, r)))


@settings(max_examples=150, deadline=None)
@given(counts, st.floats(0.0, 8.0), st.floats(0.0, 4.0), st.sampled_from([0.0, 1e-12, 1e-9, 1e-6, 1e-3]))
def test_never_proved_and_refuted_when_the_attack_agrees_with_the_bound(
    drawn: tuple[int, int, int], upper: float, slack: float, delta: float
) -> None:
    evidence = attack(*drawn)
    found = verdict(approx(upper + slack, delta=1e-3), bound(upper, delta=delta), evidence)
    own = verdict(approx(upper, delta=delta), evidence)
    if own.verdict != "refuted":
        assert found.verdict == "proved"
    else:
        assert found.verdict in ("proved", "refuted", "contradicted")


@settings(max_examples=60, deadline=None)
@given(counts, st.lists(st.floats(0.0, 8.0), min_size=2, max_size=5, unique=True), st.floats(0.0, 8.0))
def test_a_larger_claim_is_never_refuted_before_a_smaller_one(
    drawn: tuple[int, int, int], claimed: list[float], upper: float
) -> None:
    claims = [approx(epsilon, id=str(i)) for i, epsilon in enumerate(sorted(claimed))]
    found = audits.verdicts(audits.spec(*claims), bound(upper), attack(*drawn))
    names = [v.verdict for v in found]
    assert all(b != "refuted" or a in ("refuted", "contradicted") for a, b in pairwise(names))
    assert ("contradicted" in names) == all(n == "contradicted" for n in names)
