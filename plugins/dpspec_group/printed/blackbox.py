"""Black-box conversions of single-record guarantees to groups, as baselines of the table of epsilon by group size.

A mechanism that is (e, delta_1(e))-DP for one record is (k e, s_k(e) delta_1(e))-DP for groups of k (Vadhan 2017, Lemma
2.2), with either of two factors:

    literal   s_k(e) = k e^(k e)
    sharp     s_k(e) = 1 + e^e + ... + e^((k - 1) e) = (e^(k e) - 1) / (e^e - 1), the sum in the proof

A conversion finds the smallest e at which s_k(e) delta_1(e) is at most the target delta. The necessary delta_1 can be
below 1e-700, so profiles are functions from epsilon to ln delta_1; ``example_profile`` is *approximate* (a contour
integral). The tight bound composes the mixture of the group: ``group_curve``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import DIRECTIONS, Mixture, Pair, PrivacyLoss, inside, positive, whole
from dpspec_group import theory
from dpspec_group.options import DEFAULT_DELTA
from dpspec_group.printed.contour import Contour
from dpspec_group.schemes import scheme_of

#: ln delta_1 as a decreasing function of epsilon >= 0; -inf if delta_1 is 0.
Profile: TypeAlias = Callable[[float], float]

#: The factor s_k: as printed, or as in its proof.
Factor: TypeAlias = Literal["literal", "sharp"]

#: Single-record epsilons above this are not searched.
CAP = 400.0

#: Relative precision of an answer.
_DIGITS = 1e-12


@dataclass(frozen=True)
class GroupEpsilon:
    """Result for groups of ``k``: ``log_delta`` is ln delta_1 at ``epsilon / k``, ``above`` a lower bound at the
    cap.
    """

    k: int
    epsilon: float
    log_delta: float
    above: float | None = None


def log_factor(k: int, epsilon: float, factor: Factor) -> float:
    whole("k", k, 1)
    if factor == "literal":
        return math.log(k) + k * epsilon
    if factor != "sharp":
        raise ValueError(f"factor must be literal or sharp, got {factor!r}")
    if k == 1:
        return 0.0
    if epsilon == 0.0:
        return math.log(k)
    top, bottom = (x + math.log(-math.expm1(-x)) for x in (k * epsilon, epsilon))
    return top - bottom


def group_epsilon_from_profile(
    profile: Profile, k: int, delta: float, factor: Factor = "sharp", *, cap: float = CAP, as_printed: bool = False
) -> GroupEpsilon:
    """The smallest k e with s_k(e) delta_1(e) <= ``delta`` and e <= ``cap``, rounded up by at most 1e-12.

    For k = 1 both factors give the single-record epsilon at ``delta``, unless ``as_printed`` keeps the literal factor
    e^e, which does not return the input.
    """
    log_target = math.log(inside("delta", delta))
    positive("cap", cap)
    if whole("k", k, 1) == 1 and not as_printed:
        factor = "sharp"

    def excess(epsilon: float) -> float:
        return profile(epsilon) + log_factor(k, epsilon, factor) - log_target

    if excess(0.0) <= 0.0:
        return GroupEpsilon(k, 0.0, profile(0.0))
    low, high = 0.0, min(0.25, cap)
    # The excess can increase at first, and then decreases monotonically.
    while excess(high) > 0.0:
        if high >= cap:
            return GroupEpsilon(k, math.inf, -math.inf, above=k * cap)
        low, high = high, min(2.0 * high, cap)
    found = _root(excess, low, high)
    return GroupEpsilon(k, k * found, profile(found))


def example_profile(phases: Sequence[tuple[Pair, int]]) -> Profile:
    """ln delta_1 of a schedule of (pair, steps), the maximum of both directions: *approximate*, about eleven digits.

    Uses ``Contour``, or the certified upper bound if that fails (few steps with an almost discrete loss).
    """
    contours = [Contour.of(phases, direction) for direction in DIRECTIONS]
    losses = {contour.direction: PrivacyLoss(tuple(phases), contour.direction) for contour in contours}

    def profile(epsilon: float) -> float:
        worst = -math.inf
        for contour in contours:
            try:
                value = contour.log_delta(epsilon)
            except ArithmeticError:
                upper = losses[contour.direction].delta(epsilon).upper
                value = math.log(upper) if upper > 0.0 else -math.inf
            worst = max(worst, value)
        return worst

    return profile


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Zero of a decreasing function, positive at ``low`` and at most zero at ``high``, rounded up."""
    from scipy.optimize import brentq

    while function(high) == -math.inf and high - low > _DIGITS * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) > 0.0 else (low, middle)
    if function(high) == -math.inf:
        return high
    found = float(brentq(function, low, high, xtol=_DIGITS * high, rtol=_DIGITS))
    step = _DIGITS * found
    while found < high and function(found) > 0.0:
        found, step = min(found + step, high), 2.0 * step
    return found


