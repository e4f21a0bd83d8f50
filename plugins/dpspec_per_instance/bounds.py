"""Upper bounds: the divergence of a run from measured norms, and the data-independent bound for every record.

One step has sampling rate q and ratio nu = clipped norm / (noise_multiplier * clip_norm). The composition theorem with
exponent p uses order a_t = 1 + rho^(n - t) (a - 1), rho = p / (p - 1), and weight l_t = p (a_t - 1) at step t of n
(``docs/explanation/proofs/per-instance.md``).

The data-independent epsilon does not depend on the number of records. It is attained over all datasets: a record whose
gradient is the clip norm times one direction, among records of gradient 0, gives exactly the sampled Gaussian pair at
every step, and updates of the supported optimizers can be inverted. The lower end of its interval is therefore a lower
bound for the worst record of the worst dataset. It does not apply to records or populations of the declared data.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import dpspec.contract as dps
from dpspec import accounting, kit
from dpspec.accounting import Direction, Directions, Floats, Interval, PrivacyLoss
from dpspec.training.providers import iterates_reveal_sums
from dpspec_per_instance.options import Composition

Array: TypeAlias = np.ndarray[Any, Any]

STEP_SOURCE = "Thudi et al. 2024, Theorem 3.2"
RUN_SOURCE = "Thudi et al. 2024, Theorem 3.3"
CONFIDENCE_SOURCE = "Hoeffding 1963, for the expectations of Thudi et al. 2024, Theorem 3.3"

#: Factor between adjacent orders in a - 1; adjacent values of r differ by a factor of _LEAST^(-1 / nodes).
_GROWTH = 1.04
_LEAST, _COARSE, _FINE = 1e-3, 2048, 16384

#: Half-width of the quadrature in standard deviations, and its step.
_REACH, _STEP = 14.0, 0.25

#: Moments whose excess over 1 is below this are computed as an excess.
_SMALL = 1e-2

#: Relative rounding error of a tabulated value.
_SLACK = 1e-9

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def step_divergence(
    orders: npt.ArrayLike, rate: npt.ArrayLike, ratio: npt.ArrayLike, direction: Directions = "both"
) -> Floats:
    """Bound on the Renyi divergence of one step, for a ``rate`` and ``ratio`` above 0; arrays broadcast."""
    return accounting.sampled_gaussian_rdp(orders, rate, 1.0 / np.asarray(ratio, dtype=np.float64), direction)


class StepTable:
    """Upper bounds on (a - 1) D_a of one sampled Gaussian step in one direction, by order and r = norm / clip_norm.

    The function is convex in the order (linear interpolation is a bound) and increases with r (the next larger r is
    one). Present-first, exp((a - 1) D_a) is also convex in r^2, so chords fill in further r: along Y_s = e^(B_s - s /
    2), d/ds E f(Y_s) = E[Y_s^2 f''(Y_s)] / 2, and y^2 f''(y) is convex for f(y) = (1 - q + q y)^a. Errors are upwards,
    and at most one percent except for r below 0.001 and near jumps of D.
    """

    def __init__(
        self, rate: float, noise_multiplier: float, lowest: float, highest: float, direction: Direction
    ) -> None:
        """Tabulate orders from ``lowest`` > 1 to ``highest``; ``noise_multiplier`` > 0 is in clip norms."""
        q, sigma = accounting.inside("rate", rate, one=True), accounting.positive("noise_multiplier", noise_multiplier)
        nodes = 2 + math.ceil(math.log((highest - 1.0) / (lowest - 1.0)) / math.log(_GROWTH))
        self._orders: Floats = 1.0 + np.geomspace(lowest - 1.0, highest - 1.0, nodes)
        self._orders[[0, -1]] = lowest, highest
        coarse = np.geomspace(_LEAST, 1.0, _COARSE)
        moments = np.stack([log_moments(self._orders, q, r / sigma, direction) for r in coarse], axis=1)
        sizes = np.concatenate([[0.0], coarse])
        values = np.concatenate([np.zeros((nodes, 1)), moments], axis=1) * (1.0 + _SLACK)
        if direction == "present-first":
            sizes, values = _chords(sizes, values)
        self.sizes: Floats = sizes
        self._values: Floats = values

    def places(self, sizes: npt.ArrayLike) -> npt.NDArray[np.uint16]:
        """Table index of each r in [0, 1]: the first tabulated value that is at least r."""
        after = np.searchsorted(self.sizes, np.asarray(sizes, dtype=np.float64), side="left")
        return np.minimum(after, len(self.sizes) - 1).astype(np.uint16)

    def row(self, order: float) -> Floats:
        """Upper bounds on (a - 1) D_a at ``order`` for every tabulated r."""
        after = int(np.clip(np.searchsorted(self._orders, order), 1, len(self._orders) - 1))
        low, high = self._orders[after - 1], self._orders[after]
        share = min(1.0, max(0.0, (order - low) / (high - low))) if high > low else 1.0
        return np.asarray((1.0 - share) * self._values[after - 1] + share * self._values[after], dtype=np.float64)

    def saturated(self, orders: npt.ArrayLike) -> Floats:
        a = np.asarray(orders, dtype=np.float64)
        return np.asarray(np.interp(a, self._orders, self._values[:, -1]) / (a - 1.0), dtype=np.float64)


step_table = lru_cache(maxsize=32)(StepTable)


def log_moments(orders: Floats, rate: float, ratio: float, direction: Direction) -> Floats:
    """(a - 1) D_a = ln E[(1 - q + q e^(nu z - nu^2 / 2))^b], b = a or 1 - a, shape (k,), by the trapezoidal rule.

    The integrand is analytic in a strip of half-width pi / nu, so the error decreases exponentially.
    """
    if rate == 1.0:
        return np.asarray(0.5 * orders * (orders - 1.0) * ratio**2, dtype=np.float64)
    powers = (orders if direction == "present-first" else 1.0 - orders)[:, None]
    top = max(float(np.max(orders)) if direction == "present-first" else 1.0, 1.0) * ratio + _REACH
    step = min(_STEP, 0.5 / ratio)
    z = np.arange(-_REACH, top + step, step)
    shift = ratio * z - 0.5 * ratio**2
    logs = np.logaddexp(math.log1p(-rate), math.log(rate) + shift)
    weights = math.log(step) - _LOG_ROOT_TWO_PI - 0.5 * z**2
    integrand = powers * logs + weights
    most = integrand.max(axis=1)
    moments = most + np.log(np.exp(integrand - most[:, None]).sum(axis=1))
    small = moments < _SMALL
    if np.any(small):
        excess, masses = rate * np.expm1(np.minimum(shift, 600.0)), np.exp(weights)
        b = powers[small]
        exponents = b * logs
        terms = np.expm1(np.minimum(exponents, 30.0)) * masses
        high = exponents > 30.0
        terms[high] = np.exp(integrand[small][high])
        moments[small] = np.log1p(np.maximum(0.0, (terms - b * excess * masses).sum(axis=1)))
    return np.asarray(moments, dtype=np.float64)


def _chords(sizes: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Interpolate further values of r on chords of exp((a - 1) D_a) over r^2."""
    fine = np.concatenate([[0.0], np.geomspace(_LEAST, 1.0, _FINE)])
    fine[-1] = 1.0
    after = np.clip(np.searchsorted(sizes, fine), 1, len(sizes) - 1)
    low, high = np.square(sizes[after - 1]), np.square(sizes[after])
    share = np.clip((np.square(fine) - low) / (high - low), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        rise = values[:, after] - values[:, after - 1]
        # ln(e^u + s (e^v - e^u)) = u + ln(1 + s (e^(v - u) - 1)), without overflow for large v - u
        steep = np.logaddexp(np.log1p(-share), np.log(share) + rise)
        gentle = np.log1p(share * np.expm1(np.minimum(rise, 30.0)))
    return fine, values[:, after - 1] + np.where(rise < 30.0, gentle, steep)


class Exponents(NamedTuple):
    """Orders a_t and weights l_t of the composition theorem by step, shape (n,) each."""

    orders: Floats
    weights: Floats


def exponents(order: float, steps: int, p: float) -> Exponents:
    """a_t and l_t for the divergence at ``order`` > 1 of ``steps`` >= 1 steps with exponent ``p`` > 1."""
    growth = -math.log1p(-1.0 / p)
    above = (order - 1.0) * np.exp(growth * np.arange(steps - 1, -1, -1, dtype=np.float64))
    return Exponents(orders=1.0 + above, weights=p * above)


def entropic_mean(values: npt.ArrayLike, weight: float, log_masses: npt.ArrayLike | None = None) -> Floats:
    """(1 / l) ln E exp(l v) over the first axis of ``values`` (k, ...); ``log_masses`` (k,), uniform by default.

    Between the mean (l -> 0) and the maximum with positive mass (l -> inf). Over runs it is an estimate, not a bound.
    """
    v = np.asarray(values, dtype=np.float64)
    logs = np.full(len(v), -math.log(len(v))) if log_masses is None else np.asarray(log_masses, dtype=np.float64)
    logs = logs.reshape(-1, *[1] * (v.ndim - 1))
    if not weight > 0.0:
        raise ValueError(f"weight must be above 0, got {weight!r}")
    possible = np.where(np.isneginf(logs), -np.inf, v)
    top = np.max(possible, axis=0)
    with np.errstate(over="ignore"):
        log_mean = np.log(np.sum(np.exp(weight * (possible - top) + logs), axis=0))
    return np.asarray(top + log_mean / weight, dtype=np.float64)


def confidence_upper_mean(mean: npt.ArrayLike, weight: float, largest: float, runs: float, log_terms: float) -> Floats:
    """Upper confidence bound of one term from plug-in estimates ``mean`` (...), at most ``largest``.

    ``weight`` is l, and ``log_terms`` ln(s / J) for s jointly valid terms and failure probability J.
    """
    kappa = float(weight * largest)
    if kappa == 0.0:
        return np.zeros_like(np.asarray(mean, dtype=np.float64))
    gap = kappa + math.log(-math.expm1(-kappa)) + 0.5 * (math.log(log_terms) - math.log(2.0 * runs))
    bound = np.logaddexp(weight * np.asarray(mean, dtype=np.float64), gap) / weight
    return np.asarray(np.minimum(bound, largest), dtype=np.float64)


def log_terms(terms: int, failure: float) -> float:
    """ln(s / J) for ``terms`` s >= 1 bounds that fail jointly with probability at most ``failure`` J."""
    return math.log(accounting.whole("terms", terms, 1)) - math.log(accounting.inside("failure", failure))


#: Directions in specs and in the accountant: remove is D(with || without).
DIRECTIONS: Mapping[str, Direction] = {"remove": "present-first", "add": "absent-first"}


class Total(NamedTuple):
    """Divergence of a run at one order per record, (m,), and the estimates of single steps, (observed, m)."""

    plug_in: Floats
    confidence_upper: Floats
    contributions: Floats


class Composer:
    """Theorem 3.3 for one declared run, in one direction."""

    def __init__(self, mechanism: dps.FrozenMap, direction: Direction) -> None:
        composition = Composition.of(mechanism)
        self.direction: Direction = direction if composition.step_bound != "theorem" else "present-first"
        self.orders = composition.orders
        phases = dps.Phase.all_of(mechanism)
        self._phase_of = np.repeat(np.arange(len(phases)), [phase.steps for phase in phases])
        self._steps = [(phase.rate(), phase.noise_multiplier) for phase in phases]
        self.count = len(self._phase_of)
        self.observed = np.array(composition.observed(self.count))
        self.p = composition.exponent or 3.0 * self.count

    @cached_property
    def tables(self) -> list[StepTable]:
        highest = float(exponents(self.orders[-1], self.count, self.p).orders[0])
        return [step_table(*step, self.orders[0], highest, self.direction) for step in self._steps]

    def places(self, ratios: Sequence[Array]) -> list[npt.NDArray[np.uint16]]:
        """Table indices (R, m) per observed step, from norms in clip norms, (observed, m) per run."""
        tables = (self.tables[self._phase_of[step - 1]] for step in self.observed)
        return [table.places(np.stack([run[j] for run in ratios])) for j, table in enumerate(tables)]

    def baseline(self, order: float) -> float:
        """Data-independent divergence: ordinary composition of saturated steps."""
        firsts, counts = np.unique(self._phase_of, return_index=True, return_counts=True)[1:]
        return float(sum(n * self.saturated(order, int(t) + 1) for t, n in zip(firsts, counts, strict=True)))

    def saturated(self, order: float, step: int) -> float:
        """Divergence of a saturated record in one ``step``, from 1."""
        rate, sigma = self._steps[self._phase_of[step - 1]]
        return float(step_divergence(order, rate, 1.0 / sigma, self.direction))

    def best(self, delta: float) -> accounting.BestEpsilon:
        return accounting.best_epsilon(self.orders, [self.baseline(order) for order in self.orders], delta)

    def kappa(self, order: float) -> tuple[float, float]:
        """Estimability index at the last and the second step. The model before the first step is deterministic."""
        if self.count == 1:
            return 0.0, 0.0
        e = exponents(order, self.count, self.p)
        last, second = (float(self.saturated(float(e.orders[t]), t + 1) * e.weights[t]) for t in (self.count - 1, 1))
        return last, second

    def relative(self, order: float, observed: int, table_rows: npt.NDArray[np.uint16]) -> Floats:
        """Divergence of an observed step at each model relative to a saturated record, shape (R, m)."""
        row = self.tables[self._phase_of[self.observed[observed] - 1]].row(order)
        return np.asarray(row[table_rows] / row[-1], dtype=np.float64)

    def total(self, order: float, table_rows: Sequence[npt.NDArray[np.uint16]], log_terms: float) -> Total:
        """Total at one order; ``log_terms`` is ln(s / J) over all s values that must hold jointly."""
        e = exponents(order, self.count, self.p)
        observed = self.observed - 1
        largest = np.concatenate(
            [self.tables[k].saturated(e.orders[self._phase_of == k]) for k in range(len(self.tables))]
        )
        unobserved = float(largest.sum() - largest[observed].sum())
        spans = np.diff(np.append(self.observed, self.count + 1))
        steps, certain = [], np.zeros(table_rows[0].shape[1])
        for t, row_indices in zip(observed, table_rows, strict=True):
            row, weight = self.tables[self._phase_of[t]].row(float(e.orders[t])) / (e.orders[t] - 1.0), e.weights[t]
            mean = entropic_mean(row[row_indices], float(weight))
            steps.append(mean)
            if t > 0:  # the first model is deterministic
                mean = confidence_upper_mean(mean, float(weight), float(largest[t]), len(row_indices), log_terms)
            certain += mean
        contributions = np.stack(steps)
        # The observed step has the largest order of the steps that it represents.
        caps = np.add.reduceat(largest, observed) / spans
        plug_in = spans @ np.minimum(contributions, caps[:, None])
        return Total(np.asarray(plug_in, dtype=np.float64), certain + unobserved, contributions)


def spoken_directions(spec: dps.Spec) -> list[str]:
    directions = {c.direction for c in spec.claims} | {spec.threat_model.direction}
    return ["remove", "add", "both"] if "both" in directions else sorted(directions)


def one_sided(direction: str) -> tuple[str, ...]:
    return ("remove", "add") if direction == "both" else (direction,)


def tight_epsilons(spec: dps.Spec, direction: str) -> dict[float, Interval]:
    """Epsilon of every record of every dataset at the claimed deltas, and in the widest direction along the curve."""
    curve = kit.CURVE_DELTAS if direction == spoken_directions(spec)[-1] else ()
    deltas = sorted({*kit.claimed_deltas(spec), *curve})
    curves = [_loss(spec, DIRECTIONS[side]).epsilons(deltas) for side in one_sided(direction)]
    worst = [ends[0] if len(ends) == 1 else ends[0].worse(ends[1]) for ends in zip(*curves, strict=True)]
    return dict(zip(deltas, worst, strict=True))


def profile_series(spec: dps.Spec) -> Iterator[dps.Series]:
    """The certified privacy profile of every record, for the success rates of an attacker; in both directions only."""
    if spoken_directions(spec)[-1] == "both":
        loss = _loss(spec)
        rows = [
            ("add-remove", 1, epsilon.upper, delta)
            for epsilon, delta in zip(loss.epsilons(kit.PROFILE_DELTAS, width=1e-3), kit.PROFILE_DELTAS, strict=True)
        ]
        yield kit.profile(rows, rigor="certified", source="Ganesh 2024, Theorem 3.1, for one record")


def _loss(spec: dps.Spec, direction: Directions = "both") -> PrivacyLoss:
    steps = ((phase.noise_multiplier, phase.rate(), phase.steps) for phase in spec.phases)
    return PrivacyLoss.of_steps(steps, direction=direction)


def renyi_epsilon(mechanism: dps.FrozenMap, delta: float, direction: str) -> float:
    return max(Composer(mechanism, DIRECTIONS[side]).best(delta).epsilon for side in one_sided(direction))


def upper_bounds(spec: dps.Spec) -> Iterator[dps.Finding]:
    claimed, attained = kit.claimed_deltas(spec), iterates_reveal_sums(spec.training.options, spec.steps)
    largest = max((claim.min_records for claim in spec.claims), default=0)
    populations = sorted({str(c["population"]) for c in spec.claims if "population" in c.options})
    for direction in spoken_directions(spec):
        scope = dps.Scope(direction=direction)
        for delta, epsilon in tight_epsilons(spec, direction).items():
            positions: list[dict[str, dps.Json]] = [{"delta": delta}]
            if delta in claimed:
                positions += [{"delta": delta, "fraction": 1.0, "population": population} for population in populations]
            for position in positions:
                upper = accounting.certified_upper(
                    "epsilon",
                    epsilon,
                    at=position,
                    scope=scope,
                    source="Ganesh 2024, Theorem 3.1, for one record",
                    assumptions=kit.ASSUMPTIONS,
                )
                yield upper
                if delta in claimed and attained and "fraction" not in position:
                    source = "Ganesh 2024, section 3.3, for one record"
                    lower = accounting.certified_lower(upper, epsilon, source=source, min_records=largest)
                    if lower is not None:
                        yield lower
        for delta in claimed:
            yield kit.theorem_upper(
                "epsilon",
                renyi_epsilon(spec.mechanism.options, delta, direction),
                at={"delta": delta},
                scope=scope,
                method="rdp at the spec's orders",
                source=f"{STEP_SOURCE}; Balle et al. 2020, Theorem 21",
                assumptions=kit.ASSUMPTIONS,
            )
