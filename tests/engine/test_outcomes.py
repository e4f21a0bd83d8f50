"""What an audit yields is looked at before anybody is judged by it: it is the plugin that is told to be wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.audits import HERE, approx, spec

from dpspec.contract import Assumption, Audit, Check, Evidence, Facts, Finding, FrozenMap, Plan, Scope, Series, Trial
from dpspec.engine.preparing.prepare import Prepared
from dpspec.engine.running.conclude import Bounded, conclude
from dpspec.errors import ExitCode, PluginError

FINDING = Finding(
    quantity="epsilon", value=1.0, bound="upper", rigor="certified", scope=Scope(), method="m", source="s"
)
COUNTS = FrozenMap({"present": 3, "absent": 2, "true_positives": 3, "false_positives": 0})
EVIDENCE = Evidence(id="a", kind="many-run", statistics=COUNTS, scope=HERE, method="m", source="s")
TOO_MANY = FrozenMap({"trials": 3, "successes": 4})
CHECK = Check(assumption="noise", test="t", p_value=0.5, observed="measured")


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
    prepared = object.__new__(Prepared)
    object.__setattr__(prepared, "audit", Yields(*outcomes))
    object.__setattr__(prepared, "spec", spec(approx()))
    object.__setattr__(prepared, "offers", {})
    object.__setattr__(prepared, "facts", Facts(records=100, features=1, classes=2))
    object.__setattr__(prepared, "constants", Assumption(name="public-constants", status="by-construction"))
    return conclude(Bounded(prepared=prepared, bounds=bounds), [Trial(index=0, evidence=FrozenMap())])


def test_what_is_sound_is_kept() -> None:
    series = Series(
        name="s", title="t", columns=FrozenMap({"x": (1, 2)}), units=FrozenMap(), rigor="approximate", source="s"
    )
    found = concluded(EVIDENCE, series, bounds=[FINDING])
    placed = dataclasses.replace(EVIDENCE.scope, min_records=99, neighbours="same-missing-values")
    assert found.evidence == (dataclasses.replace(EVIDENCE, scope=placed),)
    assert (found.findings, found.series) == ((FINDING,), (series,))


def test_what_no_claim_and_no_bound_is_of_is_not_read() -> None:
    note = dataclasses.replace(EVIDENCE, quantity="accuracy")
    assert [e.statistics for e in concluded(note).evidence] == [note.statistics]


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (dataclasses.replace(FINDING, rigor="proven"), "yields a finding whose rigor is 'proven' (valid: certified"),  # type: ignore[arg-type]
        (dataclasses.replace(EVIDENCE, kind="many_run"), "'many_run' tests no privacy curve (valid kinds: many-run"),
        (dataclasses.replace(EVIDENCE, statistics=FrozenMap()), "lacks the counts present, absent"),
        (
            dataclasses.replace(EVIDENCE, quantity="accuracy"),
            "of kind 'many-run' tests no metric (valid kinds: average, binomial)",
        ),
        (
            dataclasses.replace(EVIDENCE, quantity="accuracy", kind="binomial", statistics=TOO_MANY),
            "counts more than there can be",
        ),
        (dataclasses.replace(CHECK, p_value=1.5), "yields a check of 'noise' whose p-value is 1.5"),
        (dataclasses.replace(CHECK, p_value=float("nan")), "whose p-value is nan"),
        (dataclasses.replace(CHECK, measured=float("nan")), "yields a check that cannot be kept: its measured is NaN"),
        (dataclasses.replace(FINDING, value=float("nan")), "a finding that cannot be kept: its value is NaN"),
        ({"epsilon": 1.0}, "yields a dict, not a Finding, Series, Check or Evidence"),
    ],
)
def test_what_is_not_is_the_plugins_fault(outcome: Any, says: str) -> None:
    with pytest.raises(PluginError) as caught:
        concluded(outcome, bounds=[ACCURACY])
    assert caught.value.exit_code is ExitCode.PLUGIN
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"mechanism {spec(approx()).mechanism.kind!r} yields ")
