"""From the norms that runs measured to the divergence of a whole run, for every record and order at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import dpspec.contract as dps
from dpspec.accounting.checks import Direction, Floats
from dpspec.accounting.convert import best_epsilon
from dpspec_per_instance import estimation
from dpspec_per_instance.composition import entropic_mean, recursion
from dpspec_per_instance.divergence import step_divergence
from dpspec_per_instance.options import exponent, observe_every, observed_steps, orders, rate_and_noise
from dpspec_per_instance.step_table import StepTable

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Total:
    """The divergence of the run at one order, per record.

    plug_in: (m,), an estimate. certified: (m,), holds with the confidence asked for. baseline: that of any record.
    """

    order: float
    plug_in: Floats
    certified: Floats
    baseline: float


@dataclass(frozen=True, kw_only=True)
class Detailed(Total):
    """The same with what single steps make of it: as many times larger as steps are observed.

    contributions: (observed, m), the plug-in of single steps. weights: (observed,) l_t. largest: (observed,), the
    divergence of a saturated step. fixed: what the certified value takes for steps that were not observed.
    """

    contributions: Floats
    weights: Floats
    largest: Floats
    fixed: float


class Composer:
    """Theorem 3.3 for one declared run, in one direction."""

    def __init__(
        self, mechanism: dps.FrozenMap, direction: Direction, p: float | Sequence[float] | None = None
    ) -> None:
        """``mechanism``: the options of the block, with phases or without. p: instead of the exponent given there."""
        self.direction: Direction = direction if mechanism.get("step_bound") != "theorem" else "present-first"
        self.orders = orders(mechanism)
        phases = dps.phases_of(mechanism)
        self._phase_of = np.repeat(np.arange(len(phases)), [int(phase["steps"]) for phase in phases])
        self._steps = [rate_and_noise(phase) for phase in phases]
        self.count = len(self._phase_of)
        self.observed = np.array(observed_steps(self.count, observe_every(mechanism)))
        self.p = exponent(mechanism, self.count) if p is None else p
        self._nearest = (mechanism.get("composition") or {}).get("unobserved", "nearest") == "nearest"

    @cached_property
    def _tables(self) -> list[StepTable]:
        highest = float(recursion(self.orders[-1], self.count, self.p).orders[0])
        made = {
            step: StepTable(*step, lowest=self.orders[0], highest=highest, direction=self.direction)
            for step in dict.fromkeys(self._steps)
        }
        return [made[step] for step in self._steps]

    def tabulated(self, tables: list[StepTable] | None) -> list[StepTable]:
        """This run's tables; ``tables`` of the same steps are taken where they reach as far."""
        highest = float(recursion(self.orders[-1], self.count, self.p).orders[0])
        if tables is not None and tables[0].highest >= highest:
            self.__dict__["_tables"] = tables
        return self._tables

    def places(self, ratios: Sequence[Array]) -> list[npt.NDArray[np.uint16]]:
        """Per observed step where the norms of all runs, (observed, m) each in clip norms, are in its table: (R, m)."""
        tables = (self._tables[self._phase_of[step - 1]] for step in self.observed)
        return [table.places(np.stack([run[j] for run in ratios])) for j, table in enumerate(tables)]

    def baseline(self, order: float) -> float:
        """The divergence that no record exceeds: ordinary composition of saturated steps."""
        return float(sum(np.sum(self._phase_of == k) * self._saturated(order, k) for k in range(len(self._steps))))

    def saturated(self, order: float, step: int) -> float:
        """What a saturated record loses in one ``step`` by itself."""
        return self._saturated(order, int(self._phase_of[step - 1]))

    def best_order(self, delta: float) -> float:
        """The order at which the data-independent divergence gives the least epsilon."""
        return best_epsilon(self.orders, [self.baseline(order) for order in self.orders], delta).order

    def kappa(self, order: float) -> tuple[float, float]:
        """The estimability index at the last and at the second step: at the first the model is no matter of chance."""
        if self.count == 1:
            return 0.0, 0.0
        e = recursion(order, self.count, self.p)
        found = [self.saturated(float(e.orders[at]), at + 1) * e.weights[at] for at in (self.count - 1, 1)]
        return float(found[0]), float(found[1])

    def _saturated(self, order: float, phase: int) -> float:
        rate, sigma = self._steps[phase]
        return float(step_divergence(order, rate, 1.0 / sigma, self.direction))

    def relative(self, order: float, observed: int, places: npt.NDArray[np.uint16]) -> Floats:
        """One step's divergence at each model, (R, m), over that of a saturated record; at an observed step's place."""
        row = self._tables[self._phase_of[self.observed[observed] - 1]].row(order)
        return np.asarray(row[places] / row[-1], dtype=np.float64)

    def total(self, order: float, places: Sequence[npt.NDArray[np.uint16]], log_terms: float) -> Total:
        """The run at one order; ``log_terms``: ln(s / J) over all s values that must be certain together."""
        found = self.detailed(order, places, log_terms)
        return Total(order=order, plug_in=found.plug_in, certified=found.certified, baseline=found.baseline)

    def detailed(self, order: float, places: Sequence[npt.NDArray[np.uint16]], log_terms: float) -> Detailed:
        """The same with its steps."""
        e = recursion(order, self.count, self.p)
        at = self.observed - 1
        largest = np.concatenate(
            [self._tables[k].saturated(e.orders[self._phase_of == k]) for k in range(len(self._tables))]
        )
        rest = float(largest.sum() - largest[at].sum())
        spans = np.diff(np.append(self.observed, self.count + 1))
        contributions = np.stack(
            [self._contribution(e.orders[t], e.weights[t], t, p) for t, p in zip(at, places, strict=True)]
        )
        certain = contributions[0].copy()  # the first model is fixed
        for j in range(1, len(at)):
            certain += estimation.certified(
                contributions[j], float(e.weights[at[j]]), float(largest[at[j]]), len(places[j]), log_terms
            )
        plug_in = contributions.sum(axis=0) + rest
        if self._nearest:  # the observed step has the largest order of those it stands for: no more than saturated ones
            caps = np.add.reduceat(largest, at) / spans
            plug_in = spans @ np.minimum(contributions, np.maximum(caps, 0.0)[:, None])
        return Detailed(
            order=order,
            plug_in=np.asarray(plug_in, dtype=np.float64),
            certified=certain + rest,
            baseline=self.baseline(order),
            contributions=contributions,
            weights=e.weights[at],
            largest=largest[at],
            fixed=rest,
        )

    def _contribution(self, order: float, weight: float, at: int, places: npt.NDArray[np.uint16]) -> Floats:
        row = self._tables[self._phase_of[at]].row(float(order)) / (order - 1.0)
        return entropic_mean(row[places], float(weight))


def quantile_place(fraction: float, audited: int, population: int, failure: float | None) -> int | None:
    """Which of the sorted values of ``audited`` records is one that a ``fraction`` of the population does not exceed.

    Exact where all are audited. Of a random sample the quantile itself where ``failure`` is None, or else the least
    place that is below the population's quantile with at most that probability (hypergeometric); None where even the
    largest value is not enough.
    """
    from scipy.stats import hypergeom

    wanted = int(np.ceil(fraction * population - 1e-9))
    if audited == population:
        return max(0, wanted - 1)
    if failure is None:
        return max(0, int(np.ceil(fraction * audited - 1e-9)) - 1)
    for place in range(audited):
        if hypergeom.sf(place, population, wanted - 1, audited) <= failure:
            return place
    return None
