"""The weight of a finding for a claim: a proof, weaker evidence, or none, by the orders on the parts of a scope."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from dpspec.contract import (
    Assumption,
    Claim,
    Evidence,
    Finding,
    FrozenMap,
    Json,
    Scope,
    Series,
    Spec,
    is_privacy_quantity,
)
from dpspec.contract.results import AuditResult
from dpspec.results.inequalities import Part

if TYPE_CHECKING:
    from dpspec.accounting import Polygon


#: Orders from weak to strong: a result against, or over, the stronger applies to the weaker too.
_ACCESS = {"final-model": 0, "all-iterates": 1, "transcript": 2}
_ADVERSARY = {"none": 0, "record": 1, "gradient": 2}


def covers(upper: Scope, claim: Scope) -> bool:
    """Whether a statement about all of ``upper`` holds for all of ``claim``.

    An upper bound counts for a claim if ``covers(bound, claim)``; an attack or a lower bound counts if ``covers(claim,
    attack)``. Adjacency and unit must agree. ``both`` directions cover either one; a transcript covers all iterates,
    which cover the final model; an adversary who chooses gradients covers one who chooses records, who covers one who
    chooses nothing; all datasets cover a declared collection, this one, and ``planted`` ones; all records cover one;
    datasets of any number of records cover larger ones, and all neighbors restricted ones. A collection and this
    dataset do not cover each other: a neighbor of this dataset may be outside the collection. ``pipeline`` is not
    compared, because conformance covers it. Other values cover only themselves.
    """
    return (
        upper.adjacency == claim.adjacency
        and upper.unit == claim.unit
        and upper.direction in ("both", claim.direction)
        and (upper.access == claim.access or _ACCESS.get(upper.access, -1) > _ACCESS.get(claim.access, 9))
        and (
            upper.adversary == claim.adversary
            or _ADVERSARY.get(upper.adversary, -1) > _ADVERSARY.get(claim.adversary, 9)
        )
        and upper.data in ("all", claim.data)
        and upper.record in ("all", claim.record)
        and upper.min_records <= claim.min_records
        and upper.neighbours in ("all", claim.neighbours)
    )


def shortfall(upper: Scope, claim: Scope) -> list[str]:
    return [
        _short(name, value, getattr(claim, name))
        for name, value in dataclasses.asdict(upper).items()
        if not covers(dataclasses.replace(claim, **{name: value}), claim)
    ]


def _short(name: str, value: object, claimed: object) -> str:
    if name == "min_records":
        claims = f"datasets of at least {claimed}" if claimed else "any"
        needs = f"it needs datasets of at least {value} records"
        return f"{needs}, and the claim covers {claims}: set threat_model.min_records"
    if name == "neighbours":
        claims = "all" if claimed == "all" else repr(claimed)
        holds = f"it holds between neighbours of kind {value!r}"
        return f"{holds}, and the claim covers {claims}: set threat_model.neighbours"
    text = f"its {name} is {value!r}, and the claim's {claimed!r}"
    return f"{text}: set over: this in the claim" if (name, value) == ("data", "this") else text


def claim_scope(spec: Spec, claim: Claim) -> Scope:
    """The scope of a claim: the threat model's, narrowed by the claim's own keys.

    Without ``over`` a claim covers all datasets; a per-instance claim covers the declared one. The adversary is the
    strongest one by default.
    """
    return Scope(
        adjacency=claim.adjacency,
        unit=spec.unit,
        direction=claim.direction,
        access=claim.access,
        adversary=str(spec.threat_model.options.get("adversary", "gradient")),
        data=claim.over or ("this" if claim.kind == "per-instance-dp" else "all"),
        record="all" if claim.record is None else claim.record,
        min_records=claim.min_records,
        neighbours=claim.neighbours,
    )


#: From strong to weak. ``conditional``: an inequality for fewer datasets than the claim covers, or with an unchecked
#: assumption.
Strength: TypeAlias = Literal["proof", "conditional", "statistical", "approximate"]
STRENGTHS: tuple[Strength, ...] = ("proof", "conditional", "statistical", "approximate")


@dataclass(frozen=True, kw_only=True)
class WeighedFinding:
    index: int
    finding: Finding
    value: float
    strength: Strength


def weighed_findings(
    part: Part, scope: Scope | None, findings: Sequence[Finding], *, opposing: bool = False
) -> list[WeighedFinding]:
    """The findings on the proving side of a part (upper bounds for an at-most claim), strongest and tightest first.

    ``scope`` is the claim's, or None for a claim about a metric, which only measurements decide. Estimates count as
    approximate if their scope covers the claim's and they are about the declared mechanism.

    If ``opposing``, the findings on the other side, the farthest first among approximate and other ones. They count
    only if the claim's scope covers theirs. The lower end of an upper bound does not count.
    """
    if scope is None and not is_metric(part.quantity, findings):
        return []
    side = "upper" if (part.side == "at-most") != opposing else "lower"
    weighed: list[WeighedFinding] = []
    for index, finding in enumerate(findings):
        if finding.quantity != part.quantity:
            continue
        if opposing:
            covered = scope is None or covers(scope, finding.scope)
            counts = finding.bound == side and part.matches(finding.at, opposing=True) and covered
        else:
            counts = finding.bound in (side, "estimate") and part.matches(finding.at)
        strength = _strength(finding, None if opposing else scope)
        if counts and strength is not None:
            weighed.append(WeighedFinding(index=index, finding=finding, value=finding.value, strength=strength))
    sign = 1.0 if side == "upper" else -1.0
    if opposing:
        return sorted(weighed, key=lambda w: (w.strength == "approximate", sign * w.value, w.index))
    return sorted(weighed, key=lambda w: (STRENGTHS.index(w.strength), sign * w.value, w.index))


def proven_bound(finding: Finding) -> bool:
    """Whether a finding is an inequality on which a verdict may depend, within its scope."""
    return finding.bound != "estimate" and _strength(finding, None) == "proof"


def measures(measurement: Finding | Evidence) -> bool:
    """Whether a finding or evidence is a measurement of the executed run, which may decide a claim about a metric."""
    scope = measurement.scope
    executed = scope.pipeline == "executed" and scope.adversary == "none" and scope.record == "all"
    return executed and not is_privacy_quantity(measurement.quantity)


def is_metric(quantity: str, findings: Sequence[Finding]) -> bool:
    """Whether a quantity is a metric: not a privacy quantity, and all its findings are measurements."""
    return not is_privacy_quantity(quantity) and all(measures(f) for f in findings if f.quantity == quantity)


def _bounds_on(part: Part, findings: Sequence[Finding]) -> list[Finding]:
    side = "upper" if part.side == "at-most" else "lower"
    return [f for f in findings if (f.quantity, f.bound) == (part.quantity, side) and part.matches(f.at)]


def scope_shortfall(part: Part, scope: Scope | None, findings: Sequence[Finding]) -> str:
    """Why the proof that is nearest to a claim's scope does not cover it; empty without one."""
    if scope is None:
        return "" if is_metric(part.quantity, findings) else f"{part.quantity} is not a metric: it has a scope"
    short = [shortfall(f.scope, scope) for f in _bounds_on(part, findings) if proven_bound(f)]
    reasons = min(filter(None, short), key=len, default=[])
    return f"the nearest: {'; '.join(reasons)}" if reasons else ""


