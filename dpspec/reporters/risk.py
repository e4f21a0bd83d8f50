"""Success rates of membership inference and of reconstruction that proved bounds allow.

Text from specs and plugins is returned unescaped: each format escapes it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dpspec import decimals
from dpspec.contract import Scope
from dpspec.contract.results import AuditResult, Verdict, claim_block, open_cautions
from dpspec.reporters import words
from dpspec.results.evidence_weight import group_size, proven_bound, proven_curves
from dpspec.results.void_bounds import has_void_bounds
from dpspec.text import joined, unit_parts

#: The false-positive rates of the attacker; the first decides which audit is the worst.
FALSE_POSITIVES = (0.01, 0.1)

#: A detection rate above this is reported as certain.
_CERTAIN = 0.999

#: The number of targets whose memberships are guessed, and the probability with which more guesses may be right.
TARGETS, EXCEEDED = 100, 0.05

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
    """``powers`` are maximum true-positive rates of membership inference at ``FALSE_POSITIVES``.

    ``targets`` names the units that are in the data or not. ``bound_scope`` is the scope of the proved bounds that the
    rates follow from, and ``pairs`` are their (epsilon, delta).
    """

    scope: str
    members: str
    targets: str
    powers: tuple[float, ...]
    group_size: int
    pairs: tuple[tuple[float, float], ...]
    bound_scope: Scope = field(default_factory=Scope)

    @property
    def identified(self) -> int:
        """The maximum expected number among 100, rounded up, at the first false-positive rate."""
        return min(100, math.ceil(100.0 * self.powers[0] - 1e-9))

    @property
    def order(self) -> tuple[float, float]:
        """The higher of two rates is the one of the larger loss, also where both attackers identify all."""
        return self.powers[0], max(epsilon for epsilon, _ in self.pairs)

    @property
    def holds_for_all_memberships(self) -> bool:
        """Whether the bounds hold for a target also if other targets are absent, as Theorem 61 requires."""
        bounded = self.bound_scope
        resized = bounded.adjacency == "add-remove" and bounded.min_records > 0
        return bounded.data == bounded.record == bounded.neighbours == "all" and not resized

    def of_many(self, targets: str = "") -> str:
        """Right guesses of who is in the data (Theorem 61 of ``docs/explanation/proofs/one-run.md``), or empty.

        Args:
            targets: Another name of the ``targets``.
        """
        from dpspec.stats import several_targets  # imports scipy, which most reports do not need

        mean = TARGETS * several_targets.mean_share(self.pairs)
        if not self.holds_for_all_memberships or mean > TARGETS - 1:
            return ""
        most = several_targets.most_right(self.pairs, TARGETS, EXCEEDED)
        alone = several_targets.most_right_by_guessing(TARGETS, EXCEEDED)
        rarely, guessing = "", f"{TARGETS / 2:g}"
        if most < TARGETS:
            rarely = f", and about more than {most} with probability at most {100.0 * EXCEEDED:g}%"
            guessing += f" and {alone}"
        before = f"{self.scope}: " if self.scope else ""
        replaced = ", rather than their replacements" if self.bound_scope.adjacency == "replace-one" else ""
        return words.sentence(
            f"{before}if fair coins decide which of {TARGETS} {targets or self.targets} are in the data{replaced}, an "
            f"attacker who guesses for all is right about at most {decimals.upper(mean, digits=3)} on average{rarely}; "
            f"without the release {guessing}."
        )

    def of_hundred(self) -> str:
        """The rate as a number of people, for readers who know no rates."""
        before = f"{self.scope}: " if self.scope else ""
        members = self.members.replace("members", "people in the data, with one record each", 1)
        if self.group_size > 1:
            members = self.members.replace("members", "people in the data")
        most = "may identify all" if self.identified == 100 else f"identifies at most {self.identified} on average"
        attacker = f"an attacker who falsely accuses 1 of 100 outsiders {most}"
        return words.sentence(f"{before}of 100 {members}, {attacker}. Guessing identifies 1.")

    @property
    def short(self) -> str:
        """For a group size after the first."""
        most = "all" if self.identified == 100 else f"at most {self.identified}"
        groups = " groups" if self.group_size > 1 else ""
        before = f"{self.scope}, " if self.scope else ""
        return words.sentence(f"{before}{self.members}: {most} of 100{groups}.")

    def __str__(self) -> str:
        before = f"{self.scope}: " if self.scope else ""
        if self.powers[0] > _CERTAIN:
            return words.sentence(f"{before}the proved bound allows an attacker to identify all {self.members}.")
        guesses = [decimals.percent(rate) for rate in FALSE_POSITIVES]
        first, second = (f"{decimals.upper(100.0 * power, digits=3)}%" for power in self.powers)
        return words.sentence(
            f"{before}at a {guesses[0]} false-positive rate an attacker identifies at most {first} of "
            f"{self.members}, at {guesses[1]} at most {second}; guessing gives {guesses[0]} and {guesses[1]}."
        )


def risk(audit: AuditResult) -> tuple[str, ...]:
    """Sentences, after the reasons not to rely on them; never empty."""
    if has_void_bounds(audit):
        return (_DEVIATES,)
    sentences = [str(rate) for rate in rates(audit)]
    sentences += filter(None, (rate.of_many() for rate in rates(audit)))
    for verdict in audit.verdicts:  # the success rate of reconstruction with and without the release
        if verdict.quantity != "gamma" or verdict.verdict != "proved" or verdict.provable is None:
            continue
        kappa = claim_block(audit, verdict).get("kappa")
        if isinstance(kappa, int | float) and not isinstance(kappa, bool):
            sentences.append(
                f"Reconstruction: an attacker who guesses the record with probability {decimals.exact(kappa)} without "
                f"the release succeeds with probability at most {decimals.upper(verdict.provable, digits=3)} with it."
            )
    if not sentences:
        return (_ONE_POINT if proven_curves(audit) else _NOTHING,)
    return (*([_CONTRADICTED] if _contradicted(audit) else []), *_conditions([audit]).values(), *sentences)


def _conditions(audits: Sequence[AuditResult]) -> dict[str, str]:
    """The conditions of the rates, in few words and as a sentence: open cautions, and runs that no test compared."""
    conditions = {}
    names = list(dict.fromkeys(rule.name for audit in audits for rule in open_cautions(audit)))
    if names:
        cautions = "the caution is" if len(names) == 1 else "all cautions are"
        conditions["the cautions are resolved"] = (
            f"This risk holds only if {cautions} resolved: {words.name_list(names)}. Otherwise it may be far higher."
        )
    untested = [audit for audit in audits if audit.conformance.status in ("not-run", "checks-missing")]
    if untested or not all(audit.complete for audit in audits):
        state = "was compared" if all(audit.complete for audit in audits) else "is completely compared yet"
        conditions["the training is as declared"] = (
            f"This is the risk of the declared mechanism: no executed run {state} with it."
            if len(untested) == len(audits)
            else "This is the risk of the declared mechanism: not every executed run is completely compared with it."
        )
    return conditions


def rate_of(audit: AuditResult, verdict: Verdict) -> Rate | None:
    """The rate that follows from the bound of a claim; None without a proof, or without a rate."""
    if verdict.kind == "metric" or verdict.upper_finding is None:
        return None
    bound = audit.findings[verdict.upper_finding]
    if not proven_bound(bound):
        return None
    size_and_scope = (group_size(bound), bound.scope)
    return next((rate for rate in rates(audit) if (rate.group_size, rate.bound_scope) == size_and_scope), None)


def rates(audit: AuditResult) -> tuple[Rate, ...]:
    """Return the rates that proved curves allow. Empty if the executed run deviates: no bound applies to it.

    The power of any membership test at false-positive rate a is at most 1 - f(a), f the proved trade-off curve (Dong,
    Roth and Su 2022). Only curves for both directions and all records count, and only ones with large deltas: one point
    (epsilon, delta) also allows mechanisms with far higher rates.
    """
    by_curve = []
    for curve in () if has_void_bounds(audit) else (curve for curve in proven_curves(audit) if curve.is_whole):
        curve_scope, size = curve.scope, curve.group_size
        scope = ", ".join(words.varying_scopes(curve))
        if "access" not in curve.varying and curve_scope.access != "all-iterates":
            scope = ", ".join(filter(None, (scope, words.scope_part("access", curve_scope.access))))
        name, most = unit_parts(curve_scope.unit)
        if audit.recording is not None and audit.recording.is_federated:
            name = "client"  # the recorded records are clients
        target = f"{name}s" if size == 1 else f"groups of {size} {name}s"
        member = "members" if name == "record" else f"member {name}s"
        member = member if size == 1 else f"groups of {size} {member}"
        replaced = " rather than their replacements" if curve_scope.adjacency == "replace-one" else ""
        powers = tuple(min(1.0, float(curve.polygon.tpr(rate))) for rate in FALSE_POSITIVES)
        by_curve.append(
            Rate(scope, f"{member}{most}{replaced}", f"{target}{most}", powers, size, curve.pairs, curve_scope)
        )
    return tuple(by_curve)


def _contradicted(audit: AuditResult) -> bool:
    return any(verdict.verdict == "contradicted" for verdict in audit.verdicts)


@dataclass(frozen=True)
class HighestRate:
    """The highest rate of the smallest groups, rates of larger groups, and the limits of both.

    Attributes:
        title: The audit with the highest rate, of several.
        rate: None without a rate.
        larger: The rates of the next and of the largest group size of the same audit.
        caveats: Reasons for a missing rate, or not to rely on one.
        condition: Words after "risk" if rates hold for some audits, or under a condition; empty otherwise.
        is_highest: False if ``rate`` belongs to a shown claim, and ``larger`` has the highest one.
    """

    title: str
    rate: Rate | None
    larger: tuple[Rate, ...]
    caveats: tuple[str, ...]
    condition: str = ""
    is_highest: bool = True


def highest_rate(audits: Sequence[AuditResult], titles: Sequence[str]) -> HighestRate:
    """The highest rate of the audits, each by its smallest groups."""
    if len(audits) == 1 and not rates(audits[0]):
        return HighestRate("", None, (), risk(audits[0]))
    caveats = []
    if any(map(has_void_bounds, audits)):
        caveats.append("No bound applies to a run that deviates from its declaration.")
    if any(map(_contradicted, audits)):
        caveats.append(_CONTRADICTED)
    by_audit = [
        (title, () if _contradicted(audit) and len(audits) > 1 else rates(audit))
        for audit, title in zip(audits, titles, strict=True)
    ]
    rated = [
        (rate, title, tuple(larger for larger in of_audit if larger.group_size > rate.group_size))
        for title, of_audit in by_audit
        for rate in of_audit
        if rate.group_size == of_audit[0].group_size
    ]
    if not rated:
        caveats.append("No attacker's rate follows from the proved bounds; the reasons are below.")
        return HighestRate("", None, (), tuple(caveats))
    rate, title, larger = max(rated, key=lambda candidate: candidate[0].order)
    without = [title for title, of_audit in by_audit if not of_audit]
    if without:
        caveats.append(f"No rate follows for {words.name_list(without)}, which this risk does not cover.")
    subset = f" in {len(by_audit) - len(without)} of {len(by_audit)} audits" if without else ""
    conditions = _conditions(audits)
    return HighestRate(
        title=title if len(audits) > 1 else "",
        rate=rate,
        larger=(*larger[:1], *larger[1:][-1:]),
        caveats=(*caveats, *conditions.values()),
        condition=f"{subset}, if {joined(list(conditions))}" if conditions else subset,
    )
