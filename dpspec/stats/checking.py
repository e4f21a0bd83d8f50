"""From measurements to checks: what all tests of conformance share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from dpspec.contract import Check
from dpspec.stats.measurement import Measurement

Observed: TypeAlias = Literal["measured", "reported"]


def check(assumption: str, found: Measurement, observed: Observed, note: str) -> Check:
    """A measurement as the check of an assumption."""
    return Check(
        assumption=assumption,
        test=found.test,
        p_value=found.p_value,
        observed=observed,
        declared=found.declared,
        measured=found.measured,
        detectable=found.detectable,
        note=note,
    )


def worst(
    assumption: str, found: Sequence[Measurement], observed: Observed, note: str, among: int | None = None
) -> Check:
    """The most surprising of several measurements of one kind, Bonferroni over their number.

    among: how many there are, where ``found`` holds only those that may be the most surprising.
    """
    worst = min(found, key=lambda m: m.p_value)
    tried = len(found) if among is None else among
    return check(assumption, replace(worst, p_value=min(1.0, tried * worst.p_value)), observed, note)


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
    """A property that holds or does not, without chance.

    detectable: None for a property that is only a part of what the assumption says: that it holds says little.
    """
    return Check(
        assumption=assumption,
        test=f"{test}, exact",
        p_value=1.0 if right else 0.0,
        observed=observed,
        declared=float(declared),
        measured=float(seen),
        detectable=detectable,
        note=note,
    )


def correlation(detectable: float | None) -> float | None:
    """A correlation above 1 cannot be; what would need one is not detectable."""
    return detectable if detectable is not None and detectable <= 1.0 else None
