"""What a test of the executed pipeline returns, and the check that it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from dpspec.contract import Check

#: ``detectable`` is computed for a test at this level, the one at which a pipeline is said to deviate, ...
LEVEL = 1e-6
#: ... which must reject with at least this probability.
POWER = 0.99


#: Whether a test looked at released models, or believed what the backend says of itself.
Observed: TypeAlias = Literal["measured", "reported"]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The outcome of one test; its fields are those of a ``Check``.

    p_value: the probability, under the declaration, of a deviation at least as large; in [0, 1], 0 where it underflows.
    detectable: the smallest relative deviation that the test rejects at level 1e-6 with probability 0.99, or None
        where no deviation can be seen.
    """

    test: str
    declared: float
    measured: float
    p_value: float
    detectable: float | None


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


def abstaining(assumption: str, test: str, observed: Observed, note: str, reason: str) -> Check:
    """A test that was to be made and can say nothing of this run: it rejects nothing, sees nothing, and says why.

    The reason stands after the ``note`` that a plan gives the test, and a comma, so that the two are told to be one.
    """
    return Check(
        assumption=assumption,
        test=test,
        p_value=1.0,
        observed=observed,
        detectable=None,
        note=f"{note}, not tested: {reason}",
    )
