"""Conclusions from bounds and trials: sizes of data, invalid outcomes, and a backend's constants."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.audits import HERE, MEASURED, approx, attack, bound, check, spec
from support.specs import document

from dpspec.contract import (
    Assumption,
    Audit,
    Facts,
    Finding,
    FrozenMap,
    Plan,
    Scope,
    Section,
    Series,
    Trial,
)
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.findings import CONSTANTS as NAME
from dpspec.contract.results import AuditResult
from dpspec.engine.calibration import calibrate_spec
from dpspec.engine.preparing.assumptions import with_assumptions
from dpspec.engine.preparing.prepare import Prepared
from dpspec.engine.preparing.providers import constants_of
from dpspec.engine.running.conclude import conclude, with_data_size
from dpspec.engine.running.runner import run
from dpspec.engine.storage.stored_trials import AuditState
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import ExitCode, PluginError, UsageError
from dpspec.language.load import from_document
from dpspec.registry.loader import load_catalog
from dpspec.training.providers import BACKENDS, opacus_constants

ALIKE = "same-missing-values"


def prepared(*, missing_allowed: bool = False, records_per_unit: int = 1, **data: Any) -> Prepared:
    facts, spec = (
        Facts(records=569, features=3, classes=2),
        SimpleNamespace(data=data, records_per_unit=records_per_unit),
    )
    return prepared_with(facts=facts, spec=spec, missing=missing_allowed)


def prepared_with(**fields: Any) -> Prepared:
    found = object.__new__(Prepared)
    for name, value in fields.items():
        object.__setattr__(found, name, value)
    return found


@pytest.mark.parametrize(
    ("scope", "group_size", "least"),
    [
        (HERE, 1, 568),
        (HERE, 8, 561),
        (dataclasses.replace(HERE, adjacency="replace-one"), 1, 569),
        (dataclasses.replace(HERE, data="planted"), 8, 569),
        (dataclasses.replace(HERE, min_records=12), 1, 12),
        (dataclasses.replace(HERE, data="all"), 1, 0),
        (MEASURED, 1, 568),
        (Scope(data="this"), 1, 0),
    ],
)
def test_both_neighbours_of_an_attack_hold_so_many_records(scope: Scope, group_size: int, least: int) -> None:
    for outcome in (
        attack(9, 9, 9, scope=scope, group_size=group_size),
        bound(1.0, scope=scope, group_size=group_size),
    ):
        found: Any = with_data_size(outcome, prepared())
        assert found.scope.min_records == least
        assert dataclasses.replace(found, scope=outcome.scope) == outcome
    if scope == HERE:  # a user may leave with all records
        of_users = with_data_size(attack(9, 9, 9, scope=scope, group_size=group_size), prepared(records_per_unit=4))
        assert of_users.scope.min_records == 569 - 4 * group_size


def test_neighbours_miss_the_same_entries_without_missing_values() -> None:
    planted = dataclasses.replace(HERE, data="planted")

    def neighbours(scope: Scope, data: Prepared) -> str:
        return with_data_size(attack(9, 9, 9, scope=scope), data).scope.neighbours

    assert neighbours(HERE, prepared()) == neighbours(planted, prepared()) == ALIKE
    assert neighbours(HERE, prepared(missing_allowed=True)) == ALIKE
    # A canary may have missing values if the mechanism accepts them, and any record if the data declares them.
    assert neighbours(planted, prepared(missing_allowed=True)) == "all"
    assert neighbours(HERE, prepared(missing_allowed=True, missing=["?"])) == "all"
    said = dataclasses.replace(planted, neighbours=ALIKE)
    assert neighbours(said, prepared(missing_allowed=True)) == ALIKE


FINDING = bound(1.0)
COUNTS = FrozenMap({"present": 3, "absent": 2, "true_positives": 3, "false_positives": 0})
EVIDENCE = attack(1, 1, 1, kind="many-run", statistics=COUNTS)
TOO_MANY = FrozenMap({"trials": 3, "successes": 4})
CHECK = check(0.5, "noise")


class Yields(Audit):
    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = outcomes

    def bound(self, spec: Any, context: Any) -> Any:
        return ()

    def plan(self, spec: Any, facts: Any) -> Plan:
        return Plan(chunks=((0,),), seconds=0.0, memory_bytes=0)

    def conclude(self, spec: Any, trials: Any) -> Any:
        return self.outcomes


ACCURACY = dataclasses.replace(FINDING, quantity="accuracy", bound="estimate", rigor="approximate")


def concluded(*outcomes: Any, bounds: Any = ()) -> Any:
    prepared = prepared_with(
        audit=Yields(*outcomes),
        spec=spec(approx()),
        offers={},
        facts=Facts(records=100, features=1, classes=2),
        constants=Assumption(name=NAME, status="by-construction"),
    )
    return conclude(AuditState(prepared=prepared, bounds=bounds), [Trial(index=0, evidence=FrozenMap())])


def test_what_is_sound_is_kept() -> None:
    series = Series(
        name="s", title="t", columns=FrozenMap({"x": (1, 2)}), units=FrozenMap(), rigor="approximate", source="s"
    )
    found = concluded(EVIDENCE, series, bounds=[FINDING])
    note = dataclasses.replace(EVIDENCE, quantity="accuracy")  # of no claim and no bound
    assert [e.statistics for e in concluded(note).evidence] == [note.statistics]
    placed = dataclasses.replace(EVIDENCE.scope, min_records=99, neighbours="same-missing-values")
    assert found.evidence == (dataclasses.replace(EVIDENCE, scope=placed),)
    assert (found.findings, found.series[0]) == ((FINDING,), series)


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (dataclasses.replace(FINDING, rigor="proven"), "yields a finding whose rigor is 'proven' (valid: certified"),  # type: ignore[arg-type]
        (dataclasses.replace(EVIDENCE, kind="many_run"), "'many_run' tests no privacy curve (valid kinds: many-run"),
        (dataclasses.replace(EVIDENCE, statistics=FrozenMap()), "lacks the counts present, absent"),
        (
            dataclasses.replace(EVIDENCE, quantity="accuracy"),
            "of kind 'many-run' tests no metric (valid kinds: average, binomial, bounded-average, bounded-mean)",
        ),
        (
            dataclasses.replace(EVIDENCE, quantity="accuracy", kind="binomial", statistics=TOO_MANY),
            "counts more than there can be",
        ),
        (dataclasses.replace(CHECK, p_value=1.5), "yields a check of 'noise' whose p-value is 1.5"),
        (dataclasses.replace(CHECK, measured=float("nan")), "yields a check that cannot be kept: its measured is NaN"),
        ({"epsilon": 1.0}, "yields a dict, not a Finding, Series, Check or Evidence"),
    ],
)
def test_what_is_not_is_the_plugins_fault(outcome: Any, says: str) -> None:
    with pytest.raises(PluginError) as caught:
        concluded(outcome, bounds=[ACCURACY])
    assert caught.value.exit_code is ExitCode.PLUGIN
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"mechanism {spec(approx()).mechanism.kind!r} yields ")


DOCUMENT = document(training={"backend": "native"})


def saying(constants: Assumption | str, distribution: str = "somebody's") -> Catalog:
    catalog = load_catalog()
    native = catalog.backends["native"]
    provider = dataclasses.replace(native.provider, constants=constants)
    offered = dataclasses.replace(native, provider=provider, distribution=distribution)
    return dataclasses.replace(catalog, backends={**catalog.backends, "native": offered})


def verdict(tmp_path: Path, constants: Assumption | str) -> AuditResult:
    catalog = saying(constants)
    (audit,) = run([from_document(DOCUMENT, catalog)], catalog, store=Store(tmp_path), train=False).audits
    return audit


def said(status: str) -> Assumption:
    return Assumption(name=NAME, status=status, text="the divisor is the number of records")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("constants", "expected", "status"),
    [
        (said("by-construction"), "proved", "reported"),
        (said("reported"), "proved", "reported"),
        ("", "supported", "unchecked"),
        (said("unchecked"), "supported", "unchecked"),
        (said("false"), "open", "false"),
    ],
)
def test_what_a_backend_says_decides_what_is_proved(tmp_path, constants, expected, status):
    audit = verdict(tmp_path, constants)
    assert audit.verdicts[0].verdict == expected
    assert {a.status for f in audit.findings for a in f.assumptions if a.name == NAME} == {status}
    if status == "false":
        assert "the divisor is the number of records" in audit.verdicts[0].reason
    if status == "unchecked":
        assert NAME in audit.verdicts[0].reason


def test_a_false_statement_joins_findings_that_do_not_name_it() -> None:
    upper, untrained = bound(1.0), spec()
    trained = dataclasses.replace(untrained, model=untrained.data)
    assert [*with_assumptions([upper], untrained, said("false"), {})] == [upper]
    (joined,) = with_assumptions([upper], trained, said("false"), {})
    assert isinstance(joined, Finding)
    assert [(a.name, a.status) for a in joined.assumptions] == [(NAME, "false")]
    assert [*with_assumptions([upper], trained, said("reported"), {})] == [upper]
    own = dataclasses.replace(upper, assumptions=(said("false"),))  # a false one of its own stays false
    assert [*with_assumptions([own], trained, said("by-construction"), {})] == [own]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, ["issue 819", "number of batches"]),
        ({"sampler": "declared-rate"}, ["issue 819"]),
        ({"sampler": "declared-rate", "divisor": "declared"}, []),
        ({"sampler": "poisson", "divisor": "declared"}, ["number of batches"]),
        ({"sampler": "weighted", "divisor": "declared"}, ["labels"]),
    ],
)
def test_what_opacus_computes_from_the_records(options: dict[str, str], wrong: list[str]) -> None:
    mechanism = Section("group", FrozenMap({"sampling": {"scheme": "poisson", "rate": 0.1}, "steps": 1}))
    declared = dataclasses.replace(spec(), mechanism=mechanism, training=Section("opacus", FrozenMap(options)))
    found = opacus_constants(declared)
    assert found.status == ("false" if wrong else "by-construction")
    assert all(part in found.text for part in wrong)
    (backend,) = [b for b in BACKENDS if b.kind == "opacus"]
    ours = Offered(provider=backend, plugin="builtin", distribution="dpspec", version="0")
    assert constants_of(ours, declared) == found


@pytest.mark.ci
def test_calibration_takes_no_bound_for_proved_that_rests_on_a_false_assumption() -> None:
    short = {**DOCUMENT, "mechanism": {**DOCUMENT["mechanism"], "noise_multiplier": 0.75, "steps": 4}}
    for constants, proved in ((said("reported"), True), (said("false"), False)):
        catalog = saying(constants)
        spec = from_document(short, catalog)
        try:
            found = calibrate_spec(spec, catalog, vary="mechanism.noise_multiplier", relative=0.5).proved is not None
        except UsageError:
            found = False
        assert found == proved
