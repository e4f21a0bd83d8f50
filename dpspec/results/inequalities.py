"""Claim kinds: the inequalities that findings are compared with, and the curve that attacks test.

A new kind is a case of :func:`implied_points` and of ``_inequalities``, an entry of ``PRIVACY_KINDS``, and its keys in
``claim_kinds.json``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dpspec.contract import Claim, FrozenMap, Json
from dpspec.decimals import ROUNDING, exact, is_equal, percent
from dpspec.text import several, spaced

Side: TypeAlias = Literal["at-most", "at-least"]
Points: TypeAlias = tuple[tuple[float, float], ...]

#: Values of conditions that a finding omits.
_DEFAULTS: Mapping[str, Json] = {"group_size": 1, "delta": 0.0, "split": "test", "about": "pipeline"}

#: Orders of conditions: +1 if a bound at a larger value holds at a smaller one (group sizes), -1 for the reverse
#: (delta). Other conditions must be equal.
_ORDERS: Mapping[str, int] = {"delta": -1, "group_size": 1, "alpha": 1, "kappa": 1, "fpr": 1, "fraction": 1}

#: The words for a bound that meets a claim by this rounding alone.
EQUAL = f"equal to the claim up to the rounding of declared numbers ({ROUNDING:.0e} relative)"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One inequality of a claim: ``quantity`` is at most (at least) ``claimed`` under the conditions ``at``."""

    quantity: str
    claimed: float
    side: Side = "at-most"
    at: FrozenMap = field(default_factory=FrozenMap)

    def within(self, value: float) -> bool:
        """Whether the value meets the inequality, up to the rounding of declared numbers."""
        met = value <= self.claimed if self.side == "at-most" else value >= self.claimed
        return met or is_equal(value, self.claimed)

    def matches(self, at: Mapping[str, Json], *, opposing: bool = False) -> bool:
        """Whether a proving bound under the conditions ``at`` holds under the claim's; not for unknown conditions.

        If ``opposing``, whether a bound on the other side, or an attack, under ``at`` can refute the claim.
        """
        sign = -1 if opposing else 1
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

#: Kinds of claims about privacy; metrics and kinds of plugins are not. The value is the option that alone determines
#: the implied points, if there is one.
PRIVACY_KINDS: Mapping[str, str] = {
    "approx-dp": "epsilon",
    "pure-dp": "epsilon",
    "renyi-dp": "epsilon",
    "zcdp": "rho",
    "gdp": "mu",
    "tradeoff": "",
    "rero": "",
    "per-instance-dp": "",
    "membership": "",
}


def statement(claim: Claim) -> Statement:
    """A claim in parts. A kind that only a plugin knows has none and stays open."""
    kind, options = claim.kind, claim.options
    if kind == "metric":
        return _metric(claim)
    if claim.unit == "record":
        narrowed = f" for groups of {claim.group_size}" if claim.group_size != 1 else ""
    else:
        narrowed = f" for {several(claim.group_size, claim.unit)}"
    narrowed += f" for record {claim.record}" if claim.record is not None else ""
    narrowed += {"both": "", "remove": " if records are removed", "add": " if records are added"}[claim.direction]
    narrowed += f" in datasets of at least {claim.min_records} records" if claim.min_records else ""
    narrowed += (
        f" between neighbours with the {claim.neighbours.replace('-', ' ')}" if claim.neighbours != "all" else ""
    )
    over = {None: "", "all": " over all datasets", "this": " for this dataset", "collection": " over the collection"}
    narrowed += over.get(claim.over, f" over {claim.over}")
    if kind not in PRIVACY_KINDS:
        return Statement(text=f"{kind}{narrowed}", parts=(), about_privacy=False)
    value = PRIVACY_KINDS[kind]
    text, among, inequalities = _inequalities(kind, options)
    return Statement(
        text=f"{text}{narrowed}{among}",
        parts=tuple(
            Part(quantity=quantity, claimed=claimed, at=FrozenMap({**conditions, "group_size": claim.group_size}))
            for quantity, claimed, conditions in inequalities
        ),
        points=implied_points(kind, options),
        curve=(lambda claimed: implied_points(kind, {**options, value: claimed})) if value else None,
    )