def enough_records(part: Part, scope: Scope | None, findings: Sequence[Finding]) -> int | None:
    """The smallest ``min_records`` with which a proof would be within the claim; None without one."""
    if scope is None:
        return None
    sizes = [
        f.scope.min_records
        for f in _bounds_on(part, findings)
        if proven_bound(f)
        and usable(f.assumptions)
        and part.within(f.value)
        and f.scope.min_records > scope.min_records
        and covers(f.scope, replace(scope, min_records=f.scope.min_records))
    ]
    return min(sizes, default=None)


def false_assumption(part: Part, scope: Scope, findings: Sequence[Finding]) -> str:
    """The bound that would decide a part, and its assumption that is false; empty without one."""
    for f in _bounds_on(part, findings):
        false = [a for a in f.assumptions if a.status == "false"]
        if false and covers(f.scope, scope) and part.within(f.value):
            return f"{false[0].name} is false: {false[0].text}"
    return ""


def group_size(bounded: Evidence | Finding) -> int:
    return int(bounded.at.get("group_size", 1))


def reaches(finding: Finding, scope: Scope) -> bool:
    return covers(replace(finding.scope, data="all"), scope)


def usable(assumptions: Sequence[Assumption]) -> bool:
    return all(a.status not in ("false", "unchecked") for a in assumptions)


def _strength(finding: Finding, scope: Scope | None) -> Strength | None:
    if math.isnan(finding.value) or (finding.printed is not None and finding.printed.refuted):
        return None
    if any(a.status == "false" for a in finding.assumptions):
        return None
    full = scope is None or covers(finding.scope, scope)
    if not full and scope is not None and not reaches(finding, scope):
        return None
    if finding.bound == "estimate":
        # An attack's estimate on the executed pipeline does not support a privacy claim.
        attacked = scope is not None and finding.scope.pipeline == "executed"
        return "approximate" if full and not attacked else None
    if finding.rigor == "approximate":
        return "approximate"
    if finding.rigor == "statistical":
        return "statistical"
    return "proof" if full and usable(finding.assumptions) else "conditional"


