"""Translate proved bounds into the success rates of membership inference and of reconstruction.

Text that a spec or a plugin may have brought in is returned as it is: escaping is the format's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from dpspec.engine.judging.proven_curves import ProvenCurve, proven_curves
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult
from dpspec.reporters import labels

#: The false-positive rates of the attacker.
_FALSE_POSITIVES = (0.01, 0.1)

#: Keys that restrict a claim to some datasets, records or neighbours.
_OF_DATA = ("min_records", "neighbours")
_NARROWER = frozenset({"over", "record", "fraction", "population", *_OF_DATA})

#: A detection rate above this is reported as certain.
_CERTAIN = 0.999

_DEVIATES = (
    "The executed run deviates from the declared mechanism. No bound applies to it, and its risk may be far higher "
    "than that of the declared mechanism."
)
_CONTRADICTED = "An attack contradicts the bound behind these rates: do not rely on them."
_NOTHING = (
    "No proved bound covers every record in both directions (adding and removing), so no attacker's rate follows."
)


def risk(audit: AuditResult) -> tuple[str, ...]:
    """Return the success rates of attackers as sentences, after the reasons not to rely on them; never empty.

    If the executed run deviates, there are no rates.
    """
    if audit.conformance.status == "deviates":
        return (_DEVIATES,)
    found = (*(tuple(membership(audit)) or tuple(_one_sided(audit))), *_reconstruction(audit))
    if not found:
        return (_NOTHING,)
    return (*_doubts(audit), *found)


def _doubts(audit: AuditResult) -> Iterator[str]:
    if any(verdict.verdict == "contradicted" for verdict in audit.verdicts):
        yield _CONTRADICTED


def membership(audit: AuditResult) -> Iterator[str]:
    """Yield, for each proved curve, the maximum true-positive rates of membership inference.

    The power of any membership test at false-positive rate a is at most 1 - f(a), f the proved trade-off curve (Dong,
    Roth and Su 2022). Rates are rounded up. Only curves for both directions and all records count.
    """
    for curve in proven_curves(audit):
        powers = [power(curve, rate) for rate in _FALSE_POSITIVES]
        whom = members(curve)
        if powers[0] > _CERTAIN:
            text = f"{_before(scope(curve))}the proved bound does not rule out that an attacker identifies all {whom}."
            yield labels.sentence(text)
            continue
        yield _rates(scope(curve), whom, powers)


def _rates(of: str, whom: str, powers: Sequence[float]) -> str:
    """The maximum true-positive rate at each false-positive rate."""
    guesses = [f"{decimals.exact(100.0 * rate)} %" for rate in _FALSE_POSITIVES]
    found = [f"{decimals.upper(100.0 * one, digits=3)} %" for one in powers]
    return labels.sentence(
        f"{_before(of)}at a {guesses[0]} false-positive rate an attacker identifies at most {found[0]} of {whom}, at "
        f"{guesses[1]} at most {found[1]}; guessing gives {guesses[0]} and {guesses[1]}."
    )


def _one_sided(audit: AuditResult) -> Iterator[str]:
    """Yield rates from proved claims in the direction ``remove`` for any dataset and every record.

    P(S) <= e^epsilon Q(S) + delta, P the distribution with the records and Q without: for the event S "the attacker
    answers member", the true-positive rate is at most e^epsilon times the false-positive rate, plus delta.
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
            factor = math.exp(min(epsilon, 700.0)) * (1.0 + 1e-12)  # rounded up
            access = labels.access(audit, verdict)
            powers = [min(1.0, factor * rate + delta) for rate in _FALSE_POSITIVES]
            whom = "members" if size == 1 else f"groups of {size} members"
            yield (
                f"{_rates(access, whom, powers)} This follows from the claim {verdict.claim}, which does not bound how "
                "surely an attacker identifies non-members."
            )


def power(curve: ProvenCurve, rate: float) -> float:
    """Return the maximum true-positive rate at a false-positive rate, from 0 to 1."""
    return min(1.0, float(curve.polygon.tpr(rate)))


def _before(scope: str) -> str:
    return f"{scope}: " if scope else ""


def scope(curve: ProvenCurve) -> str:
    """Return what distinguishes the scope of a curve: ``seeing the final model``, or nothing."""
    text = labels.curve(curve).removeprefix(labels.groups(curve.group_size, curve.scope.unit)).removeprefix(", ")
    if "access" not in curve.varying and curve.scope.access != "all-iterates":
        text = ", ".join(filter(None, (text, labels.of_scope("access", curve.scope.access))))
    return text


def members(curve: ProvenCurve) -> str:
    """Return what the attacker identifies: ``members``, ``groups of 8 members``, ``member users``."""
    name, bracket, most = curve.scope.unit.partition(" (")
    member = "members" if name == "record" else f"member {name}s"
    member = member if curve.group_size == 1 else f"groups of {curve.group_size} {member}"
    replaced = " rather than their replacements" if curve.scope.adjacency == "replace-one" else ""
    return f"{member}{bracket}{most}{replaced}"


def _reconstruction(audit: AuditResult) -> Iterator[str]:
    """Yield, for each proved claim about reconstruction, the success rate with and without the release."""
    blocks = audit.document.get("claims", ())
    for verdict in audit.verdicts:
        if verdict.quantity != "gamma" or verdict.verdict != "proved" or verdict.provable is None:
            continue
        for block in blocks if isinstance(blocks, list | tuple) else ():
            kappa = block.get("kappa") if isinstance(block, Mapping) and block.get("id") == verdict.claim else None
            if isinstance(kappa, int | float) and not isinstance(kappa, bool):
                yield (
                    f"Reconstruction: an attacker who guesses the record with probability {decimals.exact(kappa)} "
                    f"without the release succeeds with probability at most "
                    f"{decimals.upper(verdict.provable, digits=3)} with it."
                )
