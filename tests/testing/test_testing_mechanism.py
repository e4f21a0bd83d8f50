"""The mechanism suite passes a good plugin, and each of its tests fails on a plugin that breaks what it demands."""

from __future__ import annotations

import dataclasses
import random
import unittest
from pathlib import Path
from random import Random

import pytest

from dpspec.contract import Diagnostic, Finding, FrozenMap, Schemas, Trial
from dpspec.registry.loader import Registry, resolve
from dpspec.testing import MechanismSuite, decreasing, increasing

TESTS = [name for name in dir(MechanismSuite) if name.startswith("test_")]


#: The message, and the first difference.
UNSEEDED = r"(?s)all randomness must come from context.seed\(index, ...\)\ntrials\[0\].evidence.luck: 0\."


def suite(registry: Registry, **attributes: object) -> MechanismSuite:
    """A suite on the scaffolded plugin; every call makes a new class, and so a new first run."""
    found = {"kind": "conformdemo", "registry": classmethod(lambda cls: registry), **attributes}
    made: MechanismSuite = type("Suite", (MechanismSuite,), found)()
    return made


@pytest.fixture(scope="module")
def good(demo):
    return suite(demo, monotone={"mechanism.scale": decreasing(0.5, 2.0)})


@pytest.fixture
def base(demo):
    return resolve("dpspec_conformdemo.audit:ConformdemoAudit")


@pytest.mark.parametrize("name", TESTS)
def test_a_good_plugin_passes(good, name):
    getattr(good, name)()


def refuses(bad: MechanismSuite, test: str, match: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=match):
        getattr(bad, test)()


def test_conclude_may_not_read_files(with_audit, base):
    class Odd(base):
        def conclude(self, spec, trials):
            Path(__file__).read_text()
            yield from super().conclude(spec, trials)

    refuses(suite(with_audit(Odd)), "test_conclude_is_pure", "touches the outside: open .*test_testing_mechanism")


def test_conclude_may_not_draw_from_global_generators(with_audit, base):
    class Odd(base):
        def conclude(self, spec, trials):
            random.random()
            yield from super().conclude(spec, trials)

    refuses(suite(with_audit(Odd)), "test_conclude_is_pure", "draws from the global generator of random")


def test_conclude_may_not_change_its_mind(with_audit, base):
    class Odd(base):
        def conclude(self, spec, trials):
            for outcome in super().conclude(spec, trials):
                if isinstance(outcome, Finding):
                    outcome = dataclasses.replace(outcome, value=outcome.value * Random().random())
                yield outcome

    bad = suite(with_audit(Odd))
    refuses(bad, "test_conclude_is_pure", "different answers")
    refuses(bad, "test_result_can_be_verified", r"findings\[\d\].value")


def test_trials_need_the_seed_of_the_context(with_audit, base):
    class Unseeded(base):
        def trials(self, inputs, context, indices):
            for trial in super().trials(inputs, context, indices):
                yield dataclasses.replace(trial, evidence=FrozenMap({**trial.evidence, "luck": Random().random()}))

    class Fixed(base):
        def trials(self, inputs, context, indices):
            yield from super().trials(inputs, Same(context), indices)

    class Same:
        def __init__(self, context):
            self.data = context.data

        def seed(self, index, *purpose):
            return index

        def cancelled(self):
            return False

    refuses(suite(with_audit(Unseeded)), "test_trials_are_reproducible_by_seed", UNSEEDED)
    refuses(suite(with_audit(Fixed)), "test_trials_are_reproducible_by_seed", "do not depend on audit.seed")


def test_trial_inputs_may_not_hold_claims(with_audit, base):
    class Odd(base):
        def trial_inputs(self, spec):
            return FrozenMap({**super().trial_inputs(spec), "claims": spec.to_json()["claims"]})

    refuses(suite(with_audit(Odd)), "test_trial_inputs_hold_nothing_that_trials_may_not_read", "change with the claims")


def test_trial_inputs_hold_the_seed(with_audit, base):
    class Odd(base):
        def trial_inputs(self, spec):
            inputs = super().trial_inputs(spec)
            return FrozenMap({**inputs, "audit": {**inputs["audit"], "seed": 0}})

    refuses(suite(with_audit(Odd)), "test_trial_inputs_hold_nothing_that_trials_may_not_read", "leave audit.seed out")


