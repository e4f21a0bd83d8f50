"""Success rates of membership inference and of reconstruction that proved bounds allow.

Text from specs and plugins is returned unescaped: each format escapes it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpspec.engine.judging.evidence_weight import ProvenCurve, proven_curves
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult
from dpspec.reporters import words

#: The false-positive rates of the attacker; the first decides which audit is the worst.
FALSE_POSITIVES = (0.01, 0.1)

#: From bounds at smaller deltas alone no rate at ``FALSE_POSITIVES`` is computed.
_LARGE = 0.1

#: A detection rate above this is reported as certain.
_CERTAIN = 0.999

_DEVIATES = (
    "The executed run deviates from the declared mechanism. No bound applies to it, and its risk may be far higher "
    "than that of the declared mechanism."
)
_CONTRADICTED = "An attack contradicts the bound behind these rates: do not rely on them."
_ONE_POINT = (
    "Bounds at small deltas alone would overstate an attacker's success, so no rate is stated: the mechanism bounds no "
    "curve."
)
_NOTHING = (
    "No proved bound covers every record in both directions (adding and removing), so no attacker's rate follows."
)


@dataclass(frozen=True)
class Rate:
    """``powers`` are maximum true-positive rates of membership inference at ``FALSE_POSITIVES``."""

    scope: str
    members: str
    powers: tuple[float, ...]
    group_size: int

    def __str__(self) -> str:
        before = f"{self.scope}: " if self.scope else ""
        if self.powers[0] > _CERTAIN:
            return words.sentence(f"{before}the proved bound allows an attacker to identify all {self.members}.")
        guesses = [f"{decimals.exact(100.0 * rate)}%" for rate in FALSE_POSITIVES]
        first, second = (f"{decimals.upper(100.0 * power, digits=3)}%" for power in self.powers)
        return words.sentence(
            f"{before}at a {guesses[0]} false-positive rate an attacker identifies at most {first} of "
            f"{self.members}, at {guesses[1]} at most {second}; guessing gives {guesses[0]} and {guesses[1]}."
        )


def risk(audit: AuditResult) -> tuple[str, ...]:
    """Sentences, after the reasons not to rely on them; never empty."""
    if _deviates(audit):
        return (_DEVIATES,)
    found = [str(rate) for rate in rates(audit)]
    for verdict in audit.verdicts:  # the success rate of reconstruction with and without the release
        if verdict.quantity != "gamma" or verdict.verdict != "proved" or verdict.provable is None:
            continue
        kappa = words.claim_block(audit, verdict).get("kappa")
        if isinstance(kappa, int | float) and not isinstance(kappa, bool):
            found.append(
                f"Reconstruction: an attacker who guesses the record with probability {decimals.exact(kappa)} without "
                f"the release succeeds with probability at most {decimals.upper(verdict.provable, digits=3)} with it."
            )
    if not found:
        return (_ONE_POINT if proven_curves(audit) else _NOTHING,)
    return ((_CONTRADICTED,) if _contradicted(audit) else ()) + tuple(found)


def rates(audit: AuditResult) -> tuple[Rate, ...]:
    """Return the rates that proved curves allow. Empty if the executed run deviates: no bound applies to it.

    The power of any membership test at false-positive rate a is at most 1 - f(a), f the proved trade-off curve (Dong,
    Roth and Su 2022). Only curves for both directions and all records count, and only ones with large deltas: one point
    (epsilon, delta) also allows mechanisms with far higher rates.
    """
    found = []
    for curve in () if _deviates(audit) else filter(_is_whole, proven_curves(audit)):
        of, size = curve.scope, curve.group_size
        scope = words.curve(curve).removeprefix(words.groups(size, of.unit)).removeprefix(", ")
        if "access" not in curve.varying and of.access != "all-iterates":
            scope = ", ".join(filter(None, (scope, words.scope_part("access", of.access))))
        name, bracket, most = of.unit.partition(" (")
        member = "members" if name == "record" else f"member {name}s"
        member = member if size == 1 else f"groups of {size} {member}"
        replaced = " rather than their replacements" if of.adjacency == "replace-one" else ""
        powers = tuple(min(1.0, float(curve.polygon.tpr(rate))) for rate in FALSE_POSITIVES)
        found.append(Rate(scope, f"{member}{bracket}{most}{replaced}", powers, size))
    return tuple(found)


def _is_whole(curve: ProvenCurve) -> bool:
    """Whether all bounds are pure DP, or there are several and one has a large delta or epsilon 0."""
    epsilon, delta = curve.pairs[0]
    return epsilon == 0.0 or (delta >= _LARGE if len(curve.pairs) > 1 else delta == 0.0)


def _deviates(audit: AuditResult) -> bool:
    return audit.conformance.status == "deviates"


def _contradicted(audit: AuditResult) -> bool:
    return any(verdict.verdict == "contradicted" for verdict in audit.verdicts)


def compared(audits: Sequence[AuditResult], titles: Sequence[str]) -> Iterator[str]:
    """The highest rate of the audits, each by its smallest groups."""
    if any(map(_deviates, audits)):
        yield "No bound applies to a run that deviates from its declaration."
    found = []
    for audit, title in zip(audits, titles, strict=True):
        all_rates = () if _contradicted(audit) else rates(audit)
        smallest = [rate for rate in all_rates if rate.group_size == all_rates[0].group_size]
        found += [(max(smallest, key=lambda rate: rate.powers[0]), title)] if smallest else []
    if not found:
        yield "No attacker's rate follows from the proved bounds; the reasons are below."
        return
    rate, title = max(found, key=lambda one: one[0].powers[0])
    yield f"Highest in {title}. {rate} The rates of each audit are below."
    if len(found) < len(audits):
        yield f"No rate follows for {words.count(len(audits) - len(found), 'audit')}."
