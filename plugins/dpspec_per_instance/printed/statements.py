"""What the paper's other statements say of the declared mechanism, from theory alone; printed forms stand beside.

Lemma A.1 and Corollary 3.1 of one step of a saturated record, the orders of Theorem 3.3's recursion, the number of runs
of Fact 3.5, and Fact 5.2, unlearning without retraining.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Floats, checked_orders, inside
from dpspec_per_instance import bounds, theory
from dpspec_per_instance.analysis import Analysis
from dpspec_per_instance.bounds import Composer
from dpspec_per_instance.printed import one_step

SOURCE = "Thudi et al. 2024, Fact 5.2"

#: The most deletions in a row that are shown, and the largest order.
DELETIONS, MOST_ORDER = 3, 512.0

#: The constant of algorithm NPIU as printed: undefined at order 2, negative below, needlessly large above.
NPIU_PRINTED = dps.Printed(refuted=True, reason="the proof has (a - 1/2) / (a - 1), the algorithm another constant")


def triangle_constant(order: float) -> float:
    """(a - 1/2) / (a - 1): D_a(P || Q) <= it D_2a(P || S) + D_(2a - 1)(S || Q) (Mironov 2017, Corollary 4)."""
    a = float(checked_orders(order))
    return (a - 0.5) / (a - 1.0)


def printed_constant(order: float) -> float:
    """(a - 1) / (a - 2) as algorithm NPIU prints it, see ``NPIU_PRINTED``; infinite at 2."""
    a = float(checked_orders(order))
    return math.inf if a == 2.0 else (a - 1.0) / (a - 2.0)


def deletion_orders(order: float, deletions: int) -> Floats:
    """The orders 2 b - 1, b = a, 2a, 4a, ..., (deletions,) at which ``unlearned`` asks for divergences."""
    return np.asarray(2.0 * float(checked_orders(order)) * 2.0 ** np.arange(deletions) - 1.0, dtype=np.float64)


def unlearned(
    order: float,
    deletions: int,
    divergence: npt.ArrayLike,
    constant: Callable[[float], float] = triangle_constant,
) -> Floats:
    """The divergence at ``order`` after so many ``deletions`` without retraining, from the last to the first.

    d_s(a) = c(a) d_{s-1}(2a) + D_{2a - 1}, d_0 = 0 (Fact 5.2). divergence: (deletions, ...) at ``deletion_orders``: the
    last deletion's first. constant: c.
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
    """Each order with each number of deletions for which all orders that ``unlearned`` asks for are within ``most``."""
    for order in orders:
        for deletions in range(1, DELETIONS + 1):
            if deletion_orders(order, deletions)[-1] <= most:
                yield order, deletions


def findings_and_series(spec: dps.Spec, best_order: float) -> Iterator[dps.Finding | dps.Series]:
    """Whichever records are deleted: by the divergences that no record exceeds."""
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
                        method="keeping the model while any records are deleted, one by one",
                        source=SOURCE + (", with the constant of its proof" if how is None else ""),
                        assumptions=kit.ASSUMPTIONS,
                        printed=how,
                    )
    yield kit.series(
        "unlearning",
        "Renyi divergence from a model that is kept to one trained without the deleted records, whichever they are",
        kit.columns_of(("order", "deletions", "divergence", "printed"), rows),
        upper=("divergence",),
        rigor="theorem",
        source=f"{SOURCE}, with the constant of its proof",
    )


def record_series(records: Analysis) -> Iterator[dps.Series]:
    """Where training records' losses by removal are known: as if all deleted records were like the one in question.

    The expectation is over training on all records; after a deletion it is over fewer, which nobody ran.
    """
    side = records.sides.get("remove")
    if side is None or records.audited.population != "train":
        return
    top = max(side.composer.orders)

    def rows() -> Iterator[Sequence[dps.Json]]:
        for order, deletions in _possible_deletions(records.shown_orders, top):
            orders = deletion_orders(order, deletions)
            totals = [side.composer.total(float(a), side.places, side.log_terms) for a in orders]
            smaller = np.stack([np.minimum(total.plug_in, total.baseline) for total in totals])
            any_record = unlearned(order, deletions, [total.baseline for total in totals])
            quantiles = np.quantile(unlearned(order, deletions, smaller), (0.1, 0.5))
            yield order, deletions, float(any_record), *(float(value) for value in quantiles)

    yield kit.series(
        "unlearning-records",
        "The same where the deleted records are like the 10th percentile, or the median, of those audited",
        kit.columns_of(("order", "deletions", "data_independent", "p10", "median"), rows()),
        upper=("data_independent",),
        rigor="approximate",
        source=f"{SOURCE}, with the constant of its proof",
        privacy=records.privacy,
    )


