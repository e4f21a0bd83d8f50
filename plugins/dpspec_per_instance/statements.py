"""What the paper's other statements say of the declared mechanism, from theory alone; printed forms stand beside.

Lemma A.1 and Corollary 3.1 of one step of a saturated record, the orders of Theorem 3.3's recursion, the number of runs
of Fact 3.5, and Fact 5.2, unlearning without retraining.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

import dpspec.contract as dps
from dpspec_per_instance import bounds, composition, derived, estimation
from dpspec_per_instance import corollary as cor
from dpspec_per_instance.options import DIRECTIONS, rate_and_noise
from dpspec_per_instance.rows import table
from dpspec_per_instance.totals import Composer

#: Clipped norms, in clip norms, for which one step is told.
NORMS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)

#: False-positive rates of attacks.
RATES = (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.5)

#: So near an expectation has to be known, relatively to what keeps it below the data-independent value.
ACCURACY = 0.1

#: So many deletions in a row are told of, at orders up to this one.
DELETIONS, MOST_ORDER = 3, 512.0

UNLEARNING = "Thudi et al. 2024, Fact 5.2"

#: The classical constant where it does hold.
_HOLDS = dps.Printed(refuted=False, reason="with the classical Gaussian constant, which holds at this distance")


class OneStep(NamedTuple):
    """One step of a record, present-first, at one delta. corollary, by Corollary 3.1; amplified, its limit for large p;
    printed, with the paper's constant; holds, whether that one is right here."""

    corollary: float
    amplified: float
    printed: float
    holds: bool


def one_step(rate: float, sigma: float, norm: float, delta: float) -> OneStep:
    """Of a sum of clipped gradients with the record's at ``norm`` and noise ``sigma``, both in clip norms."""
    inner, slack = cor.split(rate, delta)
    whole, _ = cor.split(rate, delta, whole=True)
    exact, classical = float(cor.epsilons(norm, inner, sigma)), cor.classical_constant(inner, sigma) * norm
    found = [cor.best_corollary(rate, [e], [0.0], inner, slack)[0].epsilon for e in (exact, classical)]
    return OneStep(
        corollary=found[0],
        amplified=cor.amplified(rate, float(cor.epsilons(norm, whole, sigma)), whole).epsilon,
        printed=found[1],
        holds=cor.classical_holds(inner, sigma, norm),
    )


def statements(spec: dps.Spec) -> Iterator[dps.Finding | dps.Series]:
    """Everything of this module at the largest claimed delta and the order that is best for the whole run."""
    delta = bounds.claimed_deltas(spec)[-1]
    side = bounds.single(bounds.wanted(spec)[0])[0]
    composer = Composer(spec.mechanism.options, DIRECTIONS[side])
    order = composer.best_order(delta)
    steps = [rate_and_noise(phase) for phase in spec.phases]
    yield from _one_step_findings(steps, delta)
    yield one_step_series(steps, delta)
    yield attack_series(spec, steps, delta)
    yield from _first_order(composer, order, side)
    if spec.audit is not None:
        yield from _runs(composer, order, side, 1.0 - spec.audit.confidence)
    yield from _unlearning(spec, order)


def _one_step_findings(steps: Sequence[tuple[float, float]], delta: float) -> Iterator[dps.Finding]:
    found = max((one_step(*step, 1.0, delta) for step in steps), key=lambda one: one.corollary)
    told = [
        (found.corollary, cor.SOURCE, "one step of a saturated record", None),
        (found.amplified, f"{cor.SOURCE}, for p to infinity", "one step of a saturated record, amplified", None),
        (
            found.printed,
            "Thudi et al. 2024, Corollary 3.1",
            "one step of a saturated record",
            _HOLDS if found.holds else cor.CLASSICAL,
        ),
    ]
    for value, source, method, printed in told:
        yield dps.Finding(
            quantity="step_epsilon",
            value=value,
            bound="upper",
            rigor="theorem",
            at=dps.FrozenMap({"delta": delta}),
            scope=dps.Scope(direction="remove"),
            method=method,
            source=source,
            assumptions=bounds.ASSUMPTIONS,
            printed=printed,
        )


def one_step_series(steps: Sequence[tuple[float, float]], delta: float) -> dps.Series:
    """One step by the record's clipped norm: figures 8 to 11 of the paper, for sums."""

    def rows() -> Iterator[Sequence[dps.Json]]:
        for norm in NORMS:
            found = max((one_step(*step, norm, delta) for step in steps), key=lambda one: one.corollary)
            yield norm, found.corollary, found.amplified, found.printed, "yes" if found.holds else "no"

    return table(
        "one-step",
        f"Epsilon of one step at delta {delta:g}, a record against none, by the record's clipped norm".replace(
            "e-0", "e-"
        ),
        ("norm", "corollary", "amplified", "printed", "printed_holds"),
        rows(),
        rigor="theorem",
        source=cor.SOURCE,
        plot={"x": "norm", "y": ["corollary", "amplified"], "log": ["x", "y"]},
    )


