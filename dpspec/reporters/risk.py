"""Success rates of membership inference and of reconstruction that proved bounds allow.

Text from specs and plugins is returned unescaped: each format escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dpspec.engine.judging.evidence_weight import proven_curves
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult
from dpspec.reporters import labels

#: The false-positive rates of the attacker; audits are compared at the first.
FALSE_POSITIVES = (0.01, 0.1)

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


@dataclass(frozen=True)
class Rate:
    """``powers`` are maximum true-positive rates of membership inference at ``FALSE_POSITIVES``."""

    scope: str
    members: str
    powers: tuple[float, ...]
    remark: str = ""

    @property
    def certain(self) -> bool:
        return self.powers[0] > _CERTAIN

    @property
    def percent(self) -> str:
        """Rounded up."""
        return f"{decimals.upper(100.0 * self.powers[0], digits=3)}%"

    def __str__(self) -> str:
        before = f"{self.scope}: " if self.scope else ""
        if self.certain and not self.remark:
            return labels.sentence(f"{before}the proved bound allows an attacker to identify all {self.members}.")
        guesses = [f"{decimals.exact(100.0 * rate)}%" for rate in FALSE_POSITIVES]
        second = f"{decimals.upper(100.0 * self.powers[1], digits=3)}%"
        text = labels.sentence(
            f"{before}at a {guesses[0]} false-positive rate an attacker identifies at most {self.percent} of "
            f"{self.members}, at {guesses[1]} at most {second}; guessing gives {guesses[0]} and {guesses[1]}."
        )
        return f"{text} {self.remark}" if self.remark else text


def risk(audit: AuditResult) -> tuple[str, ...]:
    """Sentences, after the reasons not to rely on them; never empty."""
    if _deviates(audit):
        return (_DEVIATES,)
    found = [str(rate) for rate in rates(audit)]
    for verdict in audit.verdicts:  # the success rate of reconstruction with and without the release
        if verdict.quantity != "gamma" or verdict.verdict != "proved" or verdict.provable is None:
            continue
        kappa = labels.claim_block(audit, verdict).get("kappa")
        if isinstance(kappa, int | float) and not isinstance(kappa, bool):
            found.append(
                f"Reconstruction: an attacker who guesses the record with probability {decimals.exact(kappa)} without "
                f"the release succeeds with probability at most {decimals.upper(verdict.provable, digits=3)} with it."
            )
    if not found:
        return (_NOTHING,)
    return ((_CONTRADICTED,) if contradicted(audit) else ()) + tuple(found)


def rates(audit: AuditResult) -> tuple[Rate, ...]:
    """Return the rates that proved curves allow, else those from claims in one direction.

    Empty if the executed run deviates: no bound applies to it.

    The power of any membership test at false-positive rate a is at most 1 - f(a), f the proved trade-off curve (Dong,
    Roth and Su 2022). Only curves for both directions and all records count.
    """
    if _deviates(audit):
        return ()
    found = []
    for curve in proven_curves(audit):
        of, size = curve.scope, curve.group_size
        scope = labels.curve(curve).removeprefix(labels.groups(size, of.unit)).removeprefix(", ")
        if "access" not in curve.varying and of.access != "all-iterates":
            scope = ", ".join(filter(None, (scope, labels.scope_part("access", of.access))))
        name, bracket, most = of.unit.partition(" (")
        member = "members" if name == "record" else f"member {name}s"
        member = member if size == 1 else f"groups of {size} {member}"
        replaced = " rather than their replacements" if of.adjacency == "replace-one" else ""
        powers = tuple(min(1.0, float(curve.polygon.tpr(rate))) for rate in FALSE_POSITIVES)
        found.append(Rate(scope, f"{member}{bracket}{most}{replaced}", powers))
    return tuple(found) or tuple(_one_sided(audit))


def weakest(audit: AuditResult) -> Rate | None:
    """The highest rate among the smallest groups; None without a curve, or if an attack contradicts a bound."""
    curves = [] if _deviates(audit) or contradicted(audit) else proven_curves(audit)
    smallest = [rate for one, rate in zip(curves, rates(audit), strict=False) if one.group_size == curves[0].group_size]
    return max(smallest, key=lambda one: one.powers[0], default=None)


def _deviates(audit: AuditResult) -> bool:
    return audit.conformance.status == "deviates"


def contradicted(audit: AuditResult) -> bool:
    return any(verdict.verdict == "contradicted" for verdict in audit.verdicts)


def _one_sided(audit: AuditResult) -> Iterator[Rate]:
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
            powers = tuple(min(1.0, factor * rate + delta) for rate in FALSE_POSITIVES)
            yield Rate(
                labels.access(audit, verdict),
                "members" if size == 1 else f"groups of {size} members",
                powers,
                f"This follows from the certified bound of claim {verdict.claim}, which holds for removing a record "
                "only.",
            )


def compared(audits: Sequence[AuditResult], titles: Sequence[str]) -> Iterator[str]:
    if any(map(_deviates, audits)):
        yield "No bound applies to a run that deviates from its declaration."
    found = [(rate, title) for audit, title in zip(audits, titles, strict=True) if (rate := weakest(audit)) is not None]
    if not found:
        yield "No proved bound covers every record in both directions, so no attacker's rate follows."
        return
    least, most = (choose(found, key=lambda one: one[0].powers[0]) for choose in (min, max))
    guess = f"{decimals.exact(100.0 * FALSE_POSITIVES[0])}%"
    low, high = (
        f"{rate.percent} of {rate.members}{f' ({rate.scope})' if rate.scope else ''}" for rate, _ in (least, most)
    )
    worst = "" if least[1] == most[1] else f", and {high} in {most[1]}"
    yield (
        f"At a {guess} false-positive rate an attacker identifies at most {low} in {least[1]}{worst}; guessing gives "
        f"{guess}. The rates of each audit are below."
    )
    if len(found) < len(audits):
        yield f"No rate follows for {labels.count(len(audits) - len(found), 'audit')}."
