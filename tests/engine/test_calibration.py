"""Calibration of a spec: both ends were judged, validity limits the range, and directions are found by evaluating."""

import dataclasses
import math
import os

import pytest
from support import counting as support
from support.specs import spec_of

from dpspec.contract import Diagnostic, Finding, FrozenMap, Scope
from dpspec.engine.calibration import Evaluations, calibrate_spec
from dpspec.errors import UsageError
from dpspec.registry.loader import load_catalog

KEY = "mechanism.epsilon"


@pytest.fixture
def load(tmp_path):
    return lambda *overrides, more="": support.load(tmp_path, *overrides, text=support.EXAMPLE + more)


def upper(value, **changes):
    at = FrozenMap({"delta": 0.0})
    found = Finding(quantity="epsilon", value=value, bound="upper", rigor="theorem", method="m", source="s", at=at)
    return dataclasses.replace(found, **changes)


@pytest.fixture
def yielding(monkeypatch):
    def install(findings):
        def bound(self, spec, context):
            context.progress(1, 2, "thinking")
            context.progress(2, 2, "thinking")
            yield from findings(spec)

        monkeypatch.setattr(support.CountingAudit, "bound", bound)

    return install


@pytest.fixture
def bounding(yielding):
    def install(value, **changes):
        yielding(lambda spec: [upper(value(spec.mechanism.get("factor", 1.0), spec.mechanism["epsilon"]), **changes)])

    return install


@pytest.fixture
def refusing(monkeypatch):
    def install(wrong, message, *path):
        def check(self, spec, facts):
            if wrong(spec):
                yield Diagnostic(code="bad-value", message=message, path=path)

        monkeypatch.setattr(support.CountingAudit, "check", check)

    return install


def sized(value, size):
    return upper(value, at=FrozenMap({"delta": 0.0, "group_size": size}))


def test_bounds_use_one_thread_as_in_a_run(load, yielding, monkeypatch):
    threads = set()

    def noting(spec):
        threads.add(os.environ.get("OMP_NUM_THREADS"))
        return [upper(spec.mechanism["epsilon"])]

    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    yielding(noting)
    (spec,) = load()
    calibrate_spec(spec, support.catalog(), vary=KEY)
    assert threads == {"1"}


def test_the_largest_value_is_the_claims_own(load):
    (spec,) = load()
    found = calibrate_spec(spec, support.catalog(), vary=KEY)
    assert found.claims == ("held",)  # the other claim is there to be refuted
    assert not found.more_helps
    assert found.proved.value <= 1.5 < found.unproved.value
    assert found.unproved.value - found.proved.value <= 1e-3 * found.unproved.value
    (verdict,) = found.proved.verdicts
    assert (verdict.claim, verdict.verdict, verdict.upper) == ("held", "proved", found.proved.value)
    (verdict,) = found.unproved.verdicts
    assert (verdict.verdict, verdict.provable) == ("open", found.unproved.value)
    assert found.contradictions == ()
    assert found.evaluations <= 8
    assert support.RAN == []


@pytest.mark.parametrize("written", [(), ("mechanism.factor=0",)])
def test_a_value_that_gives_no_scale_is_no_obstacle(load, bounding, written):
    bounding(lambda factor, epsilon: math.inf if factor == 0 else epsilon / factor)
    found = calibrate_spec(load(*written)[0], support.catalog(), vary="mechanism.factor")
    assert found.unproved.value < 1 / 1.5 <= found.proved.value


def test_all_chosen_claims_have_to_be_proved(load):
    (spec,) = load()
    found = calibrate_spec(spec, support.catalog(), vary=KEY, claims=["held", "broken", "held"])
    assert found.claims == ("held", "broken")
    assert found.proved.value <= 0.2 < found.unproved.value
    assert [v.verdict for v in found.unproved.verdicts] == ["proved", "open"]