Pair = tuple[float, float]

#: The series of membership inference, its false-positive rates, and the smallest delta that makes a curve whole.
TRADE_OFF = "trade-off"
_RATES = tuple(10.0 ** (-6 + i / 4) for i in range(25))
_LARGE_DELTA = 0.1


@dataclass(frozen=True)
class ProvenCurve:
    """The proven pairs for one group size and scope; ``varying`` are the keys of the scope in which curves differ."""

    group_size: int
    scope: Scope
    varying: tuple[str, ...]
    pairs: tuple[Pair, ...]

    @property
    def polygon(self) -> Polygon:
        return polygon(self.pairs)

    @property
    def is_whole(self) -> bool:
        """Whether all bounds are pure DP, or there are several and one has a large delta or epsilon 0.

        Bounds at small deltas alone allow far higher rates of membership inference than the mechanism.
        """
        epsilon, delta = self.pairs[0]
        return epsilon == 0.0 or (delta >= _LARGE_DELTA if len(self.pairs) > 1 else delta == 0.0)


def proven_curves(audit: AuditResult) -> list[ProvenCurve]:
    return curves_of(audit.findings, audit.series)


def trade_off(findings: Sequence[Finding], series: Sequence[Series]) -> Series | None:
    """The maximum true-positive rate of membership inference at each false-positive rate, for each whole curve.

    It is 1 - f, with f the trade-off function that the proved (epsilon, delta) imply (Dong, Roth and Su 2022).
    """
    curves = [curve for curve in curves_of(findings, series) if curve.is_whole]
    if not curves:
        return None
    bounds = [finding for finding in findings if finding.bound == "upper" and curve_points(finding)]
    keys = ("group_size", *curves[0].varying)
    columns: dict[str, list[Json]] = {name: [] for name in (*keys, "false_positive_rate", "true_positive_rate")}
    for curve in curves:
        rates = nodes_of(curve.polygon, _RATES)
        powers = curve.polygon.tpr(rates).clip(max=1.0).tolist()
        values = (curve.group_size, *(getattr(curve.scope, key) for key in curve.varying))
        for rate, power in zip(rates, powers, strict=True):
            for name, value in zip(columns, (*values, rate, power), strict=True):
                columns[name].append(value)
    return Series(
        name=TRADE_OFF,
        title="Maximum power of membership inference against its false-positive rate",
        columns=FrozenMap(columns),
        units=FrozenMap(dict.fromkeys(columns, "")),
        rigor="theorem",
        source="Dong, Roth and Su 2022",
        privacy=max((finding.privacy for finding in bounds), key=("public", "data-dependent", "per-record").index),
        plot=FrozenMap(
            {"x": "false_positive_rate", "y": ["true_positive_rate"], "by": "group_size", "log": ["x", "y"]}
        ),
        bounds=FrozenMap({"true_positive_rate": "upper"}),
    )


def nodes_of(curve: Polygon, rates: Sequence[float]) -> tuple[float, ...]:
    """The ``rates`` and the rates of the curve's vertices between them, in order.

    A curve of maximum rates is concave: a straight line between two nodes is below a vertex between them. Without a
    vertex it is the curve on linear axes, and above it on logarithmic ones.
    """
    inside = curve.alpha[(curve.alpha > rates[0]) & (curve.alpha < rates[-1])]
    return tuple(sorted({*rates, *inside.tolist()}))


def curves_of(findings: Sequence[Finding], series: Sequence[Series]) -> list[ProvenCurve]:
    """All curves of proven upper bounds in both directions for all records, by ascending group size.

    A bound counts if a verdict may depend on it (``proven_bound``). A certified or theorem series of delta over epsilon
    adds its points if the bounds for its group size, and for its adjacency if it has that column, have one scope only.
    """
    pairs: dict[tuple[int, Scope], list[Pair]] = {}
    for finding in findings:
        everywhere = (finding.scope.direction, finding.scope.record) == ("both", "all")
        if everywhere and finding.bound == "upper" and proven_bound(finding):
            of_curve = [pair for pair in curve_points(finding) if math.isfinite(pair[0])]
            if of_curve:
                pairs.setdefault((group_size(finding), finding.scope), []).extend(of_curve)
    for profile in series:
        if is_profile(profile) and profile.rigor in ("certified", "theorem"):
            for adjacency, size, pair in _points(profile):
                keys = [key for key in pairs if key[0] == size and adjacency in ("", key[1].adjacency)]
                if len(keys) == 1:
                    pairs[keys[0]].append(pair)
    scopes = [asdict(scope) for _, scope in pairs]
    varying = tuple(key for key in (scopes[0] if scopes else {}) if len({scope[key] for scope in scopes}) > 1)
    curves = []
    for (size, scope), of_scope in sorted(pairs.items(), key=lambda item: item[0][0]):
        frontier: list[Pair] = []  # without pairs that another one implies, from the largest delta to the smallest
        for epsilon, delta in sorted(set(of_scope)):
            if not frontier or delta < frontier[-1][1]:
                frontier.append((epsilon, delta))
        curves.append(ProvenCurve(size, scope, varying, tuple(frontier)))
    return curves


