"""What holds for every record, from theory alone: the data-independent epsilon, per direction and delta."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import dpspec.contract as dps
from dpspec.accounting.convert import best_epsilon
from dpspec.accounting.group import group_curve
from dpspec.accounting.interval import Interval
from dpspec.accounting.mixture import Mixture
from dpspec_per_instance import divergence
from dpspec_per_instance.options import DIRECTIONS, rate_and_noise
from dpspec_per_instance.totals import Composer

#: Deltas at which the upper curve is also computed, so that attacks can be held against all of it.
CURVE_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)

#: The delta where no claim names one.
DEFAULT_DELTA = 1e-5

TIGHT = "Ganesh 2024, Theorem 3.1, for one record"

ASSUMPTIONS = (
    dps.Assumption(name="noise-scale", status="declared", text="Gaussian noise of the declared scale in every step"),
    dps.Assumption(name="fresh-noise", status="declared", text="noise is independent across steps"),
    dps.Assumption(name="clipping", status="declared", text="every record's gradient is clipped to the clip norm"),
    dps.Assumption(
        name="sampling", status="declared", text="batches are drawn by the declared scheme, afresh each step"
    ),
    dps.Assumption(name="steps", status="declared", text="exactly the declared number of updates is made"),
    dps.Assumption(name="public-constants", status="declared", text="rate, divisor and schedule do not depend on rows"),
)


def claimed_deltas(spec: dps.Spec) -> list[float]:
    """Every delta that a claim names, smallest first, or else a default."""
    named = {float(c["delta"]) for c in spec.claims if c.kind in ("approx-dp", "per-instance-dp")}
    return sorted(named) or [DEFAULT_DELTA]


def wanted(spec: dps.Spec) -> list[str]:
    """The directions that claims or the threat model speak of: single ones first, then both."""
    named = {c.direction for c in spec.claims} | {spec.threat_model.direction}
    return ["remove", "add", "both"] if "both" in named else sorted(named)


def single(direction: str) -> tuple[str, ...]:
    """The one-sided directions that a direction stands for."""
    return ("remove", "add") if direction == "both" else (direction,)


def data_independent(phases: Sequence[dps.FrozenMap], deltas: Sequence[float], direction: str) -> list[Interval]:
    """Epsilon of every record of every data set, in one direction or the worse of both."""
    pairs = [(_pair(phase), int(phase["steps"])) for phase in phases]
    found = [group_curve(pairs, deltas, DIRECTIONS[side]) for side in single(direction)]
    return [max(some, key=lambda interval: interval.upper) for some in zip(*found, strict=True)]


def tight(spec: dps.Spec, direction: str) -> dict[float, Interval]:
    """The same at the claims' deltas, and in the widest direction along the curve."""
    deltas = sorted({*claimed_deltas(spec), *(CURVE_DELTAS if direction == wanted(spec)[-1] else ())})
    return dict(zip(deltas, data_independent(spec.phases, deltas, direction), strict=True))


def renyi_epsilon(mechanism: dps.FrozenMap, delta: float, direction: str) -> float:
    """The same by Renyi divergences at the orders of the spec: what per-record values by that method compare with."""
    found = []
    for side in single(direction):
        composer = Composer(mechanism, DIRECTIONS[side])
        found.append(best_epsilon(composer.orders, [composer.baseline(a) for a in composer.orders], delta).epsilon)
    return max(found)


def upper_bounds(spec: dps.Spec) -> Iterator[dps.Finding]:
    """Epsilon at the claims' deltas in every direction that is spoken of, along the curve, for named populations."""
    claimed = claimed_deltas(spec)
    populations = sorted({str(c["population"]) for c in spec.claims if "population" in c.options})
    for direction in wanted(spec):
        for delta, epsilon in tight(spec, direction).items():
            yield _tight(epsilon, {"delta": delta}, direction)
            if delta in claimed:
                for population in populations:
                    yield _tight(epsilon, {"delta": delta, "fraction": 1.0, "population": population}, direction)
        for delta in claimed:
            yield dps.Finding(
                quantity="epsilon",
                value=renyi_epsilon(spec.mechanism.options, delta, direction),
                bound="upper",
                rigor="theorem",
                at=dps.FrozenMap({"delta": delta}),
                scope=dps.Scope(direction=direction),
                method="rdp at the spec's orders",
                source=f"{divergence.SOURCE}; Balle et al. 2020, Theorem 21",
                assumptions=ASSUMPTIONS,
            )


def order_series(spec: dps.Spec) -> dps.Series:
    """The divergence of one saturated step and of the whole run, by order and direction."""
    columns: dict[str, list[dps.Json]] = {name: [] for name in ("order", "direction", "first_step", "run")}
    for side in single(wanted(spec)[-1]):
        composer = Composer(spec.mechanism.options, DIRECTIONS[side])
        for order in composer.orders:
            row = (order, side, composer.saturated(order, 1), composer.baseline(order))
            for name, value in zip(columns, row, strict=True):
                columns[name].append(value if not isinstance(value, float) or math.isfinite(value) else None)
    return dps.Series(
        name="divergence-by-order",
        title="Renyi divergence that no record exceeds",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap(dict.fromkeys(columns, "")),
        rigor="theorem",
        source=divergence.SOURCE,
        plot=dps.FrozenMap({"x": "order", "y": ["run"], "by": "direction", "log": ["x", "y"]}),
    )


def _pair(phase: dps.FrozenMap) -> Mixture:
    rate, sigma = rate_and_noise(phase)
    return Mixture.poisson(1, rate, sigma) if phase["sampling"]["scheme"] == "poisson" else Mixture.full(1, sigma)


def _tight(epsilon: Interval, at: dict[str, dps.Json], direction: str) -> dps.Finding:
    return dps.Finding(
        quantity="epsilon",
        value=epsilon.upper,
        lower=epsilon.lower,
        bound="upper",
        rigor="theorem",
        at=dps.FrozenMap(at),
        scope=dps.Scope(direction=direction),
        method="pld/connect-the-dots",
        source=TIGHT,
        assumptions=ASSUMPTIONS,
    )
