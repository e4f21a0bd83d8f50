"""Claim kinds: the inequalities that findings are compared with, and the curve that attacks test.

A kind is one entry of the table at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dpspec.contract import Claim, FrozenMap, Json
from dpspec.engine.results.decimals import exact
from dpspec.text import several

Side: TypeAlias = Literal["at-most", "at-least"]
Points: TypeAlias = tuple[tuple[float, float], ...]

#: Values of conditions that a finding omits.
_DEFAULTS: Mapping[str, Json] = {"group_size": 1, "delta": 0.0, "split": "test", "about": "pipeline"}

#: Orders of conditions: +1 if a bound at a larger value holds at a smaller one (group sizes), -1 for the reverse
#: (delta). Other conditions must be equal.
_ORDERS: Mapping[str, int] = {"delta": -1, "group_size": 1, "alpha": 1, "kappa": 1, "fpr": 1, "fraction": 1}


@dataclass(frozen=True, kw_only=True)
class Part:
    """One inequality of a claim: ``quantity`` is at most (at least) ``claimed`` under the conditions ``at``."""

    quantity: str
    claimed: float
    side: Side = "at-most"
    at: FrozenMap = field(default_factory=FrozenMap)

    def within(self, value: float) -> bool:
        return value <= self.claimed if self.side == "at-most" else value >= self.claimed

    def holds_under(self, at: Mapping[str, Json]) -> bool:
        """Whether a proving bound under the conditions ``at`` holds under the claim's; not for unknown conditions."""
        return self._compare(at, 1)

    def speaks_of(self, at: Mapping[str, Json]) -> bool:
        """Whether a bound on the other side, or an attack, under ``at`` can refute the claim."""
        return self._compare(at, -1)

    def _compare(self, at: Mapping[str, Json], sign: int) -> bool:
        if any(key not in self.at and at[key] != _DEFAULTS.get(key) for key in at):
            return False
        for key, mine in self.at.items():
            theirs = at.get(key, _DEFAULTS.get(key))
            if theirs == mine:
                continue
            if theirs is None or key not in _ORDERS or (theirs > mine) != (_ORDERS[key] * sign > 0):
                return False
        return True


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A claim in parts.

    All ``parts`` must be proved; a refuted one refutes the claim. ``points`` are the implied (epsilon, delta) pairs,
    together the null hypothesis of attacks; ``curve`` gives them for another claimed value, if the claim has a single
    one.
    """

    text: str
    parts: tuple[Part, ...]
    points: Points = ()
    curve: Callable[[float], Points] | None = field(default=None, compare=False)
    about_privacy: bool = True


#: The options of a claim: the keys of its kind.
Options: TypeAlias = Mapping[str, Json]

#: One inequality: the quantity, its upper limit, and the conditions.
PartOf: TypeAlias = tuple[str, float, Options]


@dataclass(frozen=True, kw_only=True)
class ClaimKind:
    """The text of a kind of claims (``among`` follows its scope), its at-most inequalities and implied (epsilon,
    delta) pairs.

    ``value`` is the option with the claimed value, if a single one determines the points.
    """

    says: Callable[[Options], str]
    among: Callable[[Options], str] = lambda options: ""
    parts: Callable[[Options], list[PartOf]]
    points: Callable[[Options], Points] = lambda options: ()
    value: str = ""


def statement(claim: Claim) -> Statement:
    """A claim in parts. A kind that only a plugin knows has none and stays open."""
    if claim.kind == "metric":
        return _metric(claim)
    kind = _KINDS.get(claim.kind)
    if kind is None:
        return Statement(text=f"{claim.kind}{narrowing(claim)}", parts=(), about_privacy=False)
    options, size, value = claim.options, claim.group_size, kind.value
    return Statement(
        text=f"{kind.says(options)}{narrowing(claim)}{kind.among(options)}",
        parts=tuple(
            Part(quantity=quantity, claimed=claimed, at=FrozenMap({**at, "group_size": size}))
            for quantity, claimed, at in kind.parts(options)
        ),
        points=kind.points(options),
        curve=(lambda claimed: kind.points({**options, value: claimed})) if value else None,
    )


def implied_points(kind: str, options: Options) -> Points:
    """The (epsilon, delta) pairs that a claim implies. Raises various errors if it is invalid."""
    return _KINDS[kind].points(options) if kind in _KINDS else ()


def about_privacy(kind: str) -> bool:
    """Claims about metrics and kinds of plugins are not about privacy."""
    return kind in _KINDS


def for_whom(group_size: int, unit: str) -> str:
    """The number of protected units as a suffix; empty for one record.

    >>> for_whom(8, "record"), for_whom(1, "user (at most 4 records)"), for_whom(2, "user (at most 4 records)")
    (' for groups of 8', ' for one user (at most 4 records)', ' for 2 users (at most 4 records each)')
    """
    if unit == "record":
        return f" for groups of {group_size}" if group_size != 1 else ""
    return f" for {several(group_size, unit)}"


def narrowing(claim: Claim) -> str:
    text = for_whom(claim.group_size, claim.unit)
    text += f" for record {claim.record}" if claim.record is not None else ""
    text += {"both": "", "remove": " if records are removed", "add": " if records are added"}[claim.direction]
    text += f" in datasets of at least {claim.min_records} records" if claim.min_records else ""
    text += f" between neighbours with the {claim.neighbours.replace('-', ' ')}" if claim.neighbours != "all" else ""
    over = {None: "", "all": " over all datasets", "this": " for this dataset", "collection": " over the collection"}
    return text + over.get(claim.over, f" over {claim.over}")


#: The subject of a claim about a metric: one trained model, or the mean over trainings.
_ABOUT = {"model": " of the first run's model", "pipeline": " on average over training"}


def _metric(claim: Claim) -> Statement:
    name, about = str(claim["name"]), str(claim.options.get("about", "pipeline"))
    sides: tuple[tuple[str, Side, str], ...] = (("at_least", "at-least", ">="), ("at_most", "at-most", "<="))
    more = {key: value for key, value in claim.options.items() if key not in ("name", "at_least", "at_most")}
    at = FrozenMap({"split": "test", "about": about, **more})
    given = [(side, sign, float(claim[key])) for key, side, sign in sides if claim.options.get(key) is not None]
    return Statement(
        text=" and ".join(f"{name} {sign} {exact(value)}" for _, sign, value in given) + _ABOUT.get(about, ""),
        parts=tuple(Part(quantity=name, claimed=value, side=side, at=at) for side, _, value in given),
        about_privacy=False,
    )


def _pair(options: Options) -> Points:
    return ((float(options["epsilon"]), float(options.get("delta", 0.0))),)


def _say_pair(options: Options) -> str:
    ((epsilon, delta),) = _pair(options)
    return f"epsilon <= {exact(epsilon)} at delta = {exact(delta)}"


def _pair_parts(options: Options) -> list[PartOf]:
    ((epsilon, delta),) = _pair(options)
    return [("epsilon", epsilon, {"delta": delta, **_population(options)})]


def _population(options: Options) -> dict[str, Json]:
    return {key: options[key] for key in ("fraction", "population") if key in options}


def _curve(kind: str, *values: Any) -> Points:
    from dpspec.stats.attacks import curve_lines

    points: Points = getattr(curve_lines, kind)(*values)
    return points


def _tpr_at_fpr(options: Options) -> str:
    return f"{exact(float(options['tpr']))} at fpr = {exact(float(options['fpr']))}"


def _tpr_part(options: Options) -> PartOf:
    return "tpr", float(options["tpr"]), {"fpr": float(options["fpr"])}


#: Claims about privacy. A new kind is an entry here, with its keys in ``claim_kinds.json``.
_KINDS: Mapping[str, ClaimKind] = {
    "approx-dp": ClaimKind(says=_say_pair, parts=_pair_parts, points=_pair, value="epsilon"),
    "pure-dp": ClaimKind(says=_say_pair, parts=_pair_parts, points=_pair, value="epsilon"),
    "renyi-dp": ClaimKind(
        says=lambda o: f"Renyi epsilon <= {exact(float(o['epsilon']))} at order {exact(float(o['alpha']))}",
        parts=lambda o: [("epsilon", float(o["epsilon"]), {"alpha": float(o["alpha"])})],
        points=lambda o: _curve("renyi", float(o["alpha"]), float(o["epsilon"])),
        value="epsilon",
    ),
    "gdp": ClaimKind(
        says=lambda o: f"mu <= {exact(float(o['mu']))}",
        parts=lambda o: [("mu", float(o["mu"]), {})],
        points=lambda o: _curve("gaussian", float(o["mu"])),
        value="mu",
    ),
    "tradeoff": ClaimKind(
        says=lambda o: "tpr <= " + ", ".join(_tpr_at_fpr(point) for point in o["points"]),
        parts=lambda o: [_tpr_part(point) for point in o["points"]],
        points=lambda o: _curve("tradeoff", [(float(point["fpr"]), float(point["tpr"])) for point in o["points"]]),
    ),
    "rero": ClaimKind(
        says=lambda o: f"reconstruction gamma <= {exact(float(o['gamma']))} at kappa = {exact(float(o['kappa']))}",
        parts=lambda o: [("gamma", float(o["gamma"]), {"kappa": float(o["kappa"])})],
    ),
    "per-instance-dp": ClaimKind(
        says=_say_pair,
        among=lambda o: (
            f" for at least {exact(100.0 * float(o['fraction']))}% of the {o.get('population', '')} records"
            if "fraction" in o
            else ""
        ),
        parts=_pair_parts,
        points=lambda o: () if _population(o) else _pair(o),  # attacks speak of records
    ),
    "membership": ClaimKind(
        says=lambda o: (
            f"membership advantage <= {exact(float(o['advantage']))}"
            if "advantage" in o
            else f"membership tpr <= {_tpr_at_fpr(o)}"
        ),
        parts=lambda o: [("advantage", float(o["advantage"]), {})] if "advantage" in o else [_tpr_part(o)],
    ),
}