def size_series(spec: dps.Spec, records: int, findings: Sequence[dps.Finding]) -> dps.Series:
    """Epsilon against the group size at the largest claimed delta, with the baselines."""
    delta = kit.claimed_deltas(spec, 1, default=DEFAULT_DELTA)[-1]
    direction = "both" if any(f.scope.direction == "both" for f in findings) else findings[0].scope.direction
    at = {f.at["group_size"]: f.value for f in findings if f.at["delta"] == delta and f.scope.direction == direction}
    sizes, one = sorted(at), at.get(1)
    if not one and theory.uncovered(spec.phases, [spec.threat_model.adjacency]):
        one = math.inf
    one = one or theory.worst_epsilons(spec.phases, 1, records, [delta], direction)[0].upper
    columns: dict[str, list[dps.Json]] = {"group_size": [*sizes], "epsilon": [at[size] for size in sizes]}
    for name in spec.mechanism.get("baselines", ()):
        if not math.isfinite(one):
            columns[name] = [math.inf] * len(sizes)
        elif name == "linear":
            # not a bound: over many steps the epsilon of a group exceeds it, over one step it can be smaller
            columns[name] = [size * one for size in sizes]
        elif name == "full-batch":
            # every member in every batch: the Gaussian pairs that dominate the steps (Ganesh 2024, Lemma 2.9)
            composed = [theory.composed(spec.phases, size, records) for size in sizes]
            pairs = [[(Mixture([p.dominating_effect], [1.0], 1.0), count) for p, count in each] for each in composed]
            columns[name] = [PrivacyLoss(tuple(each)).epsilon(delta).upper for each in pairs]
        else:
            profile = example_profile(theory.composed(spec.phases, 1, records))
            factor: Factor = "literal" if name == "vadhan-literal" else "sharp"
            found = (group_epsilon_from_profile(profile, size, delta, factor) for size in sizes)
            columns[name] = [conversion.epsilon for conversion in found]
    if "linear" in columns:
        columns["ratio"] = [
            epsilon / linear if math.isfinite(epsilon) and math.isfinite(linear) and linear else None
            for epsilon, linear in zip(columns["epsilon"], columns["linear"], strict=True)
        ]
    vadhan = ["Vadhan 2017, Lemma 2.2"] if any(name.startswith("vadhan") for name in columns) else []
    return kit.series(
        "epsilon-by-group-size",
        f"Epsilon by group size at delta {delta:g}".replace("e-0", "e-"),
        columns,
        units={"group_size": "records"},
        rigor="certified" if len(columns) == 2 else "approximate",
        source="; ".join([*sorted({scheme_of(phase).source for phase in spec.phases}), *vadhan]),
        x="group_size",
        y=[name for name in columns if name not in ("group_size", "ratio")],
        upper=[name for name in columns if name not in ("group_size", "linear", "ratio")],
    )
