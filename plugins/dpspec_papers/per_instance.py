"""Further statements of the paper for the declared mechanism, with their printed forms: one step as (epsilon, delta)
(Lemma A.1 and Corollary 3.1, figures 8 to 11), orders, numbers of runs (Fact 3.5) and unlearning (Fact 5.2).

Formulas: ``docs/explanation/proofs/per-instance.md``.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Floats
from dpspec_per_instance.bounds import DIRECTIONS, Composer, one_sided, spoken_directions
from dpspec_per_instance.one_step import COROLLARY_SOURCE, EXPONENTS, epsilons, one_step, split

UNLEARNING_SOURCE = "Thudi et al. 2024, Fact 5.2"
_PROVED = f"{UNLEARNING_SOURCE}, with the constant of its proof"

#: Clipped norms, in clip norms, in the table of one step.
NORMS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)

#: False-positive rates of attacks.
RATES = (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.5)

#: Required accuracy of an expectation, relative to its distance from the data-independent value.
ACCURACY = 0.1

#: Maximum number of deletions, and largest order, in tables.
DELETIONS, MOST_ORDER = 3, 512.0

#: Status of values that use the classical constant within and outside its range.
_HOLDS = dps.Printed(refuted=False, reason="with the classical Gaussian constant, which holds at this distance")
CLASSICAL = dps.Printed(refuted=True, reason="the classical Gaussian constant does not hold at this distance")

#: Error of Fact 3.5 as printed. The repaired count uses a two-sided Hoeffding inequality.
FACT_PRINTED = dps.Printed(refuted=True, reason="wrong sign in the exponent, the range not squared, one side only")

#: The constant of algorithm NPIU as printed: undefined at order 2, negative below, needlessly large above.
NPIU_PRINTED = dps.Printed(refuted=True, reason="the proof has (a - 1/2) / (a - 1), the algorithm another constant")


def lemma(rate: float, log_norm: float, delta: float, p: float, fpr: npt.ArrayLike) -> Floats:
    """The largest true-positive rate at false-positive rates ``fpr`` (Lemma A.1), at most 1; log_norm is ln N_p."""
    rates = np.asarray(fpr, dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_drawn = math.log(rate) + log_norm + (1.0 - 1.0 / p) * np.log(rates)
    drawn = np.exp(np.minimum(log_drawn, 1.0))  # values above 1 are trivial
    return np.asarray(np.minimum(1.0, drawn + rate * delta + (1.0 - rate) * rates), dtype=np.float64)


def best_lemma(rate: float, sigma: float, norm: float, delta: float, fpr: npt.ArrayLike) -> Floats:
    """Minimum over exponents of Lemma A.1's rates at ``fpr`` (k,), for a sum that the record changes by ``norm``."""
    inner, _ = split(rate, delta)
    log_norm = float(epsilons(norm, inner, sigma))
    return np.asarray(np.min([lemma(rate, log_norm, inner, p, fpr) for p in EXPONENTS], axis=0), dtype=np.float64)


def compare(
    spec: dps.Spec, facts: dps.Facts, bounds: Sequence[dps.Finding | dps.Series]
) -> Iterator[dps.Finding | dps.Series]:
    delta = kit.claimed_deltas(spec)[-1]
    side = one_sided(spoken_directions(spec)[0])[0]
    composer = Composer(spec.mechanism.options, DIRECTIONS[side])
    order = composer.best(delta).order
    yield from _step_statements(spec, delta)
    yield _divergences(spec)
    if spec.audit is not None:
        failure, fact = 1.0 - spec.audit.confidence, "Thudi et al. 2024, Fact 3.5"
        as_printed, count = fact_3_5(order, composer.baseline(order), composer.baseline(2.0 * order), ACCURACY, failure)
        forms = (max(1.0, count), f"Hoeffding 1963, for {fact}", None), (as_printed, fact, FACT_PRINTED)
        for value, source, printed in forms:
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
    yield from _unlearning_statements(spec, order)


def _divergences(spec: dps.Spec) -> dps.Series:
    rows: list[tuple[float, str, float, float]] = []
    for side in dict.fromkeys(itertools.chain.from_iterable(map(one_sided, spoken_directions(spec)))):
        composer = Composer(spec.mechanism.options, DIRECTIONS[side])
        rows += [(order, side, composer.saturated(order, 1), composer.baseline(order)) for order in composer.orders]
    return kit.series(
        "divergence-by-order",
        "Renyi divergence that no record exceeds, of the first step and of the run",
        kit.columns_of(("order", "direction", "first_step", "run"), rows),
        rigor="theorem",
        source="Mironov, Talwar & Zhang 2019; composition",
        x="order",
        y=["first_step", "run"],
        units=dict.fromkeys(("first_step", "run"), "Renyi divergence"),
        by="direction",
        log=["x", "y"],
        upper=("first_step", "run"),
    )


