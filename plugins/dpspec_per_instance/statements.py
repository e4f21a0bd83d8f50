"""Further statements of the paper for the declared mechanism, with their printed forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Floats, checked_orders, inside
from dpspec_per_instance import bounds, one_step, theory
from dpspec_per_instance.analysis import Analysis
from dpspec_per_instance.bounds import Composer

SOURCE = "Thudi et al. 2024, Fact 5.2"

#: Maximum number of deletions, and largest order, in tables.
DELETIONS, MOST_ORDER = 3, 512.0

#: The constant of algorithm NPIU as printed: undefined at order 2, negative below, needlessly large above.
NPIU_PRINTED = dps.Printed(refuted=True, reason="the proof has (a - 1/2) / (a - 1), the algorithm another constant")


def triangle_constant(order: float) -> float:
    """c = (a - 1/2) / (a - 1) in D_a(P || Q) <= c D_2a(P || S) + D_(2a - 1)(S || Q) (Mironov 2017, Corollary 4)."""
    a = float(checked_orders(order))
    return (a - 0.5) / (a - 1.0)


def printed_constant(order: float) -> float:
    """(a - 1) / (a - 2) as printed in algorithm NPIU, see ``NPIU_PRINTED``; infinite at 2."""
    a = float(checked_orders(order))
    return math.inf if a == 2.0 else (a - 1.0) / (a - 2.0)


def deletion_orders(order: float, deletions: int) -> Floats:
    """Orders 2 b - 1, b = a, 2a, 4a, ..., shape (deletions,), of the divergences that ``unlearned`` needs."""
    return np.asarray(2.0 * float(checked_orders(order)) * 2.0 ** np.arange(deletions) - 1.0, dtype=np.float64)


def unlearned(
    order: float, deletions: int, divergence: npt.ArrayLike, constant: Callable[[float], float] = triangle_constant
) -> Floats:
    """d_s(a) = c(a) d_{s-1}(2a) + D_{2a - 1}, d_0 = 0 (Fact 5.2): divergence after deletions without retraining.

    ``divergence`` at ``deletion_orders``, shape (deletions, ...), from the last deletion to the first; ``constant`` is
    c.
    """
    terms = np.asarray(divergence, dtype=np.float64)
    if terms.shape[:1] != (deletions,):
        raise ValueError(f"need one divergence for each of {deletions} deletions, got shape {terms.shape}")
    total = np.zeros(terms.shape[1:])
    for turn in range(deletions - 1, -1, -1):
        with np.errstate(invalid="ignore"):
            total = np.where(total > 0.0, constant(2.0**turn * order) * total, 0.0) + terms[turn]
    return np.asarray(total, dtype=np.float64)


def _possible_deletions(orders: Sequence[float], most: float) -> Iterator[tuple[float, int]]:
    """Pairs of order and number of deletions for which ``unlearned`` needs no order above ``most``."""
    for order in orders:
        for deletions in range(1, DELETIONS + 1):
            if deletion_orders(order, deletions)[-1] <= most:
                yield order, deletions


def findings_and_series(spec: dps.Spec, best_order: float) -> Iterator[dps.Finding | dps.Series]:
    composer = Composer(spec.mechanism.options, "present-first")
    shown = sorted({best_order, *(order for order in (2.0, 8.0) if order in composer.orders)})
    rows: list[tuple[float, int, float, float | None]] = []
    for order, deletions in _possible_deletions(shown, MOST_ORDER):
        terms = [composer.baseline(float(a)) for a in deletion_orders(order, deletions)]
        repaired = float(unlearned(order, deletions, terms))
        printed = float(unlearned(order, deletions, terms, printed_constant)) if order > 2.0 else None
        rows.append((order, deletions, repaired, printed))
        if deletions == 2:
            for value, how in ((repaired, None), (printed, NPIU_PRINTED)):
                if value is not None:
                    yield kit.theorem_upper(
                        "unlearning_divergence",
                        value,
                        at={"alpha": order, "deletions": deletions},
                        scope=dps.Scope(direction="remove"),
                        method="keeping the model while records are deleted one by one",
                        source=SOURCE + (", with the constant of its proof" if how is None else ""),
                        assumptions=kit.ASSUMPTIONS,
                        printed=how,
                    )
    yield kit.series(
        "unlearning",
        "Renyi divergence from the kept model to one trained without the deleted records, for any records",
        kit.columns_of(("order", "deletions", "divergence", "printed"), rows),
        upper=("divergence",),
        rigor="theorem",
        source=f"{SOURCE}, with the constant of its proof",
    )


def record_series(records: Analysis) -> Iterator[dps.Series]:
    """Deleted records that resemble the audited ones. Expectations are over runs on all records."""
    side = records.sides.get("remove")
    if side is None or records.audited.population != "train":
        return
    top = max(side.composer.orders)
    rows: list[Sequence[dps.Json]] = []
    for order, deletions in _possible_deletions(records.shown_orders, top):
        orders = deletion_orders(order, deletions)
        totals = [side.composer.total(float(a), side.places, side.log_terms) for a in orders]
        smaller = np.stack([np.minimum(total.plug_in, total.baseline) for total in totals])
        any_record = unlearned(order, deletions, [total.baseline for total in totals])
        quantiles = np.quantile(unlearned(order, deletions, smaller), (0.1, 0.5))
        rows.append((order, deletions, float(any_record), *(float(value) for value in quantiles)))
    yield kit.series(
        "unlearning-records",
        "Renyi divergence if the deleted records resemble the 10th percentile, or the median, of the audited ones",
        kit.columns_of(("order", "deletions", "data_independent", "p10", "median"), rows),
        upper=("data_independent",),
        rigor="approximate",
        source=f"{SOURCE}, with the constant of its proof",
        privacy=records.privacy,
    )


#: Required accuracy of an expectation, relative to its distance from the data-independent value.
ACCURACY = 0.1

#: Error of Theorem 3.3 as printed.
MISPRINT = dps.Printed(
    refuted=False,
    reason="the statement's recursion subtracts 1 / p where its proof subtracts 1 / (p - 1): valid, and looser",
)

#: Error of Fact 3.5 as printed. The repaired count uses a two-sided Hoeffding inequality.
FACT_PRINTED = dps.Printed(refuted=True, reason="wrong sign in the exponent, the range not squared, one side only")


def statements(spec: dps.Spec) -> Iterator[dps.Finding | dps.Series]:
    delta = kit.claimed_deltas(spec)[-1]
    side = bounds.one_sided(bounds.spoken_directions(spec)[0])[0]
    composer = bounds.Composer(spec.mechanism.options, bounds.DIRECTIONS[side])
    order = composer.best(delta).order
    steps = [(phase.rate(), phase.noise_multiplier) for phase in spec.phases]
    yield from one_step.step_statements(spec, steps, delta)
    first = float(theory.recursion(order, composer.count, composer.p).orders[0])
    orders: list[tuple[float, dps.Printed | None]] = [(first, None)]
    if isinstance(composer.p, int | float):
        orders.append((printed_order(order, composer.p, composer.count - 1), MISPRINT))
    for value, printed in orders:
        yield kit.theorem_upper(
            "first_order",
            value,
            at={"alpha": order},
            scope=dps.Scope(direction=side),
            method="the recursion of orders, at the first step",
            source=theory.RUN_SOURCE,
            printed=printed,
        )
    if spec.audit is not None:
        failure = 1.0 - spec.audit.confidence
        counts = fact_3_5(order, composer.baseline(order), composer.baseline(2.0 * order), ACCURACY, failure)
        repaired = max(1.0, counts.hoeffding), "Hoeffding 1963, for Thudi et al. 2024, Fact 3.5", None
        for value, source, printed in (repaired, (counts.printed, "Thudi et al. 2024, Fact 3.5", FACT_PRINTED)):
            yield kit.theorem_upper(
                "runs_enough",
                value,
                at={"alpha": order},
                scope=dps.Scope(direction=side, data="this"),
                method=f"number of runs that estimate one step's expectation to {ACCURACY:g} of its distance from the "
                f"data-independent value, except with probability {failure:.2g}",
                source=source,
                printed=printed,
            )
    yield from findings_and_series(spec, order)


def printed_order(order: float, p: float, turns: int) -> float:
    """The order after ``turns`` iterations of the recursion as printed: g(a) = p / (p - 1) a - 1 / p."""
    a = float(checked_orders(order))
    for _ in range(turns):
        a = theory.checked_exponent(p) / (p - 1.0) * a - 1.0 / p
    return a


class Counts(NamedTuple):
    """Number of runs in Fact 3.5: as printed, and by Hoeffding's inequality."""

    printed: float
    hoeffding: float


def fact_3_5(order: float, epsilon: float, epsilon_doubled: float, accuracy: float, failure: float) -> Counts:
    """Runs for P[|estimate - truth| >= c e^(3 (a - 1) epsilon)] <= J at order a; p = 3n.

    epsilon, epsilon_doubled: the classical divergences of the whole run at orders a and 2a. accuracy: c. failure: J.
    """
    low, high = 3.0 * (order - 1.0) * epsilon, 3.0 * (2.0 * order - 1.0) * epsilon_doubled
    log_one_sided = math.log(-math.log(inside("failure", failure))) - 2.0 * math.log(accuracy)
    log_two_sided = math.log(math.log(2.0 / failure)) - math.log(2.0) - 2.0 * math.log(accuracy)
    log_range = high + math.log(-math.expm1(-high)) if high > 0.0 else -math.inf
    return Counts(
        printed=_count(log_one_sided + 2.0 * low - high),
        hoeffding=_count(log_two_sided + 2.0 * log_range - 2.0 * low),
    )


def _count(log_count: float) -> float:
    return math.exp(log_count) if log_count < 700.0 else math.inf
