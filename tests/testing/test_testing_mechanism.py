"""The mechanism suite passes a good plugin, and each of its tests fails on a plugin that breaks what it demands."""

import dataclasses
import random
import unittest
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from dpspec.contract import Check, Diagnostic, Evidence, Finding, FrozenMap, Schemas, Scope, Series
from dpspec.registry.loader import Registry, resolve
from dpspec.testing import MechanismSuite, constant, decreasing, increasing

SCALE = {"mechanism.scale": decreasing(0.5, 2.0), "mechanism.label": constant(0, 1)}
TESTS = [name for name in dir(MechanismSuite) if name.startswith("test_")]


def suite(registry: Registry, **attributes: object) -> MechanismSuite:
    """A suite on the scaffolded plugin; every call makes a new class, and so a new first run."""
    found = {"kind": "conformdemo", "registry": classmethod(lambda cls: registry), **attributes}
    made: MechanismSuite = type("Suite", (MechanismSuite,), found)()
    return made


@pytest.fixture(scope="module")
def good(demo):
    return suite(demo, monotone=SCALE)


@pytest.fixture
def base(demo):
    return resolve("dpspec_conformdemo:Conformdemo")


@pytest.mark.family
@pytest.mark.parametrize("name", TESTS)
def test_a_good_plugin_passes(good, name):
    getattr(good, name)()


def refuses(bad: MechanismSuite, test: str, match: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=match):
        getattr(bad, test)()


def with_evidence(**values):
    return lambda trials, *_: [dataclasses.replace(t, evidence=FrozenMap({**t.evidence, **values})) for t in trials]


def with_luck(trials, *_):
    return [dataclasses.replace(t, evidence=FrozenMap({**t.evidence, "luck": Random().random()})) for t in trials]


def with_values_times_chance(outcomes, *_):
    return [
        dataclasses.replace(o, value=o.value * Random().random()) if isinstance(o, Finding) else o for o in outcomes
    ]


def each_bound(value=None, **changes):
    """Replace fields of every bound; ``value`` is a function of its value."""

    def change(found, *_):
        findings = [f for f in found if isinstance(f, Finding)]
        moved = [dataclasses.replace(f, value=value(f.value)) if value else f for f in findings]
        return [dataclasses.replace(f, **changes) for f in moved]

    return change


def fails(*_):
    raise ZeroDivisionError("of all things")


def more(*outcomes):
    return lambda found, *_: [*found, *outcomes]


def a_series(*y):
    columns = FrozenMap({"x": [1, 2], "y": list(y)})
    units = FrozenMap({"x": ""})
    return Series(name="s", title="s", columns=columns, units=units, rigor="theorem", source="here")


THIS = Scope(data="this", pipeline="executed")
COUNTS = FrozenMap({"trials": 5, "successes": "5"})
EVIDENCE = Evidence(id="e", kind="binomial", statistics=COUNTS, scope=THIS, method="m", source="s", quantity="q")
CHECK = Check(assumption="noise-scale", test="", p_value=0.5, observed="measured")
OUTCOMES = "test_outcomes_are_well_formed"
SCHEMA = "test_result_is_of_the_published_schema"
MONOTONE = "test_bounds_are_monotone_where_declared"
INPUTS = "test_trial_inputs_hold_nothing_that_trials_may_not_read"
REPRODUCIBLE = "test_trials_are_reproducible_by_seed"
RUNS = "test_example_runs_as_expected"