def test_trial_inputs_may_not_vary(with_audit, base):
    class Odd(base):
        def trial_inputs(self, spec):
            return FrozenMap({**super().trial_inputs(spec), "now": Random().random()})

    refuses(suite(with_audit(Odd)), "test_stored_trials_are_found_again", "2 stored trials were made again")


def test_evidence_must_be_small_and_finite(with_audit, base):
    def saying(value):
        class Odd(base):
            def trials(self, inputs, context, indices):
                for index in indices:
                    yield Trial(index=index, evidence=FrozenMap({"groups": [], "value": value}))

        return Odd

    refuses(suite(with_audit(saying("x" * (1 << 20)))), "test_evidence_is_small_json", "more than the 1048576 allowed")
    refuses(suite(with_audit(saying(float("nan")))), "test_evidence_is_small_json", "(?i)nan|not JSON compliant")


def test_bounds_must_move_as_declared(with_audit, demo, base):
    wrong = suite(demo, monotone={"mechanism.scale": increasing(0.5, 2.0)})
    refuses(wrong, "test_bounds_are_monotone_where_declared", "is not increasing: 2.0 at 0.5, 0.5 at 2.0")
    blind = suite(demo, monotone={"mechanism.label": increasing(0, 1)})
    refuses(blind, "test_bounds_are_monotone_where_declared", "does not move")

    class Silent(base):
        def bound(self, spec, context):
            return ()

    silent = suite(with_audit(Silent), monotone={"mechanism.scale": decreasing(0.5, 2.0)})
    refuses(silent, "test_bounds_are_monotone_where_declared", "there is no upper bound for any of")


def test_check_may_not_refuse_the_example(with_audit, base):
    class Odd(base):
        def check(self, spec, facts):
            yield Diagnostic(code="bad-value", message="never good enough", path=("mechanism", "scale"))

    refuses(suite(with_audit(Odd)), "test_example_is_valid", "(?s)check refuses the example.*never good enough")


def test_an_invalid_example_is_shown_with_its_error(with_audit, demo):
    example = demo.catalog.mechanisms["conformdemo"].provider.example
    bad = suite(with_audit(example=example.replace("scale:", "scael:")))
    refuses(bad, "test_example_is_valid", "(?s)not a valid spec.*example.yaml:7.*unknown key 'scael'")
    unexpected = suite(with_audit(example=example.replace("epsilon: 0.1, expect: refuted", "epsilon: 0.1")))
    refuses(unexpected, "test_example_runs_as_expected", "not as expected: too-good is refuted")


def test_overrides_hold_in_every_test(demo):
    small = suite(demo, overrides=("audit.releases=50", "audit.runs=1"))
    assert [s.audit.runs for s in small.laboratory().load()] == [1]
    assert small.laboratory().first.trained == 1


def test_an_example_without_trials_skips_their_tests(with_audit, demo):
    example = demo.catalog.mechanisms["conformdemo"].provider.example
    head = example[: example.index("audit:")].replace(", expect: refuted", ", expect: open")
    bounds_only = suite(with_audit(example=head))
    bounds_only.test_example_runs_as_expected()
    with pytest.raises(unittest.SkipTest, match="the example has no trials"):
        bounds_only.test_conclude_is_pure()


def test_checking_must_stay_light(with_audit, module_file):
    module_file("heavy_audit", "import scipy\nfrom dpspec_conformdemo.audit import ConformdemoAudit as Heavy\n")
    bad = suite(with_audit(reference="heavy_audit:Heavy"))
    refuses(bad, "test_checking_a_spec_imports_neither_torch_nor_scipy", "checking a spec imports scipy")


def test_schemas_must_be_described_and_defaults_valid(with_audit):
    properties = {"scale": {"type": "number", "default": "two"}}
    schemas = Schemas(mechanism={"type": "object", "properties": properties, "additionalProperties": False})
    bad = suite(with_audit(schemas=schemas))
    test = "test_schemas_are_valid_and_every_property_is_described"
    refuses(bad, test, "schemas.mechanism.properties.scale: has no description")
    refuses(bad, test, "schemas.mechanism.scale: its default 'two' is invalid")


def test_a_kind_that_is_not_installed_is_named(demo):
    refuses(suite(demo, kind="other"), "test_the_code_it_names_exists", "no plugin offers mechanism 'other'")