def _step_statements(spec: dps.Spec, delta: float) -> Iterator[dps.Finding | dps.Series]:
    """The worst step for a saturated record, by clipped norm, and the power of attacks."""
    steps = [(phase.rate(), phase.noise_multiplier) for phase in spec.phases]
    by_norm = {
        norm: max((one_step(*step, norm, delta) for step in steps), key=lambda step: step.corollary) for norm in NORMS
    }
    worst, method = by_norm[1.0], "one step of a saturated record"
    forms = [
        (worst.corollary, COROLLARY_SOURCE, method, None),
        (worst.amplified, f"{COROLLARY_SOURCE}, for p to infinity", f"{method}, amplified", None),
        (worst.printed, "Thudi et al. 2024, Corollary 3.1", method, _HOLDS if worst.holds else CLASSICAL),
    ]
    for value, source, method, printed in forms:
        yield kit.theorem_upper(
            "step_epsilon",
            value,
            at={"delta": delta},
            scope=dps.Scope(direction="remove"),
            method=method,
            source=source,
            assumptions=kit.ASSUMPTIONS,
            printed=printed,
        )
    rows = [(norm, *step[:3], "yes" if step.holds else "no") for norm, step in by_norm.items()]
    yield kit.series(
        "one-step",
        f"Epsilon of one step at delta {delta:g}, present-first, by the record's clipped norm".replace("e-0", "e-"),
        kit.columns_of(("norm", "corollary", "amplified", "printed", "printed_holds"), rows),
        upper=("corollary", "amplified"),
        rigor="theorem",
        source=COROLLARY_SOURCE,
        x="norm",
        y=["corollary", "amplified"],
        units={"norm": "clip norms", **dict.fromkeys(("corollary", "amplified"), "epsilon")},
        log=["x", "y"],
    )
    single = np.max([best_lemma(*step, 1.0, delta, np.array(RATES)) for step in steps], axis=0)
    yield kit.series(
        "attack-limits",
        "Maximum true-positive rate of attacks on one record in one step",
        kit.columns_of(("fpr", "one_step"), zip(RATES, single.tolist(), strict=True)),
        upper=("one_step",),
        rigor="theorem",
        source="Thudi et al. 2024, Lemma A.1, with the exact profile of the Gaussian mechanism",
        x="fpr",
        y=["one_step"],
        units={"one_step": "true-positive rate"},
        log=["x", "y"],
    )


def fact_3_5(
    order: float, epsilon: float, epsilon_doubled: float, accuracy: float, failure: float
) -> tuple[float, float]:
    """Runs for P[|estimate - truth| >= c e^(3 (a - 1) epsilon)] <= J at order a; p = 3n: printed, and by Hoeffding.

    epsilon, epsilon_doubled: the classical divergences of the whole run at orders a and 2a. accuracy: c. failure: J.
    """
    low, high = 3.0 * (order - 1.0) * epsilon, 3.0 * (2.0 * order - 1.0) * epsilon_doubled
    log_one_sided = math.log(-math.log(failure)) - 2.0 * math.log(accuracy)
    log_two_sided = math.log(math.log(2.0 / failure)) - math.log(2.0) - 2.0 * math.log(accuracy)
    log_range = high + math.log(-math.expm1(-high)) if high > 0.0 else -math.inf
    logs = log_one_sided + 2.0 * low - high, log_two_sided + 2.0 * log_range - 2.0 * low
    printed, hoeffding = (math.exp(log) if log < 700.0 else math.inf for log in logs)
    return printed, hoeffding


def deletion_orders(order: float, deletions: int) -> Floats:
    """Orders 2 b - 1, b = a, 2a, 4a, ..., shape (deletions,), of the divergences that ``unlearned`` needs."""
    return np.asarray(2.0 * order * 2.0 ** np.arange(deletions) - 1.0, dtype=np.float64)


def unlearned(order: float, deletions: int, divergence: npt.ArrayLike, *, printed: bool = False) -> Floats:
    """d_s(a) = c(a) d_{s-1}(2a) + D_{2a - 1}, d_0 = 0 (Fact 5.2): divergence after deletions without retraining.

    ``divergence`` at ``deletion_orders``, shape (deletions, ...), from the last deletion to the first. The constant is
    c = (a - 1/2) / (a - 1) in D_a(P || Q) <= c D_2a(P || S) + D_(2a - 1)(S || Q) (Mironov 2017, Corollary 4), or
    (a - 1) / (a - 2) as ``printed`` in algorithm NPIU, for orders above 2.
    """
    terms = np.asarray(divergence, dtype=np.float64)
    total = np.zeros(terms.shape[1:])
    for turn in range(deletions - 1, -1, -1):
        a = 2.0**turn * order
        constant = (a - 1.0) / (a - 2.0) if printed else (a - 0.5) / (a - 1.0)
        with np.errstate(invalid="ignore"):
            total = np.where(total > 0.0, constant * total, 0.0) + terms[turn]
    return np.asarray(total, dtype=np.float64)


def _unlearning_statements(spec: dps.Spec, best_order: float) -> Iterator[dps.Finding | dps.Series]:
    composer = Composer(spec.mechanism.options, "present-first")
    shown = sorted({best_order, *(order for order in (2.0, 8.0) if order in composer.orders)})
    rows: list[tuple[float, int, float, float | None]] = []
    for order, deletions in itertools.product(shown, range(1, DELETIONS + 1)):
        if deletion_orders(order, deletions)[-1] > MOST_ORDER:
            continue
        terms = [composer.baseline(float(a)) for a in deletion_orders(order, deletions)]
        repaired = float(unlearned(order, deletions, terms))
        printed = float(unlearned(order, deletions, terms, printed=True)) if order > 2.0 else None
        rows.append((order, deletions, repaired, printed))
        forms = ((repaired, None, _PROVED), (printed, NPIU_PRINTED, UNLEARNING_SOURCE)) if deletions == 2 else ()
        for value, how, source in forms:
            if value is not None:
                yield kit.theorem_upper(
                    "unlearning_divergence",
                    value,
                    at={"alpha": order, "deletions": deletions},
                    scope=dps.Scope(direction="remove"),
                    method="keeping the model while records are deleted one by one",
                    source=source,
                    assumptions=kit.ASSUMPTIONS,
                    printed=how,
                )
    yield kit.series(
        "unlearning",
        "Renyi divergence from the kept model to one trained without the deleted records, for any records",
        kit.columns_of(("order", "deletions", "divergence", "printed"), rows),
        upper=("divergence",),
        rigor="theorem",
        source=_PROVED,
    )
