"""What each claim kind says: inequalities that findings are held against, and the curve that attacks test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from dpspec.contract import Claim, FrozenMap, Json
from dpspec.engine.numbers import exact

Side: TypeAlias = Literal["at-most", "at-least"]
Points: TypeAlias = tuple[tuple[float, float], ...]

#: Where a finding leaves a condition out, it means this.
_DEFAULTS: Mapping[str, Json] = {"group_size": 1, "delta": 0.0, "split": "test"}

#: How a condition may differ: +1, what holds at a larger value holds at a smaller one (an upper bound for groups of 8
#: holds for groups of 4); -1, the reverse (what holds at a smaller delta holds at a larger one). Others must be equal.
_ORDERS: Mapping[str, int] = {"delta": -1, "group_size": 1, "alpha": 1, "kappa": 1, "fpr": 1, "fraction": 1}


@dataclass(frozen=True, kw_only=True)
class Part:
    """One inequality of a claim: ``quantity`` is at most (at least) ``claimed`` under the conditions ``at``."""

    quantity: str
    claimed: float
    side: Side = "at-most"
    at: FrozenMap = field(default_factory=FrozenMap)

    def within(self, value: float) -> bool:
        """Whether a bound on the proving side, the upper one of an at-most claim, is within the claim."""
        return value <= self.claimed if self.side == "at-most" else value >= self.claimed

    def exceeded(self, value: float) -> bool:
        """Whether a bound on the other side lies strictly beyond the claim."""
        return value > self.claimed if self.side == "at-most" else value < self.claimed

    def holds_under(self, at: Mapping[str, Json]) -> bool:
        """Whether a proving bound under the conditions ``at`` holds under the claim's; unknown conditions never do."""
        return self._compare(at, 1)

    def speaks_of(self, at: Mapping[str, Json]) -> bool:
        """Whether a bound on the other side, or an attack, under ``at`` tells against the claim."""
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
    """A claim, taken apart.

    text: the claim as people read it.
    parts: all of them must be proved; one that is refuted refutes the claim.
    points: (epsilon, delta) pairs that the claim implies, together the null for attacks; empty where none is implied.
    curve: the same points for another claimed value, where the claim has a single one: says what could be refuted.
    """

    text: str
    parts: tuple[Part, ...]
    points: Points = ()
    curve: Callable[[float], Points] | None = field(default=None, compare=False)
    about_privacy: bool = True


def statement(claim: Claim) -> Statement:
    """Take a claim apart. A kind that only a plugin knows states no inequality here, and so stays open."""
    build = _KINDS.get(claim.kind)
    if build is None:
        return Statement(text=f"{claim.kind}{narrowing(claim)}", parts=(), about_privacy=False)
    return build(claim)


def about_privacy(kind: str) -> bool:
    """Whether claims of a kind are about privacy: those about metrics are not, nor those that only a plugin knows."""
    return kind in _KINDS and kind != "metric"


def narrowing(claim: Claim) -> str:
    """How the claim's scope is narrowed, as a suffix of its text."""
    text = f" for groups of {claim.group_size}" if claim.group_size != 1 else ""
    text += f" for record {claim.record}" if claim.record is not None else ""
    text += f" in direction {claim.direction}" if claim.direction != "both" else ""
    return text + (f" over {claim.over}" if claim.over is not None else "")


def _approx_dp(claim: Claim) -> Statement:
    epsilon, delta = float(claim["epsilon"]), float(claim["delta"])
    return Statement(
        text=f"epsilon <= {exact(epsilon)} at delta = {exact(delta)}{narrowing(claim)}",
        parts=(_at_most(claim, "epsilon", epsilon, delta=delta),),
        points=((epsilon, delta),),
        curve=lambda value: ((value, delta),),
    )


def _pure_dp(claim: Claim) -> Statement:
    epsilon = float(claim["epsilon"])
    return Statement(
        text=f"epsilon <= {exact(epsilon)} at delta = 0{narrowing(claim)}",
        parts=(_at_most(claim, "epsilon", epsilon, delta=0.0),),
        points=((epsilon, 0.0),),
        curve=lambda value: ((value, 0.0),),
    )