def implied_points(kind: str, options: Options) -> Points:
    """The (epsilon, delta) pairs that a claim implies. Raises various errors if it is invalid."""
    if kind in ("approx-dp", "pure-dp", "per-instance-dp"):
        of_some = "fraction" in options or "population" in options  # attacks concern all records
        return (
            ()
            if of_some and kind == "per-instance-dp"
            else ((float(options["epsilon"]), float(options.get("delta", 0.0))),)
        )
    if kind not in ("renyi-dp", "zcdp", "gdp", "tradeoff"):
        return ()
    from dpspec.stats.attacks import curve_lines

    if kind == "renyi-dp":
        return curve_lines.renyi(float(options["alpha"]), float(options["epsilon"]))
    if kind == "zcdp":
        return curve_lines.concentrated(float(options["rho"]))
    if kind == "gdp":
        return curve_lines.gaussian(float(options["mu"]))
    return curve_lines.tradeoff([(float(point["fpr"]), float(point["tpr"])) for point in options["points"]])


def _inequalities(kind: str, o: Any) -> tuple[str, str, list[tuple[str, float, Options]]]:
    """The text, its end behind the scope, and per inequality the quantity, its upper limit and the conditions."""
    match kind:
        case "approx-dp" | "pure-dp" | "per-instance-dp":
            epsilon, delta = float(o["epsilon"]), float(o.get("delta", 0.0))
            population = {key: o[key] for key in ("fraction", "population") if key in o}
            among = ""
            if kind == "per-instance-dp" and "fraction" in o:
                among = f" for at least {percent(float(o['fraction']))} of the {o.get('population', '')} records"
            text = f"epsilon <= {exact(epsilon)} at delta = {exact(delta)}"
            return text, among, [("epsilon", epsilon, {"delta": delta, **population})]
        case "renyi-dp":
            epsilon, alpha = float(o["epsilon"]), float(o["alpha"])
            text = f"Renyi epsilon <= {exact(epsilon)} at order {exact(alpha)}"
            return text, "", [("epsilon", epsilon, {"alpha": alpha})]
        case "zcdp":
            return f"zCDP rho <= {exact(float(o['rho']))}", "", [("rho", float(o["rho"]), {})]
        case "gdp":
            return f"mu <= {exact(float(o['mu']))}", "", [("mu", float(o["mu"]), {})]
        case "rero":
            gamma, kappa = float(o["gamma"]), float(o["kappa"])
            text = f"reconstruction gamma <= {exact(gamma)} at kappa = {exact(kappa)}"
            return text, "", [("gamma", gamma, {"kappa": kappa})]
        case "membership" if "advantage" in o:
            advantage = float(o["advantage"])
            return f"membership advantage <= {exact(advantage)}", "", [("advantage", advantage, {})]
    points = [(float(point["tpr"]), float(point["fpr"])) for point in (o["points"] if kind == "tradeoff" else [o])]
    text = ", ".join(f"{exact(tpr)} at {spaced('fpr')} {exact(fpr)}" for tpr, fpr in points)
    prefix = "membership " if kind == "membership" else ""
    return f"{prefix}{spaced('tpr')} <= {text}", "", [("tpr", tpr, {"fpr": fpr}) for tpr, fpr in points]


#: The subject of a claim about a metric: one trained model, or the mean over trainings.
_ABOUT = {"model": " of the first run's model", "pipeline": " on average over training"}


def _metric(claim: Claim) -> Statement:
    name, about = str(claim["name"]), str(claim.options.get("about", "pipeline"))
    sides: tuple[tuple[str, Side, str], ...] = (("at_least", "at-least", ">="), ("at_most", "at-most", "<="))
    conditions = {key: value for key, value in claim.options.items() if key not in ("name", "at_least", "at_most")}
    metric_conditions = FrozenMap({"split": "test", "about": about, **conditions})
    stated = [(side, sign, float(claim[key])) for key, side, sign in sides if claim.options.get(key) is not None]
    return Statement(
        text=" and ".join(f"{name} {sign} {exact(value)}" for _, sign, value in stated) + _ABOUT.get(about, ""),
        parts=tuple(Part(quantity=name, claimed=value, side=side, at=metric_conditions) for side, _, value in stated),
        about_privacy=False,
    )
