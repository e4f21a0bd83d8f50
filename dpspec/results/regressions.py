"""What got worse since an earlier result, one entry for each claim, with numbers and cause.

An entry in words, as in each format for continuous integration:

>>> worse = Regression(
...     audit="app",
...     claim="one-record",
...     name="upper",
...     changes=("epsilon 2.12516 -> 2.28271",),
...     because=("mechanism.noise_multiplier 1.2 -> 1.15",),
... )
>>> in_words(worse)
'app / one-record: epsilon 2.12516 -> 2.28271, because mechanism.noise_multiplier 1.2 -> 1.15'
"""

from __future__ import annotations

from collections.abc import Sequence

from dpspec.contract.results import Regression, Result
from dpspec.results.diff import Change, diff, regressions
from dpspec.results.void_bounds import for_readers
from dpspec.text import joined, spaced

#: The end that states a claim's change of both ends, by the direction of the change: an epsilon that rises is worse
#: at its upper end, a metric that falls at its lower one.
_ENDS = ("upper", "lower")


def named_regressions(baseline: Result, result: Result, worse: Sequence[Change]) -> tuple[Regression, ...]:
    """The regressions of a result, one for each claim and audit.

    Args:
        baseline: The earlier result.
        result: The later one.
        worse: The changes of :func:`dpspec.results.diff.regressions`.
    """
    # Readers do not see values of the rows, nor bounds that a deviation made void.
    shown = [for_readers(baseline), for_readers(result)]
    readable = {*regressions(*shown), *diff(*shown)}
    declared: dict[str, list[str]] = {}
    for change in diff(baseline, result):
        if change.of_declaration and change in readable:
            declared.setdefault(change.audit, []).append(_in_words(change))
    by_claim: dict[tuple[str, str], list[Change]] = {}
    for change in worse:
        by_claim.setdefault((change.audit, change.claim), []).append(change)
    return tuple(
        Regression(
            audit=audit,
            claim=claim,
            name=changes[0].what,
            changes=tuple(_in_words(change) for change in _without_other_end(changes) if change in readable),
            because=tuple(declared.get(audit, ())) if claim else (),
        )
        for (audit, claim), changes in by_claim.items()
    )


def _without_other_end(changes: Sequence[Change]) -> Sequence[Change]:
    """The changes with one end of an interval whose both ends got worse."""
    ends = [change for change in changes if change.what in _ENDS]
    if len(ends) < 2:
        return changes
    falls = float(ends[0].after) < float(ends[0].before)
    return [change for change in changes if change not in ends or change.what == _ENDS[falls]]


def _in_words(change: Change) -> str:
    """``epsilon 2.12516 -> 2.28271``, or ``mechanism.noise_multiplier 1.2 -> 1.15``."""
    name = {"upper": "", "lower": "lower end of "}.get(change.what, f"{change.what} ")
    quantity = f"{spaced(change.quantity)} " if change.quantity else ""
    return f"{name}{quantity}{change.before} -> {change.after}"


def subject(regression: Regression) -> str:
    """The audit, and the claim if there is one."""
    return f"{regression.audit} / {regression.claim}" if regression.claim else regression.audit


def cause(regression: Regression) -> str:
    """The changes of the declaration, as the end of a sentence; empty without one.

    One change is the cause. Of several, each may have none of the effect.
    """
    if not regression.because:
        return ""
    word = "because" if len(regression.because) == 1 else "with"
    return f"{word} {joined(regression.because)}"


def in_words(regression: Regression) -> str:
    """One line with the subject, the numbers and the cause."""
    changes = joined(regression.changes) or f"{regression.name} is worse than in the earlier result"
    return ", ".join(filter(None, (f"{subject(regression)}: {changes}", cause(regression))))
