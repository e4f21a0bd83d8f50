"""Every audited record's epsilon, from the norms that all runs measured: what findings and tables are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec.accounting.checks import Floats
from dpspec.accounting.convert import epsilon_at_orders
from dpspec.accounting.interval import Interval
from dpspec_per_instance import bounds, estimation
from dpspec_per_instance.joined import array, sizes
from dpspec_per_instance.options import DIRECTIONS, Audited, audited_of_spec
from dpspec_per_instance.totals import Composer, Detailed, Total

Array: TypeAlias = np.ndarray[Any, Any]

#: What is told of fewer records than this is told of each of them.
AGGREGATE = 10

#: Orders that tables show where the spec has them, beside the one that is best for the data-independent bound.
SHOWN = (2.0, 8.0)


@dataclass(frozen=True, kw_only=True)
class Epsilons:
    """Epsilon at one delta in one direction, per record, (m,) each.

    estimate: by the plug-in. certified: with the confidence of the spec. tight: what no record exceeds, by the tightest
    accountant; renyi: the same by the method of the estimate, whose fair comparison it is.
    """

    delta: float
    direction: str
    estimate: Floats
    certified: Floats
    tight: float
    renyi: float

    @property
    def reported(self) -> Floats:
        """min(data-independent, estimate)."""
        return np.minimum(self.estimate, self.tight)

    @property
    def certain(self) -> Floats:
        """min(data-independent, certified)."""
        return np.minimum(self.certified, self.tight)


class Side:
    """One direction: the runs that its expectation is over, and what follows from them."""

    def __init__(self, spec: dps.Spec, direction: str, ratios: Sequence[Array], log_terms: float) -> None:
        """``ratios``: per run the clipped norms (observed, m) in clip norms."""
        self.direction = direction
        self.composer = Composer(spec.mechanism.options, DIRECTIONS[direction])
        self.ratios = ratios
        self.places = self.composer.places(ratios)
        self.log_terms = log_terms
        self.totals = [self.composer.total(order, self.places, log_terms) for order in self.composer.orders]

    def with_runs(self, order: float, runs: int) -> Total:
        """The total at one order from the first ``runs`` runs alone."""
        return self.composer.total(order, [place[:runs] for place in self.places], self.log_terms)


class Analysis:
    """All directions together."""

    def __init__(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> None:
        """``trials``: one for each run. Raises ``ValueError`` where the norms of one are not at hand."""
        assert spec.audit is not None
        self.spec, self.trials = spec, trials
        self.audited: Audited = audited_of_spec(spec, sizes(trials))
        self.confidence = spec.audit.confidence
        # A random sample spends half of what may fail on being one.
        self.failure = (1.0 - self.confidence) * (0.5 if self.audited.extent > len(self.audited.points) else 1.0)
        sources = {
            direction: [array(trial, "ratios" if direction == self.audited.shared else "own") for trial in trials]
            for direction in self.audited.directions
        }
        observed, points = next(iter(sources.values()))[0].shape
        count = max(1, observed - 1) * points * len(spec.mechanism["orders"]) * len(sources)
        terms = estimation.log_terms(count, self.failure)
        self._tight: dict[str, dict[float, Interval]] = {}
        self._detailed: dict[float, Detailed] = {}
        self.sides = {name: Side(spec, name, ratios, terms) for name, ratios in sources.items()}

    @property
    def privacy(self) -> dps.findings.Privacy:
        """How sensitive averages and quantiles over all audited records are."""
        return self.privacy_of(len(self.audited.points))

    def privacy_of(self, count: int) -> dps.findings.Privacy:
        """How sensitive averages and quantiles over ``count`` records are."""
        return self.spec.data_privacy if count >= AGGREGATE else "per-record"

    @property
    def records(self) -> int:
        """How many records the data has to train on."""
        return int(self.trials[0].evidence["sizes"][0])

    @property
    def runs(self) -> int:
        """How many runs each expectation is over."""
        return len(self.trials)

    @cached_property
    def labels(self) -> Array:
        """The audited records' labels, (m,)."""
        return array(self.trials[0], "labels")

    @cached_property
    def right(self) -> Array:
        """The share of runs whose model is right about each record, per observed step: (observed, m)."""
        return np.asarray(np.mean([array(trial, "right") for trial in self.trials], axis=0), dtype=np.float64)

    @cached_property
    def first(self) -> Side:
        """The side whose details are shown: that of the shared runs, where it is audited."""
        return self.sides.get(self.audited.shared, next(iter(self.sides.values())))

    @cached_property
    def shown(self) -> tuple[float, ...]:
        """The orders whose details are shown, ascending."""
        return tuple(
            sorted(
                {
                    self.first.composer.best_order(bounds.claimed_deltas(self.spec)[-1]),
                    *(a for a in SHOWN if a in self.first.composer.orders),
                }
            )
        )

    def total(self, order: float) -> Detailed:
        """The shown side's total at one order, with its steps."""
        if order not in self._detailed:
            self._detailed[order] = self.first.composer.detailed(order, self.first.places, self.first.log_terms)
        return self._detailed[order]

    def epsilons(self, delta: float, direction: str) -> Epsilons:
        """Every record's epsilon: the worse of two directions where both are asked for."""
        sides = [self.sides[side] for side in bounds.single(direction)]
        if direction not in self._tight:
            self._tight[direction] = bounds.tight(self.spec, direction)
        return Epsilons(
            delta=delta,
            direction=direction,
            estimate=_worst([_epsilon(s.totals, [t.plug_in for t in s.totals], delta) for s in sides]),
            certified=_worst([_epsilon(s.totals, [t.certified for t in s.totals], delta) for s in sides]),
            tight=self._tight[direction][delta].upper,
            renyi=bounds.renyi_epsilon(self.spec.mechanism.options, delta, direction),
        )


def _epsilon(totals: Sequence[Total], divergences: Sequence[Floats], delta: float) -> Floats:
    orders = np.array([total.order for total in totals])
    return np.asarray(epsilon_at_orders(orders[:, None], np.stack(divergences), delta).min(axis=0))


def _worst(found: Sequence[Floats]) -> Floats:
    return np.asarray(np.max(found, axis=0), dtype=np.float64)
