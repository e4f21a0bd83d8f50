"""Upper bounds: the divergence of a run from measured norms, and the data-independent bound for every record.

The data-independent epsilon does not depend on the number of records. It is attained over all datasets: a record whose
gradient is the clip norm times one direction, among records of gradient 0, gives exactly the sampled Gaussian pair at
every step, and updates of the supported optimizers can be inverted. The lower end of its interval is therefore a lower
bound for the worst record of the worst dataset. It does not apply to records or populations of the declared data.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import (
    BestEpsilon,
    Direction,
    Floats,
    Interval,
    Mixture,
    PrivacyLoss,
    best_epsilon,
    certified_lower,
    certified_upper,
)
from dpspec.training.loop.learning_rates import iterates_reveal_sums
from dpspec_per_instance import theory
from dpspec_per_instance.options import Composition
from dpspec_per_instance.theory import Array

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
    def tables(self) -> list[theory.StepTable]:
        highest = float(theory.exponents(self.orders[-1], self.count, self.p).orders[0])
        return [theory.step_table(*step, self.orders[0], highest, self.direction) for step in self._steps]

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
        return float(theory.step_divergence(order, rate, 1.0 / sigma, self.direction))

    def best(self, delta: float) -> BestEpsilon:
        return best_epsilon(self.orders, [self.baseline(order) for order in self.orders], delta)

    def kappa(self, order: float) -> tuple[float, float]:
        """Estimability index at the last and the second step. The model before the first step is deterministic."""
        if self.count == 1:
            return 0.0, 0.0
        e = theory.exponents(order, self.count, self.p)
        last, second = (float(self.saturated(float(e.orders[t]), t + 1) * e.weights[t]) for t in (self.count - 1, 1))
        return last, second

    def relative(self, order: float, observed: int, places: npt.NDArray[np.uint16]) -> Floats:
        """Divergence of an observed step at each model relative to a saturated record, shape (R, m)."""
        row = self.tables[self._phase_of[self.observed[observed] - 1]].row(order)
        return np.asarray(row[places] / row[-1], dtype=np.float64)

    def total(self, order: float, places: Sequence[npt.NDArray[np.uint16]], log_terms: float) -> Total:
        """Total at one order; ``log_terms`` is ln(s / J) over all s values that must hold jointly."""
        e = theory.exponents(order, self.count, self.p)
        observed = self.observed - 1
        largest = np.concatenate(
            [self.tables[k].saturated(e.orders[self._phase_of == k]) for k in range(len(self.tables))]
        )
        rest = float(largest.sum() - largest[observed].sum())
        spans = np.diff(np.append(self.observed, self.count + 1))
        steps, certain = [], np.zeros(places[0].shape[1])
        for t, place in zip(observed, places, strict=True):
            row, weight = self.tables[self._phase_of[t]].row(float(e.orders[t])) / (e.orders[t] - 1.0), e.weights[t]
            mean = theory.entropic_mean(row[place], float(weight))
            steps.append(mean)
            if t > 0:  # the first model is deterministic
                mean = theory.confidence_upper_mean(mean, float(weight), float(largest[t]), len(place), log_terms)
            certain += mean
        contributions = np.stack(steps)
        # The observed step has the largest order of the steps that it represents.
        caps = np.add.reduceat(largest, observed) / spans
        plug_in = spans @ np.minimum(contributions, caps[:, None])
        return Total(np.asarray(plug_in, dtype=np.float64), certain + rest, contributions)


def spoken_directions(spec: dps.Spec) -> list[str]:
    directions = {c.direction for c in spec.claims} | {spec.threat_model.direction}
    return ["remove", "add", "both"] if "both" in directions else sorted(directions)


def one_sided(direction: str) -> tuple[str, ...]:
    return ("remove", "add") if direction == "both" else (direction,)


def tight_epsilons(spec: dps.Spec, direction: str) -> dict[float, Interval]:
    """Epsilon of every record of every dataset at the claimed deltas, and in the widest direction along the curve."""
    curve = kit.CURVE_DELTAS if direction == spoken_directions(spec)[-1] else ()
    deltas = sorted({*kit.claimed_deltas(spec), *curve})
    pairs = tuple((Mixture.poisson(1, phase.rate(), phase.noise_multiplier), phase.steps) for phase in spec.phases)
    curves = [PrivacyLoss(pairs, DIRECTIONS[side]).epsilons(deltas) for side in one_sided(direction)]
    worst = [ends[0] if len(ends) == 1 else ends[0].worse(ends[1]) for ends in zip(*curves, strict=True)]
    return dict(zip(deltas, worst, strict=True))


def renyi_epsilon(mechanism: dps.FrozenMap, delta: float, direction: str) -> float:
    return max(Composer(mechanism, DIRECTIONS[side]).best(delta).epsilon for side in one_sided(direction))


def upper_bounds(spec: dps.Spec) -> Iterator[dps.Finding]:
    claimed, attained = kit.claimed_deltas(spec), iterates_reveal_sums(spec.training.options, spec.steps)
    largest = max((claim.min_records for claim in spec.claims), default=0)
    populations = sorted({str(c["population"]) for c in spec.claims if "population" in c.options})
    for direction in spoken_directions(spec):
        scope = dps.Scope(direction=direction)
        for delta, epsilon in tight_epsilons(spec, direction).items():
            places: list[dict[str, dps.Json]] = [{"delta": delta}]
            if delta in claimed:
                places += [{"delta": delta, "fraction": 1.0, "population": one} for one in populations]
            for at in places:
                upper = certified_upper(
                    "epsilon",
                    epsilon,
                    at=at,
                    scope=scope,
                    source="Ganesh 2024, Theorem 3.1, for one record",
                    assumptions=kit.ASSUMPTIONS,
                )
                yield upper
                if delta in claimed and attained and "fraction" not in at:
                    source = "Ganesh 2024, section 3.3, for one record"
                    lower = certified_lower(upper, epsilon, source=source, min_records=largest)
                    if lower is not None:
                        yield lower
        for delta in claimed:
            yield kit.theorem_upper(
                "epsilon",
                renyi_epsilon(spec.mechanism.options, delta, direction),
                at={"delta": delta},
                scope=scope,
                method="rdp at the spec's orders",
                source=f"{theory.STEP_SOURCE}; Balle et al. 2020, Theorem 21",
                assumptions=kit.ASSUMPTIONS,
            )