def _renyi_dp(claim: Claim) -> Statement:
    from dpspec.stats.curves import renyi

    alpha, epsilon = float(claim["alpha"]), float(claim["epsilon"])
    return Statement(
        text=f"Renyi epsilon <= {exact(epsilon)} at order {exact(alpha)}{narrowing(claim)}",
        parts=(_at_most(claim, "epsilon", epsilon, alpha=alpha),),
        points=renyi(alpha, epsilon),
        curve=lambda value: renyi(alpha, value),
    )


def _gdp(claim: Claim) -> Statement:
    from dpspec.stats.curves import gaussian

    mu = float(claim["mu"])
    return Statement(
        text=f"mu <= {exact(mu)}{narrowing(claim)}",
        parts=(_at_most(claim, "mu", mu),),
        points=gaussian(mu),
        curve=gaussian,
    )


def _tradeoff(claim: Claim) -> Statement:
    from dpspec.stats.curves import tradeoff

    points = [(float(p["fpr"]), float(p["tpr"])) for p in claim["points"]]
    said = ", ".join(f"{exact(tpr)} at fpr = {exact(fpr)}" for fpr, tpr in points)
    return Statement(
        text=f"tpr <= {said}{narrowing(claim)}",
        parts=tuple(_at_most(claim, "tpr", tpr, fpr=fpr) for fpr, tpr in points),
        points=tradeoff(points),
    )


def _rero(claim: Claim) -> Statement:
    kappa, gamma = float(claim["kappa"]), float(claim["gamma"])
    return Statement(
        text=f"reconstruction gamma <= {exact(gamma)} at kappa = {exact(kappa)}{narrowing(claim)}",
        parts=(_at_most(claim, "gamma", gamma, kappa=kappa),),
    )


def _per_instance_dp(claim: Claim) -> Statement:
    epsilon, delta = float(claim["epsilon"]), float(claim["delta"])
    population = {key: claim[key] for key in ("fraction", "population") if key in claim.options}
    said = f"epsilon <= {exact(epsilon)} at delta = {exact(delta)}{narrowing(claim)}"
    if "fraction" in population:
        said += f" for {exact(100.0 * float(population['fraction']))}% of {population.get('population', 'the records')}"
    return Statement(
        text=said,
        parts=(_at_most(claim, "epsilon", epsilon, delta=delta, **population),),
        points=() if population else ((epsilon, delta),),  # attacks speak of records, not of fractions
    )


def _membership(claim: Claim) -> Statement:
    if "advantage" in claim.options:
        advantage = float(claim["advantage"])
        return Statement(
            text=f"membership advantage <= {exact(advantage)}{narrowing(claim)}",
            parts=(_at_most(claim, "advantage", advantage),),
        )
    tpr, fpr = float(claim["tpr"]), float(claim["fpr"])
    return Statement(
        text=f"membership tpr <= {exact(tpr)} at fpr = {exact(fpr)}{narrowing(claim)}",
        parts=(_at_most(claim, "tpr", tpr, fpr=fpr),),
    )


def _metric(claim: Claim) -> Statement:
    name = str(claim["name"])
    sides: tuple[tuple[str, Side, str], ...] = (("at_least", "at-least", ">="), ("at_most", "at-most", "<="))
    more = {key: value for key, value in claim.options.items() if key not in ("name", "at_least", "at_most")}
    at = FrozenMap({"split": "test", **more})
    given = [(side, sign, float(claim[key])) for key, side, sign in sides if claim.options.get(key) is not None]
    return Statement(
        text=" and ".join(f"{name} {sign} {exact(value)}" for _, sign, value in given),
        parts=tuple(Part(quantity=name, claimed=value, side=side, at=at) for side, _, value in given),
        about_privacy=False,
    )


def _at_most(claim: Claim, quantity: str, claimed: float, **at: Json) -> Part:
    return Part(quantity=quantity, claimed=claimed, at=FrozenMap({**at, "group_size": claim.group_size}))


_KINDS: Mapping[str, Callable[[Claim], Statement]] = {
    "approx-dp": _approx_dp,
    "pure-dp": _pure_dp,
    "renyi-dp": _renyi_dp,
    "gdp": _gdp,
    "tradeoff": _tradeoff,
    "rero": _rero,
    "per-instance-dp": _per_instance_dp,
    "membership": _membership,
    "metric": _metric,
}
