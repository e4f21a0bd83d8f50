"""Outcomes of conformance tests, and the checks that they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from dpspec.contract import Check

#: Level of ``detectable``, at which a pipeline deviates.
LEVEL = 1e-6

#: Probability of rejection of the deviation ``detectable``.
POWER = 0.99

#: Whether a test uses released models, or reports of the backend.
Observed: TypeAlias = Literal["measured", "reported"]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The outcome of one test.

    Attributes:
        test: Name of the test; after a comma, details of the run.
        declared: Declared value.
        measured: Measured value.
        p_value: Probability of such a deviation under the declaration; 0 if it underflows.
        detectable: Smallest relative deviation that is rejected at 1e-6 with probability 0.99; None without any.
    """

    test: str
    declared: float
    measured: float
    p_value: float
    detectable: float | None

    def check(self, assumption: str, observed: Observed, note: str, null: str = "") -> Check:
        """Return the check of an assumption."""
        return Check(
            assumption=assumption,
            test=self.test,
            p_value=self.p_value,
            observed=observed,
            declared=self.declared,
            measured=self.measured,
            detectable=self.detectable,
            note=note,
        )


@dataclass(frozen=True)
class Abstention:
    """The reason why a planned test cannot be made. Its check rejects nothing and detects nothing."""

    reason: str

    def check(self, assumption: str, observed: Observed, note: str, null: str) -> Check:
        """Return the check, with the reason after the planned ``note``, by which a plan recognizes it."""
        return Check(
            assumption=assumption,
            test=null.partition(":")[0],
            p_value=1.0,
            observed=observed,
            detectable=None,
            note=f"{note}, not tested: {self.reason}",
        )


def the_worst(found: Sequence[Measurement]) -> Measurement | None:
    """Return the worst of several measurements of one kind with a Bonferroni correction; None of none."""
    if not found:
        return None
    worst = min(found, key=lambda m: m.p_value)
    return replace(worst, p_value=min(1.0, len(found) * worst.p_value))


def of_several(found: Sequence[Measurement]) -> Measurement | None:
    """The same for measurements of different kinds: ``detectable`` is the largest limit of those that have one."""
    worst = the_worst(found)
    limits = [one.detectable for one in found if one.detectable is not None]
    return None if worst is None else replace(worst, detectable=max(limits, default=None))


def exactly(test: str, right: bool, declared: float, measured: float, detectable: float | None = 0.0) -> Measurement:
    """Return the measurement of a property without randomness.

    Args:
        test: Name of the test.
        right: Whether the property holds.
        declared: Declared value.
        measured: Measured value.
        detectable: None for a property that covers a part of the assumption only.
    """
    return Measurement(
        test=f"{test}, exact",
        declared=float(declared),
        measured=float(measured),
        p_value=1.0 if right else 0.0,
        detectable=detectable,
    )


def check(assumption: str, found: Measurement, observed: Observed, note: str) -> Check:
    """Return a measurement as the check of an assumption."""
    return found.check(assumption, observed, note)


def worst(assumption: str, found: Sequence[Measurement], observed: Observed, note: str) -> Check:
    """Return the worst of several measurements, at least one, as the check of an assumption."""
    measured = the_worst(found)
    assert measured is not None
    return measured.check(assumption, observed, note)


def exact(
    assumption: str,
    test: str,
    observed: Observed,
    right: bool,
    declared: float,
    seen: float,
    note: str = "",
    detectable: float | None = 0.0,
) -> Check:
    """Return the check of a property without randomness; see :func:`exactly`."""
    return exactly(test, right, declared, seen, detectable).check(assumption, observed, note)