def test_a_claims_own_number(load):
    (spec,) = load()
    found = calibrate_spec(spec, support.catalog(), vary="claims.held.epsilon")
    assert found.more_helps
    assert found.unproved.value < 1.0 <= found.proved.value
    assert found.key.place == "claims.held.epsilon"
    by_position = calibrate_spec(spec, support.catalog(), vary="claims.0.epsilon")
    assert by_position == found


GROUP = """\
dpspec: 1
name: gaps
mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: SAMPLING
  steps: STEPS
data: {kind: declared, records: 5000}
threat_model: {adjacency: zero-out}
claims:
  - {id: one, kind: approx-dp, epsilon: EPSILON, delta: 1e-5}
"""
ALLOCATED = "{scheme: random-allocation, epoch_steps: 3}"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("sampling", "steps", "epsilon", "vary", "tried"),
    [
        ("{scheme: full}", 3, 12.0, "mechanism.steps", range(1, 9)),
        (ALLOCATED, 15, 5.0, "mechanism.steps", range(1, 22)),
        ("{scheme: poisson, rate: 0.05}", 10, 1.5, "mechanism.steps", range(1, 25)),
    ],
)
def test_the_value_is_the_last_of_all_valid_ones(tmp_path, sampling, steps, epsilon, vary, tried):
    """Brute force: every integer is validated, and each valid one is bounded and judged."""
    catalog = load_catalog()
    text = GROUP.replace("SAMPLING", sampling).replace("STEPS", str(steps)).replace("EPSILON", str(epsilon))
    spec = spec_of(tmp_path, text)
    found = calibrate_spec(spec, catalog, vary=vary)
    evaluations = Evaluations(spec, catalog, found.key, found.claims)
    proved = {value: evaluations.at(value).proved for value in tried if not evaluations.wrong(value)}
    assert len(set(proved.values())) == 2
    best = (min if found.more_helps else max)(value for value, holds in proved.items() if holds)
    beyond = (max if found.more_helps else min)(value for value, holds in proved.items() if not holds)
    assert (found.proved.value, found.unproved.value, found.complete) == (best, beyond, True)
    assert found.unproved.verdicts


def test_a_value_without_valid_neighbors_is_refused(load, yielding, refusing):
    refusing(lambda spec: spec.claims[0].group_size != 9, "that size is not covered", "claims", 0)
    yielding(lambda spec: [sized(0.9, 9)])
    with pytest.raises(UsageError, match=r"group_size = 9 has no valid neighbor \(8 is not valid: .* set other values"):
        calibrate_spec(
            load("threat_model.group_size=9", "claims.held.group_size=9")[0],
            support.catalog(),
            vary="claims.held.group_size",
        )


def test_a_valid_value_beyond_an_invalid_one_makes_the_answer_incomplete(load, yielding, refusing):
    size = lambda spec: spec.claims[0].group_size  # noqa: E731
    refusing(lambda spec: size(spec) not in (1, 2, 6), "that size is not covered", "claims", 0)
    yielding(lambda spec: [sized(0.1 * size(spec), size(spec))])
    found = calibrate_spec(load("threat_model.group_size=9")[0], support.catalog(), vary="claims.held.group_size")
    assert (found.proved.value, found.unproved, found.valid_beyond, found.complete) == (2, None, 6, False)
    assert found.limit == "3 is not valid: that size is not covered"


def test_no_value_proves_the_claim(load, bounding):
    bounding(lambda factor, epsilon: 2.0 + 1.0 / factor)
    found = calibrate_spec(load()[0], support.catalog(), vary="mechanism.factor")
    assert found.proved is None
    assert found.unproved.value == 1e12
    assert found.limit == "the range ends at 1000000000000"
    assert [v.verdict for v in found.unproved.verdicts] == ["open"]


