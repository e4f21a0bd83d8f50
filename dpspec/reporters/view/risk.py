"""What proved bounds mean in odds: how well anybody can tell who was in the training, or rebuild a record.

Text that a spec or a plugin may have brought in is returned as it is: escaping is the format's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from dpspec.engine.judging.proven_curves import ProvenCurve, proven_curves
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult
from dpspec.reporters.view import words
from dpspec.text import several

#: The false-alarm rates at which odds are told.
_FALSE_ALARMS = (0.01, 0.1)

#: Keys with which a claim speaks of fewer data sets, records or neighbours than all.
_OF_DATA = ("min_records", "neighbours")
_NARROWER = frozenset({"over", "record", "fraction", "population", *_OF_DATA})

#: More than this is all of them.
_ALL = 0.999

_DEVIATES = (
    "The executed run deviates from the declared mechanism: no bound here applies to it, and its risk may be far "
    "higher than that of the mechanism as declared."
)
_CONTRADICTED = "What follows rests on a bound that an attack contradicts: do not rely on it."
_NOTHING = (
    "No proved bound here holds for every record and in both directions, adding and removing: no odds of being found "
    "out follow from it."
)


def risk(audit: AuditResult) -> tuple[str, ...]:
    """What a bound promises to single persons and to groups, after what forbids to rely on it; never empty.

    Nothing is promised if the executed run deviates.
    """
    if audit.conformance.status == "deviates":
        return (_DEVIATES,)
    told = (*(tuple(odds(audit)) or tuple(_one_sided(audit))), *_rebuilt(audit))
    if not told:
        return (_NOTHING,)
    return (*_doubts(audit), *told)


def _doubts(audit: AuditResult) -> Iterator[str]:
    if any(verdict.verdict == "contradicted" for verdict in audit.verdicts):
        yield _CONTRADICTED


def odds(audit: AuditResult) -> Iterator[str]:
    """What the proved curves mean: how many of 100 records somebody could find out about, at stated false alarms.

    The power of any test of membership at false-alarm rate a is at most 1 - f(a), f the proved trade-off curve (Dong,
    Roth and Su 2022); it is rounded up. Nothing without a curve that holds in both directions for all records.
    """
    for curve in proven_curves(audit):
        powers = [power(curve, rate) for rate in _FALSE_ALARMS]
        asked = about(curve)
        if powers[0] > _ALL:
            yield f"{asked}: the proved bound does not rule out that this can be told of all."
            continue
        yield _found(asked, powers)


def _found(asked: str, powers: Sequence[float]) -> str:
    """What is found out at most, at each of the false-alarm rates."""
    alarms = [decimals.exact(100.0 * rate) for rate in _FALSE_ALARMS]
    found = [decimals.upper(100.0 * one, digits=3) for one in powers]
    return (
        f"{asked}: whoever says so wrongly in {alarms[0]} of 100 cases says it rightly in at most {found[0]} of 100; "
        f"wrongly in {alarms[1]}, rightly in at most {found[1]}. Guessing gives {alarms[0]} and {alarms[1]}."
    )


def _one_sided(audit: AuditResult) -> Iterator[str]:
    """What proved claims in the direction ``remove`` alone mean, of any data set and every record.

    P(S) <= e^epsilon Q(S) + delta, P the law with the records and Q that without: with S as "they were in", true
    positives are at most e^epsilon times false ones, plus delta.
    """
    threat, blocks = audit.document.get("threat_model"), audit.document.get("claims")
    if not isinstance(threat, Mapping) or any(threat.get(key) not in (None, 0, "all") for key in _OF_DATA):
        return
    proved = {one.claim: one for one in audit.verdicts if one.kind == "approx-dp" and one.verdict == "proved"}
    for block in blocks if isinstance(blocks, list | tuple) else ():
        if not isinstance(block, Mapping) or block.keys() & _NARROWER or str(block.get("id")) not in proved:
            continue
        verdict, stated = proved[str(block.get("id"))], {**threat, **block}
        epsilon, delta, size = verdict.provable, stated.get("delta"), stated.get("group_size")
        if [stated.get(key) for key in ("direction", "adjacency", "unit")] != ["remove", "add-remove", "record"]:
            continue
        if isinstance(delta, float | int) and type(size) is int and epsilon is not None:
            factor = math.exp(min(epsilon, 700.0)) * (1.0 + 1e-12)  # no less than it is, rounded
            who = "a record was" if size == 1 else f"{several(size, 'record')} were"
            seen = words.access(audit, verdict)
            asked = f"Whether {who} in the training{f', {seen}' if seen else ''}"
            powers = [min(1.0, factor * rate + delta) for rate in _FALSE_ALARMS]
            yield (
                f"{_found(asked, powers)} That follows from the claim {verdict.claim}, "
                "which says nothing of how surely one can tell the opposite."
            )


def power(curve: ProvenCurve, rate: float) -> float:
    """The most that a test of membership reaches at a false-alarm rate, from 0 to 1."""
    return min(1.0, float(curve.polygon.tpr(rate)))


def about(curve: ProvenCurve) -> str:
    """What is to be told, within which scope: whether somebody was in the training, or which of two."""
    size, unit = curve.group_size, curve.scope.unit
    one = "a record" if unit == "record" else several(1, unit)
    scope = words.curve(curve).removeprefix(words.groups(size, unit))
    if "access" not in curve.varying and curve.scope.access != "all-iterates":  # where curves differ in it, it is there
        scope += f", {words.of_scope('access', curve.scope.access)}"
    if curve.scope.adjacency == "replace-one":
        who = (
            f"{one}, and not another in its place, was" if size == 1 else f"{several(size, unit)}, and not others, were"
        )
    else:
        who = f"{one} was" if size == 1 else f"{several(size, unit)} were"
    return f"Whether {who} in the training{scope}"


def _rebuilt(audit: AuditResult) -> Iterator[str]:
    """Of every proved claim about reconstruction: how often a record can be rebuilt, against how often by guessing."""
    blocks = audit.document.get("claims", ())
    for verdict in audit.verdicts:
        if verdict.quantity != "gamma" or verdict.verdict != "proved" or verdict.provable is None:
            continue
        for block in blocks if isinstance(blocks, list | tuple) else ():
            kappa = block.get("kappa") if isinstance(block, Mapping) and block.get("id") == verdict.claim else None
            if isinstance(kappa, int | float) and not isinstance(kappa, bool):
                yield (
                    f"Which record it was, or what is in it: whoever guesses that right with probability "
                    f"{decimals.exact(kappa)} without what was released gets it right with probability at most "
                    f"{decimals.upper(verdict.provable, digits=3)} with it."
                )
