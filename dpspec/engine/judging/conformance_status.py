"""Whether what ran is what was declared: all checks of an invocation, as one family at level 1e-6."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dpspec.contract import Assumption, Check, Finding
from dpspec.engine.results.decimals import given, upper
from dpspec.engine.results.result import Conformance, ConformanceName
from dpspec.stats.conformance.measurement import LEVEL

#: What backends say of where constants come from.
CONSTANTS = "data-independent-hyperparameters"


def rejected(check: Check, family: int) -> bool:
    """Whether a check rejects the declaration: p <= 1e-6 / family (Bonferroni over the ``family`` checks).

    Raises ``ValueError`` if the p-value is none.
    """
    if not 0.0 <= check.p_value <= 1.0:
        raise ValueError(f"the check of {check.assumption!r} has p-value {check.p_value}")
    return check.p_value * family <= LEVEL


def looks(there: int, needed: int) -> int:
    """Among how many looks a check's level is divided: each look at a run that is not complete has a trial more than
    the one before, so that there are no more of them than trials; the look at all of them is one."""
    return needed if there < needed else 1


def family_sizes(audits: Sequence[tuple[int, int, int]]) -> list[int]:
    """Among how many checks each audit's level is divided: all of the invocation, times its looks.

    audits: of each the number of its checks, of the trials that are there, and of those that are needed.
    """
    checks = sum(made for made, _, _ in audits)
    return [checks * looks(there, needed) for _, there, needed in audits]


def missing(promised: Sequence[Check], made: Sequence[Check]) -> tuple[Check, ...]:
    """The checks that a plan promised and nobody made.

    A check keeps a promise if assumption, ``observed`` and note are the promise's; to the note it may have added, after
    a comma, what it found. Each keeps one promise. What abstains, and says why in its note, was made.
    """
    left, gone = list(range(len(made))), set()
    for number in sorted(range(len(promised)), key=lambda number: -len(promised[number].note)):
        keeping = next((index for index in left if _keeps(made[index], promised[number])), None)
        if keeping is None:
            gone.add(number)
        else:
            left.remove(keeping)
    return tuple(promise for number, promise in enumerate(promised) if number in gone)


def _keeps(made: Check, promise: Check) -> bool:
    same = (made.assumption, made.observed) == (promise.assumption, promise.observed)
    return same and (made.note == promise.note or made.note.startswith((f"{promise.note}, ", f"{promise.note}; ")))


def conformance_of(
    expect: str,
    checks: Sequence[Check],
    family: int,
    promised: Sequence[Check] = (),
    *,
    executed: bool = False,
) -> Conformance:
    """The conformance of one audit.

    ``deviates`` if any check is rejected; ``checks-missing`` if one is not there that was promised;
    ``no-deviation-found`` the deviations that its checks would have seen; ``not-run`` without checks of the run, or
    where all of them abstain: a step on a neighbour is none of the run's.

    executed: whether all trials were made. Where they were not, promises may still be kept, and a conformance that was
    not looked at is what ``no-deviation-found`` expects; where they were, it is as expected only if ``expect`` says so.
    """
    bad = [check for check in checks if rejected(check, family)]
    gone = missing(promised, checks) if executed else ()
    of_the_run = [check for check in checks if not _on_a_neighbour(check)]
    looked = any(check.detectable is not None or check.p_value < 1.0 for check in of_the_run)
    status: ConformanceName = (
        "deviates" if bad else "checks-missing" if gone else "no-deviation-found" if looked else "not-run"
    )
    waiting = expect == "no-deviation-found" and status == "not-run" and not executed
    return Conformance(
        status=status, expect=expect, expected=status == expect or waiting, reason=reason(bad, checks, gone)
    )


def reason(bad: Sequence[Check], checks: Sequence[Check], gone: Sequence[Check] = ()) -> str:
    """The conformance in words: checks that reject, those promised and not made, or what the others would have seen."""
    if bad:
        shown = "; ".join(_deviation(check) for check in sorted(bad, key=lambda c: c.p_value)[:3])
        more = f"; and {len(bad) - 3} more" if len(bad) > 3 else ""
        text = f"What ran is not what was declared: {shown}{more}."
        return f"{text} {_gone(gone)}" if gone else text
    if gone:
        why = "The backend does not deliver what its capabilities declare, or its run is not of the declared length."
        return f"{_gone(gone)} {why}"
    return _limits(checks) if checks else "No check of an executed pipeline was made."


def _gone(gone: Sequence[Check]) -> str:
    """What is missing, named once for each assumption."""
    named = dict.fromkeys(f"{check.assumption} ({check.observed})" for check in gone)
    number = (
        "A check that the plan promised was" if len(gone) == 1 else f"{len(gone)} checks that the plan promised were"
    )
    return f"{number} not made: {', '.join(named)}."


def join_checks(findings: Sequence[Finding], checks: Sequence[Check], family: int) -> tuple[Finding, ...]:
    """The findings, with what the checks say about the assumptions that they name.

    A rejected check makes the assumption ``false`` for findings about the ``executed`` pipeline. Findings about the
    ``declared`` mechanism keep its status and carry the rejected test beside it: conformance reports the deviation.
    A check that is not rejected raises ``declared``, ``reported`` and ``unchecked`` to ``not-rejected`` if it was
    measured from outside, ``unchecked`` to ``reported`` if the backend said so itself; a check that could have seen
    nothing raises ``unchecked`` to nothing.

    What was *measured* of constants on one neighbour says more, and less: where it is rejected, the mechanism as
    declared is not the backend's, and the assumption is ``false`` of either; where it is not, the other neighbours are
    as unknown as before, and the status stays.
    """
    by_name: dict[str, Check] = {}
    for check in sorted(checks, key=lambda c: (not rejected(c, family), c.observed != "measured", _sharpness(c))):
        by_name.setdefault(check.assumption, check)
    return tuple(
        replace(f, assumptions=tuple(_joined(a, by_name.get(a.name), f.scope.pipeline, family) for a in f.assumptions))
        for f in findings
    )


def _joined(assumption: Assumption, check: Check | None, pipeline: str, family: int) -> Assumption:
    if check is None or assumption.status == "false":
        return assumption
    tested = replace(assumption, test=check.test, level=LEVEL / family, detectable=check.detectable)
    constants = _on_a_neighbour(check)
    if rejected(check, family):
        if constants:
            return replace(tested, status="false", text=f"{check.note}: rejected by {check.test}")
        if pipeline == "executed":
            return replace(tested, status="false")
        return replace(tested, test=f"{check.test}: rejected for what ran, p = {upper(check.p_value)}")
    if (
        constants
        or assumption.status == "by-construction"
        or (assumption.status == "unchecked" and check.detectable is None)
    ):
        return tested
    if check.observed == "measured":
        return replace(tested, status="not-rejected")
    return replace(tested, status="reported") if assumption.status == "unchecked" else tested


def _on_a_neighbour(check: Check) -> bool:
    """Whether a check is that of constants, on other records than those of the run."""
    return check.assumption == CONSTANTS and check.observed == "measured"


def _sharpness(check: Check) -> float:
    return float("inf") if check.detectable is None else check.detectable


def _deviation(check: Check) -> str:
    text = f"{check.assumption} ({check.test}, p = {upper(check.p_value)}"
    if check.declared is not None and check.measured is not None:
        text += f"; declared {given(check.declared)}, {check.observed} {check.measured:.4g}"
    return text + ")"


def _limits(checks: Iterable[Check]) -> str:
    """The detectable deviations of each assumption: what may still be wrong without having been seen."""
    detectable: dict[str, list[float]] = {}
    for check in checks:
        detectable.setdefault(check.assumption, []).append(_sharpness(check))
    seen = [f"{name} {_range(finite)}" for name, values in detectable.items() if (finite := _finite(values))]
    blind = [name for name, values in detectable.items() if not _finite(values)]
    text = f"No check is rejected. A deviation of this size would have been seen: {', '.join(seen)}." if seen else ""
    if blind:
        names = ", ".join(blind)
        text += f"{' ' if text else ''}The checks of {names} are not rejected, but no deviation could have failed them."
    return text


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if value < float("inf")]


def _range(values: Sequence[float]) -> str:
    """``3%``, or ``3% to 120%`` where several tests look at several things; ``any`` where nothing escapes."""
    low, high = (f"{upper(100.0 * value, digits=2)}%" if value > 0.0 else "any" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
