"""Findings about records: those that claims name, quantiles of the population, and how much the runs can tell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

import dpspec.contract as dps
from dpspec_per_instance import bounds, composition, divergence, estimation
from dpspec_per_instance.analysis import Analysis, Epsilons
from dpspec_per_instance.joined import sizes
from dpspec_per_instance.options import DIRECTIONS, audited_of_spec
from dpspec_per_instance.totals import Composer, quantile_place

#: The fractions of the population at which epsilon is told besides those that claims name.
FRACTIONS = (0.1, 0.5, 0.9)

_SOURCE = f"{divergence.SOURCE} and {composition.SOURCE.partition(', ')[2]}"

_RUNS = dps.Assumption(name="independent-runs", status="by-construction", text="runs differ in batches and noise alone")


def findings(spec: dps.Spec, found: Analysis) -> Iterator[dps.Finding]:
    """Everything at the claims' deltas in the directions that are spoken of, and what the runs can tell."""
    for direction in bounds.wanted(spec):
        if not set(bounds.single(direction)) <= set(found.audited.directions):
            continue
        for delta in bounds.claimed_deltas(spec):
            epsilons = found.epsilons(delta, direction)
            yield from _records(spec, found, epsilons)
            yield from _fractions(spec, found, epsilons)
            if direction == found.audited.whole:
                yield from _by_renyi(spec, found, epsilons)
    yield _runs_needed(spec, found)


def _records(spec: dps.Spec, found: Analysis, epsilons: Epsilons) -> Iterator[dps.Finding]:
    named = {c.record for c in spec.claims if c.record is not None and c.kind == "per-instance-dp"}
    for record in sorted(named):
        place = found.audited.points.index(record)
        for certified in (False, True):
            value = float((epsilons.certain if certified else epsilons.reported)[place])
            yield _finding(found, epsilons, value, {"delta": epsilons.delta}, record, "per-record", certified=certified)


def _fractions(spec: dps.Spec, found: Analysis, epsilons: Epsilons) -> Iterator[dps.Finding]:
    claimed = {float(c["fraction"]) for c in spec.claims if "fraction" in c.options}
    for fraction in sorted({*FRACTIONS, *claimed}):
        at: dict[str, dps.Json] = {
            "delta": epsilons.delta,
            "fraction": fraction,
            "population": found.audited.named,
        }
        for certified in (False, True):
            values = epsilons.certain if certified else epsilons.reported
            place = quantile_place(fraction, len(values), found.audited.extent, found.failure if certified else None)
            value = epsilons.tight if place is None else float(np.sort(values)[place])
            yield _finding(found, epsilons, value, at, "all", found.privacy, certified=certified)


def _by_renyi(spec: dps.Spec, found: Analysis, epsilons: Epsilons) -> Iterator[dps.Finding]:
    """The comparison by one method: Renyi divergences of records against those of any record, at the same orders."""
    below = np.minimum(epsilons.estimate, epsilons.renyi)
    told: list[tuple[str, float | None, float]] = [
        ("share_below_data_independent", None, float(np.mean(epsilons.estimate < epsilons.renyi)))
    ]
    for fraction in FRACTIONS:
        place = quantile_place(fraction, len(below), found.audited.extent, None)
        told.append(("epsilon_by_rdp", fraction, float(np.sort(below)[place or 0])))
    for quantity, at, value in told:
        conditions: dict[str, dps.Json] = {"delta": epsilons.delta}
        if at is not None:
            conditions |= {"fraction": at, "population": found.audited.named}
        yield dps.Finding(
            quantity=quantity,
            value=value,
            bound="estimate",
            rigor="approximate",
            at=dps.FrozenMap(conditions),
            scope=_scope(epsilons, "all"),
            method=f"plug-in over {found.runs} runs, against rdp at the spec's orders, {epsilons.renyi:.4g}",
            source=_SOURCE,
            privacy=found.privacy,
        )


def _finding(
    found: Analysis,
    epsilons: Epsilons,
    value: float,
    at: dict[str, dps.Json],
    record: str | int,
    privacy: dps.findings.Privacy,
    *,
    certified: bool,
) -> dps.Finding:
    how = "certified over" if certified else "plug-in over"
    which = "the data-independent value is smaller" if value >= epsilons.tight else "below the data-independent value"
    return dps.Finding(
        quantity="epsilon",
        value=value,
        bound="upper" if certified else "estimate",
        rigor="statistical" if certified else "approximate",
        at=dps.FrozenMap(at),
        scope=_scope(epsilons, record),
        method=f"{how} {found.runs} runs; {which}",
        source=f"{_SOURCE}; {estimation.SOURCE}" if certified else _SOURCE,
        assumptions=(*bounds.ASSUMPTIONS, _RUNS),
        confidence=found.confidence if certified else None,
        privacy=privacy,
    )


def estimability(spec: dps.Spec, trials: Sequence[dps.Trial]) -> dps.Finding:
    """How far the runs, one trial each, are from seeing rare bad models, by the mechanism alone: no norm is looked
    at."""
    audited, runs = audited_of_spec(spec, sizes(trials)), len(trials)
    direction = audited.shared if audited.shared in audited.directions else audited.directions[0]
    composer = Composer(spec.mechanism.options, DIRECTIONS[direction])
    order = composer.best_order(bounds.claimed_deltas(spec)[-1])
    last, first = composer.kappa(order)
    seen = "above" if last > math.log(runs) else "below"
    return dps.Finding(
        quantity="estimability_index",
        value=last,
        bound="estimate",
        rigor="approximate",
        at=dps.FrozenMap({"alpha": order}),
        scope=dps.Scope(direction=direction, data="this"),
        method=f"{first:.3g} at the second step, {last:.3g} at the last: {seen} ln(runs) = {math.log(runs):.3g}; "
        "the more above, the less rare bad models can be seen",
        source=composition.SOURCE,
    )


def _runs_needed(spec: dps.Spec, found: Analysis) -> dps.Finding:
    order = found.first.composer.best_order(bounds.claimed_deltas(spec)[-1])
    total = found.total(order)
    median = int(np.argsort(total.plug_in, kind="stable")[len(total.plug_in) // 2])
    random = slice(1, None)
    needed = estimation.runs_needed(
        total.contributions[random, median],
        total.weights[random],
        total.largest[random],
        float(total.contributions[0, median]) + total.fixed,
        total.baseline,
        found.first.log_terms,
    )
    return dps.Finding(
        quantity="runs_needed",
        value=needed,
        bound="estimate",
        rigor="approximate",
        at=dps.FrozenMap({"alpha": order}),
        scope=dps.Scope(direction=found.first.direction, data="this"),
        method="counting runs until the median record is certified below the data-independent divergence",
        source=estimation.SOURCE,
        privacy=found.privacy,
    )


def _scope(epsilons: Epsilons, record: str | int) -> dps.Scope:
    """This data set and this record: nothing is left for an adversary to choose."""
    return dps.Scope(direction=epsilons.direction, data="this", record=record)