@pytest.mark.family
@pytest.mark.parametrize(
    ("method", "change", "test", "match"),
    [
        (
            "conclude",
            lambda outcomes, *_: [*outcomes, Path(__file__).read_text()][:-1],
            "test_conclude_is_pure",
            "touches the outside: open .*test_testing_mechanism",
        ),
        (
            "conclude",
            lambda outcomes, *_: [*outcomes, random.random()][:-1],
            "test_conclude_is_pure",
            "draws from the global generator of random",
        ),
        ("conclude", with_values_times_chance, "test_conclude_is_pure", "different answers"),
        ("conclude", with_values_times_chance, "test_result_can_be_verified", r"findings\[\d\].value"),
        (
            "trials",
            with_luck,
            REPRODUCIBLE,
            r"(?s)all randomness must come from context.seed\(index, ...\)\ntrials\[0\].evidence.luck: 0\.",
        ),
        ("trials", with_evidence(x="x" * (1 << 20)), RUNS, "more than the 1048576 allowed"),
        ("trials", with_evidence(x=float("nan")), RUNS, "(?i)nan|not JSON compliant"),
        ("trials", with_evidence(groups=[{"hits": np.int64(3)}]), RUNS, r"groups\[0\].hits is a numpy.int64"),
        (
            "trials",
            lambda trials, *_: [dataclasses.replace(t, arrays={"scores": lambda: 1}) for t in trials],
            RUNS,
            "the array 'scores' is not an array of numbers",
        ),
        (
            "trial_inputs",
            lambda inputs, spec: FrozenMap({**inputs, "claims": spec.to_json()["claims"]}),
            INPUTS,
            "change with the claims",
        ),
        (
            "trial_inputs",
            lambda inputs, spec: FrozenMap({**inputs, "audit": {**inputs["audit"], "seed": 0}}),
            INPUTS,
            "leave audit.seed out",
        ),
        (
            "trial_inputs",
            lambda inputs, spec: FrozenMap({**inputs, "now": Random().random()}),
            "test_stored_trials_are_found_again",
            "2 stored trials were trained again",
        ),
        (
            "trial_inputs",
            lambda inputs, spec: FrozenMap({**inputs, "loss": print}),
            INPUTS,
            "loss is a builtin_function_or_method; JSON holds",
        ),
        (
            "check",
            lambda found, *_: [Diagnostic(code="bad-value", message="never good enough", path=("mechanism", "scale"))],
            "test_example_is_valid",
            "(?s)check refuses the example.*never good enough",
        ),
        ("bound", each_bound(lambda value: 1.0 / value), MONOTONE, "group_size 1 is not decreasing: 0.5 at"),
        ("bound", each_bound(lambda value: value / 3.0), RUNS, "theory, implementation or attack is wrong"),
        ("bound", each_bound(bound="lower"), OUTCOMES, "claim 'one' needs an upper bound of epsilon, which is"),
        ("bound", each_bound(bound="uper"), RUNS, "it.bound must be one of upper, lower, estimate"),
        ("bound", each_bound(source=" "), OUTCOMES, "the audit yields finding 'epsilon': its source is empty"),
        ("bound", each_bound(lambda value: float("nan")), RUNS, "its value is NaN: if nothing can be computed, yield"),
        ("bound", each_bound(quantity="epsilonn"), OUTCOMES, "no quantity 'epsilonn'; did you mean 'epsilon'?"),
        ("bound", each_bound(rigor="statistical"), OUTCOMES, "it is statistical and states no confidence"),
        (
            "bound",
            each_bound(scope=Scope(adjacency="replace-one")),
            OUTCOMES,
            "does not apply to it: its adjacency is 'replace-one', and the claim's 'add-remove'",
        ),
        ("bound", each_bound(scope=Scope(data="some")), OUTCOMES, r"its scope's data is 'some' \(valid: all, coll"),
        ("bound", lambda found, *_: [{"epsilon": 1.0}], RUNS, "yields a dict, not a Finding, Series, Check or"),
        ("bound", more(a_series(1)), RUNS, r"'s', which cannot be kept: its columns must be lists of equal length"),
        ("bound", more(a_series(1, 2)), OUTCOMES, "series 's': its columns y have no unit"),
        ("conclude", more(CHECK), OUTCOMES, "check 'noise-scale': its test is empty"),
        ("conclude", more(EVIDENCE), SCHEMA, "evidence 'e' of kind 'binomial' lacks the counts successes"),
        ("check", fails, "test_example_is_valid", r"check raises ZeroDivisionError: of all things \(testing/"),
        ("trials", fails, RUNS, r"the run raises ZeroDivisionError: of all things \(testing/test_testing_mechanism"),
    ],
)
def test_a_step_that_breaks_the_contract_is_refused(with_audit, base, method, change, test, match):
    def step(self, *arguments):
        return change(getattr(base, method)(self, *arguments), *arguments)

    few = () if test == RUNS else ("audit.releases=100",)  # verdicts need all
    odd = suite(with_audit(type("Odd", (base,), {method: step})), monotone=SCALE, overrides=few)
    refuses(odd, test, match)