#: So near an expectation has to be known, relatively to what keeps it below the data-independent value.
ACCURACY = 0.1

#: What is wrong with Theorem 3.3 as the paper prints it.
MISPRINT = dps.Printed(
    refuted=False,
    reason="the statement's recursion subtracts 1 / p where its proof subtracts 1 / (p - 1): valid, and looser",
)

#: Why Fact 3.5 backs nothing: it counts the samples of a two-sided version of Hoeffding's inequality.
FACT_PRINTED = dps.Printed(refuted=True, reason="wrong sign in the exponent, the range not squared, one side only")


def statements(spec: dps.Spec) -> Iterator[dps.Finding | dps.Series]:
    """Every statement at the largest claimed delta and the order that is best for the whole run."""
    delta = bounds.claimed_deltas(spec)[-1]
    side = bounds.one_sided(bounds.spoken_directions(spec)[0])[0]
    composer = bounds.Composer(spec.mechanism.options, bounds.DIRECTIONS[side])
    order = composer.best_order(delta)
    steps = [(phase.rate(), phase.noise_multiplier) for phase in spec.phases]
    yield from one_step.step_findings(steps, delta)
    yield one_step.step_series(steps, delta)
    yield one_step.attack_series(spec, steps, delta)
    yield from _first_order_findings(composer, order, side)
    if spec.audit is not None:
        yield from _runs_findings(composer, order, side, 1.0 - spec.audit.confidence)
    yield from findings_and_series(spec, order)


def _first_order_findings(composer: bounds.Composer, order: float, side: str) -> Iterator[dps.Finding]:
    repaired = float(theory.recursion(order, composer.count, composer.p).orders[0])
    forms: list[tuple[float, dps.Printed | None]] = [(repaired, None)]
    if isinstance(composer.p, int | float):
        forms.append((printed_order(order, composer.p, composer.count - 1), MISPRINT))
    for value, printed in forms:
        yield kit.theorem_upper(
            "first_order",
            value,
            at={"alpha": order},
            scope=dps.Scope(direction=side),
            method="the recursion of orders, at the first step",
            source=theory.RUN_SOURCE,
            printed=printed,
        )


def printed_order(order: float, p: float, turns: int) -> float:
    """The order after ``turns`` turns of the recursion as the statement prints it: g(a) = p / (p - 1) a - 1 / p."""
    a = float(checked_orders(order))
    for _ in range(turns):
        a = theory.checked_exponent(p) / (p - 1.0) * a - 1.0 / p
    return a


def _runs_findings(composer: bounds.Composer, order: float, side: str, failure: float) -> Iterator[dps.Finding]:
    counts = fact_3_5(order, composer.baseline(order), composer.baseline(2.0 * order), ACCURACY, failure)
    forms = [
        (max(1.0, counts.hoeffding), "Hoeffding 1963, for Thudi et al. 2024, Fact 3.5", None),
        (counts.printed, "Thudi et al. 2024, Fact 3.5", FACT_PRINTED),
    ]
    for value, source, printed in forms:
        yield kit.theorem_upper(
            "runs_enough",
            value,
            at={"alpha": order},
            scope=dps.Scope(direction=side, data="this"),
            method=f"counting runs that tell one step's expectation to {ACCURACY:g} of what keeps it below the "
            f"data-independent value, but with probability {failure:.2g}",
            source=source,
            printed=printed,
        )


class Counts(NamedTuple):
    """How many runs Fact 3.5 asks for: as printed, with its sign repaired, and by Hoeffding's inequality."""

    printed: float
    sign_repaired: float
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
        sign_repaired=_count(log_one_sided + high - 2.0 * low),
        hoeffding=_count(log_two_sided + 2.0 * log_range - 2.0 * low),
    )


def _count(log_count: float) -> float:
    """A number of runs from its logarithm, infinite where no float holds it."""
    return math.exp(log_count) if log_count < 700.0 else math.inf