def attack_series(spec: dps.Spec, steps: Sequence[tuple[float, float]], delta: float) -> dps.Series:
    """The most that attacks on a saturated record reach: in one step by Lemma A.1, in the run by its divergences."""
    composer = Composer(spec.mechanism.options, "present-first")
    fpr = np.array(RATES)
    single = np.max([cor.best_lemma(*step, 1.0, delta, fpr) for step in steps], axis=0)
    whole = np.min([derived.true_positive_rate(fpr, a, composer.baseline(a)) for a in composer.orders], axis=0)
    return table(
        "attack-limits",
        "True-positive rate that no attack on one record exceeds, in one step and in the whole run",
        ("fpr", "one_step", "run"),
        zip(RATES, single.tolist(), whole.tolist(), strict=True),
        rigor="theorem",
        source="Thudi et al. 2024, Lemma A.1, with the exact profile of the Gaussian mechanism, and Theorem 3.2",
        plot={"x": "fpr", "y": ["one_step", "run"], "log": ["x", "y"], "identity": True},
    )


def _first_order(composer: Composer, order: float, side: str) -> Iterator[dps.Finding]:
    found = float(composition.recursion(order, composer.count, composer.p).orders[0])
    told: list[tuple[float, dps.Printed | None]] = [(found, None)]
    if isinstance(composer.p, int | float):
        printed = composition.printed_order(order, composer.p, composer.count - 1)
        told.append((printed, composition.MISPRINT))
    for value, how in told:
        yield dps.Finding(
            quantity="first_order",
            value=value,
            bound="upper",
            rigor="theorem",
            at=dps.FrozenMap({"alpha": order}),
            scope=dps.Scope(direction=side),
            method="the recursion of orders, at the first step",
            source=composition.SOURCE,
            printed=how,
        )


def _runs(composer: Composer, order: float, side: str, failure: float) -> Iterator[dps.Finding]:
    counts = estimation.fact_3_5(order, composer.baseline(order), composer.baseline(2.0 * order), ACCURACY, failure)
    told = [
        (max(1.0, counts.hoeffding), "Hoeffding 1963, for Thudi et al. 2024, Fact 3.5", None),
        (counts.printed, "Thudi et al. 2024, Fact 3.5", estimation.FACT_PRINTED),
    ]
    for value, source, printed in told:
        yield dps.Finding(
            quantity="runs_enough",
            value=value,
            bound="upper",
            rigor="theorem",
            at=dps.FrozenMap({"alpha": order}),
            scope=dps.Scope(direction=side, data="this"),
            method=f"counting runs that tell one step's expectation to {ACCURACY:g} of what keeps it below the "
            f"data-independent value, but with probability {failure:.2g}",
            source=source,
            printed=printed,
        )


def unlearning_orders(orders: Sequence[float], most: float) -> Iterator[tuple[float, int]]:
    """Each order with each number of deletions for which all orders that ``unlearned`` asks for are within ``most``."""
    for order in orders:
        for deletions in range(1, DELETIONS + 1):
            if derived.deletion_orders(order, deletions)[-1] <= most:
                yield order, deletions


def _unlearning(spec: dps.Spec, best: float) -> Iterator[dps.Finding | dps.Series]:
    composer = Composer(spec.mechanism.options, "present-first")
    shown = sorted({best, *(order for order in (2.0, 8.0) if order in composer.orders)})
    rows: list[tuple[float, int, float, float | None]] = []
    for order, deletions in unlearning_orders(shown, MOST_ORDER):
        terms = [composer.baseline(float(a)) for a in derived.deletion_orders(order, deletions)]
        right = float(derived.unlearned(order, deletions, terms))
        printed = float(derived.unlearned(order, deletions, terms, derived.printed_constant)) if order > 2.0 else None
        rows.append((order, deletions, right, printed))
        if deletions == 2:
            for value, how in ((right, None), (printed, derived.NPIU_PRINTED)):
                if value is not None:
                    yield dps.Finding(
                        quantity="unlearning_divergence",
                        value=value,
                        bound="upper",
                        rigor="theorem",
                        at=dps.FrozenMap({"alpha": order, "deletions": deletions}),
                        scope=dps.Scope(direction="remove"),
                        method="keeping the model while any records are deleted, one by one",
                        source=UNLEARNING + (", with the constant of its proof" if how is None else ""),
                        assumptions=bounds.ASSUMPTIONS,
                        printed=how,
                    )
    yield table(
        "unlearning",
        "Renyi divergence from a model that is kept to one trained without the deleted records, whichever they are",
        ("order", "deletions", "divergence", "printed"),
        rows,
        rigor="theorem",
        source=f"{UNLEARNING}, with the constant of its proof",
    )