def polygon(pairs: Iterable[Pair]) -> Polygon:
    from dpspec.accounting import Polygon

    return Polygon.from_epsilon_delta((max(0.0, epsilon), min(1.0, max(0.0, delta))) for epsilon, delta in pairs)


def is_profile(series: Series) -> bool:
    y = series.plot.get("y")
    return series.plot.get("x") == "epsilon" and isinstance(y, list | tuple) and tuple(y) == ("delta",)


def _points(series: Series) -> Iterator[tuple[str, int, Pair]]:
    """The rows as (adjacency, group size, pair), with an empty adjacency and size 1 without such columns."""
    columns = series.columns
    blank: Mapping[str, Json] = {"adjacency": "", "group_size": 1}
    names = ("adjacency", "group_size", "epsilon", "delta")
    rows = zip(*(columns.get(name, [blank.get(name)] * len(columns["epsilon"])) for name in names), strict=True)
    for adjacency, size, epsilon, delta in rows:
        if isinstance(epsilon, int | float) and isinstance(delta, int | float) and math.isfinite(epsilon):
            yield str(adjacency), int(size), (float(epsilon), float(delta))


def series_bounds(findings: Sequence[Finding], series: Sequence[Series]) -> list[Finding]:
    """The points of proved profiles as upper bounds, so that attacks test every curve that a report draws.

    A point holds in the scope of the proven bounds for its group size and adjacency. If these have several scopes, it
    holds at least in the one that all others cover; without such a scope no report draws it.
    """
    first: dict[tuple[int, Scope], Finding] = {}
    for finding in findings:
        if finding.bound == "upper" and proven_bound(finding) and _is_on_curve(finding):
            first.setdefault((group_size(finding), finding.scope), finding)
    points = []
    for profile in series:
        if not is_profile(profile) or profile.rigor not in ("certified", "theorem"):
            continue
        for adjacency, size, (epsilon, delta) in _points(profile):
            scopes = [s for of_size, s in first if of_size == size and adjacency in ("", s.adjacency)]
            weakest = next((scope for scope in scopes if all(covers(wider, scope) for wider in scopes)), None)
            if weakest is not None:
                conditions = FrozenMap({"delta": delta, "group_size": size})
                value = max(0.0, epsilon)
                extended = replace(first[size, weakest], source=profile.source, recorded=profile.recorded, lower=None)
                points.append(replace(extended, quantity="epsilon", value=value, at=conditions))
    return points


def _is_on_curve(finding: Finding) -> bool:
    conditions = set(finding.at) - {"group_size"}
    return (finding.quantity == "epsilon" and conditions <= {"delta"}) or (finding.quantity == "mu" and not conditions)


def implied_pairs(finding: Finding) -> Sequence[Pair]:
    """The (epsilon, delta) pairs that an upper bound on any quantity of privacy implies."""
    from dpspec.stats.attacks import curve_lines

    conditions = set(finding.at) - {"group_size"}
    match finding.quantity:
        case "epsilon" if conditions == {"alpha"} and finding.at["alpha"] > 1.0:
            return curve_lines.renyi(float(finding.at["alpha"]), finding.value)
        case "rho" if not conditions:
            return curve_lines.concentrated(finding.value)
        case "advantage" if not conditions:
            return ((0.0, min(1.0, max(0.0, finding.value))),)
        case "tpr" if conditions == {"fpr"}:
            return curve_lines.tradeoff([(float(finding.at["fpr"]), finding.value)])
    return curve_points(finding)


def curve_points(finding: Finding) -> list[Pair]:
    """The (epsilon, delta) pairs that an upper bound on epsilon or mu implies; none for other quantities."""
    conditions = set(finding.at) - {"group_size"}
    if finding.quantity == "epsilon" and conditions <= {"delta"}:
        return [(max(0.0, finding.value), float(finding.at.get("delta", 0.0)))]
    if finding.quantity == "mu" and not conditions and finding.value < float("inf"):
        from dpspec.stats.attacks.curve_lines import gaussian

        return list(gaussian(finding.value))
    return []