def test_a_descriptor_that_cannot_travel(with_audit):
    summary = type("Text", (str,), {})("a local class")
    refuses(suite(with_audit(summary=summary)), "test_the_descriptor_can_travel", "cannot be pickled, which other")


@pytest.mark.ci
def test_trials_need_the_seed_of_the_context(with_audit, base):
    class Fixed(base):
        def trials(self, inputs, context, indices):
            same = SimpleNamespace(data=context.data, cancelled=lambda: False, seed=lambda index, *purpose: index)
            yield from super().trials(inputs, same, indices)

    refuses(suite(with_audit(Fixed)), REPRODUCIBLE, "do not depend on audit.seed")


def test_bounds_must_move_as_declared(with_audit, demo, base):
    wrong = suite(demo, monotone={"mechanism.scale": increasing(0.5, 2.0)})
    refuses(wrong, "test_bounds_are_monotone_where_declared", "is not increasing: 2.0 at 0.5, 0.5 at 2.0")
    blind = suite(demo, monotone={"mechanism.label": increasing(0, 1)})
    refuses(blind, "test_bounds_are_monotone_where_declared", "does not move")

    class Silent(base):
        def bound(self, spec, context):
            return ()

    silent = suite(with_audit(Silent), monotone=SCALE)
    refuses(silent, "test_bounds_are_monotone_where_declared", "no upper bound at any of")


def test_an_invalid_example_is_shown_with_its_error(with_audit, demo):
    example = demo.catalog.mechanisms["conformdemo"].provider.example
    bad = suite(with_audit(example=example.replace("scale:", "scael:")))
    refuses(bad, "test_example_is_valid", "(?s)not a valid spec.*example.yaml:7.*unknown key 'scael'")
    unexpected = suite(with_audit(example=example.replace(", expect: refuted}", "}")))
    refuses(unexpected, "test_example_runs_as_expected", "not as expected: too-good is refuted")


def test_overrides_hold_in_every_test(demo):
    small = suite(demo, overrides=("audit.releases=50", "audit.runs=1"))
    assert [s.audit.runs for s in small.load()] == [1]
    assert small.first().trained == 1


def test_an_example_without_trials_skips_their_tests(with_audit, demo):
    example = demo.catalog.mechanisms["conformdemo"].provider.example
    head = example[: example.index("audit:")].replace(", expect: refuted", ", expect: open")
    bounds_only = suite(with_audit(example=head))
    bounds_only.test_example_runs_as_expected()
    with pytest.raises(unittest.SkipTest, match="the example has no trials"):
        bounds_only.test_conclude_is_pure()


def test_checking_must_stay_light(with_audit, module_file):
    module_file("heavy_audit", "import scipy\nfrom dpspec_conformdemo import Conformdemo as Heavy\n")
    bad = suite(with_audit(reference="heavy_audit:Heavy"))
    refuses(bad, "test_checking_a_spec_imports_neither_torch_nor_scipy", "imports scipy when a spec is checked")


def test_schemas_must_be_described_and_defaults_valid(with_audit):
    properties = {"scale": {"type": "number", "default": "two"}}
    schemas = Schemas(mechanism={"type": "object", "properties": properties, "additionalProperties": False})
    bad = suite(with_audit(schemas=schemas))
    test = "test_schemas_are_valid_and_every_property_is_described"
    refuses(bad, test, "schemas.mechanism.properties.scale: has no description")
    refuses(bad, test, "schemas.mechanism.scale: its default 'two' is invalid")


def test_a_kind_that_is_not_installed_is_named(demo):
    refuses(suite(demo, kind="other"), "test_the_code_it_names_exists", "no plugin offers mechanism 'other'")
