"""Outcomes of conformance tests, the checks that they become, and the rows of the table of checks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from dpspec.contract import Check

#: Level of ``detectable``, at which a pipeline deviates.
LEVEL = 1e-6

#: Probability of rejection of the deviation ``detectable``.
POWER = 0.99

#: Relative rounding error of norms of float32 gradients. On a CPU, torch computes the norm of 10^6 numbers 9e-6 too
#: small, and of 10^7 numbers 4e-4.
CLIP_TOLERANCE = 1e-4

#: Whether a test uses released models, or reports of the backend.
Observed: TypeAlias = Literal["measured", "reported"]

#: The deviation that a limit measures: of the check's quantity at all steps, or at one step, or of another quantity.
LimitOf: TypeAlias = Literal["all-steps", "one-step", "other-quantity"]


@dataclass(frozen=True)
class Measurement:
    """The outcome of one test.

    ``details`` follow the test's name in its check: the tail, or the layer of this run. ``p_value`` is 0 if it
    underflows. ``detectable`` is the smallest relative deviation that is rejected at ``LEVEL`` with probability
    ``POWER``; None without any. ``is_exact``: whether the test has no randomness. ``name`` identifies the deviation,
    if a row has several.
    """

    test: str
    declared: float
    measured: float
    p_value: float
    detectable: float | None
    is_exact: bool = False
    name: str = ""
    details: str = ""

    @property
    def title(self) -> str:
        """The test with its details: ``chi-square, two-sided``."""
        return f"{self.test}, {self.details}" if self.details else self.test

    def check(self, assumption: str, observed: Observed, note: str, null: str = "") -> Check:
        return Check(
            assumption=assumption,
            test=f"{self.title}, exact" if self.is_exact else self.title,
            tests=(self.title,),
            p_value=self.p_value,
            observed=observed,
            declared=self.declared,
            measured=self.measured,
            detectable=self.detectable,
            note=note,
        )

    def promise(self, check: Check) -> Check:
        """The check as a plan promises it: without details and without values of a run."""
        return replace(check, test=self.test, tests=(self.test,), p_value=1.0, declared=None, measured=None)


@dataclass(frozen=True)
class Abstention:
    """The reason why a planned test cannot be made. Its check rejects nothing and detects nothing."""

    reason: str

    def check(self, assumption: str, observed: Observed, note: str, null: str) -> Check:
        return Check(
            assumption=assumption,
            test=null,
            tests=(null,),
            p_value=1.0,
            observed=observed,
            note=note,
            remark=f"not tested: {self.reason}",
        )

    def promise(self, check: Check) -> Check:
        """The same check: it has no value of a run."""
        return check


#: None if a run has no evidence for the test.
Outcome: TypeAlias = Measurement | Abstention | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A check: the test, and its evidence, its null distribution and the meaning of ``detectable`` in words.

    A plan promises a check by ``assumption``, ``observed`` and the note ``compares``. With ``of_batches`` the test
    takes one phase whose sampling scheme names the check, else all runs. ``rows``: whether the evidence depends on the
    rows. ``limit_of``: the deviation that ``detectable`` measures. ``reason``: why ``null`` holds, if that is unclear.
    """

    test: Callable[..., Outcome] = field(kw_only=False)
    assumption: str
    observed: Observed
    compares: str
    evidence: str
    null: str
    detects: str
    of_batches: bool = False
    rows: bool = False
    limit_of: LimitOf = "all-steps"
    reason: str = ""

    @property
    def name(self) -> str:
        """An identifier."""
        return getattr(self.test, "__name__", "")


def the_worst(measurements: Iterable[Measurement]) -> Measurement | None:
    """Return the worst of several measurements of one kind with a Bonferroni correction; None of none."""
    measured = list(measurements)
    if not measured:
        return None
    worst = min(measured, key=lambda m: m.p_value)
    return replace(worst, p_value=min(1.0, len(measured) * worst.p_value))


def of_several(measurements: Sequence[Measurement | None]) -> Measurement | None:
    """The same for measurements of different kinds: ``detectable`` is the largest limit of those that have one."""
    measured = [measurement for measurement in measurements if measurement is not None]
    worst = the_worst(measured)
    limits = [measurement.detectable for measurement in measured if measurement.detectable is not None]
    return None if worst is None else replace(worst, detectable=max(limits, default=None))


def exactly(
    test: str, right: bool, declared: float, measured: float, detectable: float | None = 0.0, name: str = ""
) -> Measurement:
    """Return the measurement of a property without randomness that holds if ``right``.

    ``detectable``: None for a property that covers a part of the assumption only.
    """
    p_value = 1.0 if right else 0.0
    return Measurement(test, float(declared), float(measured), p_value, detectable, is_exact=True, name=name)