def test_values_that_cannot_be_computed_prove_nothing(load, bounding):
    def value(factor, epsilon):
        if epsilon > 1.25:
            raise OverflowError("too large for this machine")
        return epsilon

    bounding(value)
    found = calibrate_spec(load()[0], support.catalog(), vary=KEY)
    assert found.proved.value <= 1.25 < found.unproved.value
    assert found.unproved.problem == "no bound could be computed: too large for this machine"
    assert found.unproved.verdicts == ()


def test_a_nonmonotone_bound_is_reported(load, bounding):
    bounding(lambda factor, epsilon: abs(epsilon - 2.0) + 1.0)
    found = calibrate_spec(load("mechanism.epsilon=1.6")[0], support.catalog(), vary=KEY)
    assert found.more_helps
    assert found.unproved.value < 1.5 <= found.proved.value
    assert found.contradictions == pytest.approx((2 * found.proved.value,), rel=1e-3)


def test_a_nonmonotone_bound_below_its_proof_is_reported(load, bounding):
    bounding(lambda factor, epsilon: abs(epsilon - 2.0) + 1.6)
    found = calibrate_spec(load("mechanism.epsilon=1.4")[0], support.catalog(), vary=KEY)
    assert found.proved is None
    assert found.contradictions == (found.unproved.value,) == (1e12,)


def test_a_key_without_effect(load):
    with pytest.raises(
        UsageError, match=r"bound for held does not depend on mechanism\.factor; vary another: mechanism\.epsilon$"
    ):
        calibrate_spec(load()[0], support.catalog(), vary="mechanism.factor")
    with pytest.raises(UsageError, match=r"each claim states its group size: claims\.ID\.group_size"):
        calibrate_spec(load()[0], support.catalog(), vary="threat_model.group_size")


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (lambda factor, epsilon: 1.0 + 1e-13 * factor, {}),  # round-off
        (lambda factor, epsilon: 1.0 + 1e-3 * math.sin(factor), {"lower": 0.99}),  # intervals that meet
    ],
)
def test_what_is_no_effect(load, bounding, value, changes):
    bounding(value, **changes)
    with pytest.raises(UsageError, match="does not depend"):
        calibrate_spec(load()[0], support.catalog(), vary="mechanism.factor")


def test_the_proving_bound_decides_where_its_lower_end_stays(load, bounding):
    bounding(lambda factor, epsilon: epsilon, lower=0.5)  # as of a declared guarantee, whose pair is not known
    found = calibrate_spec(load()[0], support.catalog(), vary=KEY)
    assert not found.more_helps
    assert found.proved.value < found.unproved.value


def test_claims_that_pull_apart(load, yielding):
    def bounds(spec):
        epsilon = spec.mechanism["epsilon"]
        return [upper(epsilon, scope=Scope(direction="add")), upper(1.0 / epsilon, scope=Scope(direction="remove"))]

    yielding(bounds)
    (spec,) = load("claims.held.direction=add", "claims.broken.direction=remove")
    with pytest.raises(UsageError, match=r"increasing mechanism\.epsilon improves broken and worsens held"):
        calibrate_spec(spec, support.catalog(), vary=KEY, claims=["held", "broken"])
    assert calibrate_spec(spec, support.catalog(), vary=KEY, claims=["broken"]).proved.value >= 5.0


def test_claims_that_cannot_be_chosen(load):
    with pytest.raises(UsageError, match=r"no claim 'hold'; did you mean 'held'\?"):
        calibrate_spec(load()[0], support.catalog(), vary=KEY, claims=["hold"])
    (spec,) = load("claims.held.expect=[open, refuted]")
    with pytest.raises(UsageError, match="no claim about privacy that is expected to be proved"):
        calibrate_spec(spec, support.catalog(), vary=KEY)


def test_an_audit_that_cannot_run_is_no_obstacle(load, refusing):
    refusing(lambda spec: spec.audit is not None, "cannot attack", "audit")
    assert calibrate_spec(load()[0], support.catalog(), vary=KEY).proved is not None
