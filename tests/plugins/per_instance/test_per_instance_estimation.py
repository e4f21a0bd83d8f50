"""What runs say: plug-ins and confidence bounds, conversion, derived quantities."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from support.per_instance_brute import rounded_divergence

from dpspec.accounting import epsilon_at_orders
from dpspec_per_instance import analysis, findings, one_step, statements, theory
from dpspec_per_instance.theory import entropic_mean, exponents, step_divergence

NORMS = np.array([(1.0, 0.8, 0.5, 0.3), (1.0, 0.9, 0.4, 0.1), (1.0, 0.7, 0.6, 0.2)])
NEAR = 6e-8


def _totals(order, p, rounding="real", failure=None):
    e = exponents(order, 4, p)
    step = step_divergence if rounding == "real" else partial(rounded_divergence, rounding=rounding)
    d = [step(a, 0.1, NORMS[:, t]) for t, a in enumerate(e.orders)]
    parts = [float(d[0][0]), *(float(entropic_mean(d[t], float(e.weights[t]))) for t in (1, 2, 3))]
    if failure is None:
        return parts
    for t in (1, 2, 3):
        top = float(step_divergence(e.orders[t], 0.1, 1.0))
        parts[t] = float(
            theory.confidence_upper_mean(parts[t], float(e.weights[t]), top, 3, theory.log_terms(3, failure))
        )
    return parts


@pytest.mark.parametrize(
    ("order", "p", "orders", "parts", "real", "interpolated", "ceiling", "certain", "ordinary"),
    [
        (2, 12.0, (2.298271976, 2.1900826446, 2.0909090909, 2),
         (0.020724826, 0.010345504, 3.1166337e-3, 4.839978e-4),
         0.034670962, 0.038797632, 0.052456153, 0.072596680, 0.068147453),
        (4, 12.0, (4.8948159279, 4.5702479339, 4.2727272727, 4),
         (0.11772990, 0.033729372, 6.9937071e-3, 9.888827e-4),
         0.15944186, 0.16851695, 0.18218899, 0.32555179, 0.23469043),
        (2, 2.0, (9, 5, 3, 2), (1.9130578, 0.038149801, 4.6034974e-3, 4.833943e-4),
         1.9562945, 1.9562945, 1.9562945, None, 0.068147453),
    ],
)  # fmt: skip
def test_the_plug_in_of_three_runs(order, p, orders, parts, real, interpolated, ceiling, certain, ordinary):
    """R16."""
    assert exponents(order, 4, p).orders == pytest.approx(orders, rel=6e-10)
    assert _totals(order, p) == pytest.approx(parts, rel=2e-7)
    assert sum(_totals(order, p)) == pytest.approx(real, rel=NEAR)
    assert sum(_totals(order, p, "interpolated")) == pytest.approx(interpolated, rel=NEAR)
    assert sum(_totals(order, p, "ceiling")) == pytest.approx(ceiling, rel=NEAR)
    if certain is not None:
        assert sum(_totals(order, p, failure=0.05)) == pytest.approx(certain, rel=NEAR)
    assert 4 * float(step_divergence(order, 0.1, 1.0)) == pytest.approx(ordinary, rel=NEAR)


def test_counts_of_fact_3_5():
    """R17: as printed, with its sign repaired, and right."""
    for given, printed, repaired, right in (
        ((2, 1, 2.2, 0.1, 0.05), 3.04256e-4, 2.9496253e8, 7.2137163e16),
        ((2, 0.2, 0.41, 0.1, 0.05), 24.837606, 3613.2354, 84691.249),
        ((8, 0.05, 0.11, 0.1, 0.05), 17.32861, 5178.9566, 443799.66),
    ):
        found = statements.fact_3_5(*given)
        assert found.printed == pytest.approx(printed, rel=2e-6)
        assert found.sign_repaired == pytest.approx(repaired, rel=NEAR)
        assert found.hoeffding == pytest.approx(right, rel=NEAR)
    assert statements.FACT_PRINTED.refuted


@pytest.mark.parametrize(
    ("d", "order", "delta", "mironov", "improved"),
    [(1, 8, 1e-5, 2.6447036, 2.2141092), (0.5, 4, 1e-6, 5.1051702, 4.3553900), (2, 2, 1e-5, 13.512925, 12.126631)],
)
def test_conversion(d, order, delta, mironov, improved):
    """R17."""
    assert epsilon_at_orders(order, d, delta, "mironov") == pytest.approx(mironov, rel=NEAR)
    assert epsilon_at_orders(order, d, delta) == pytest.approx(improved, rel=NEAR)


def test_unlearning_without_retraining():
    """R17: the proof's constant; the printed one is undefined at 2."""
    assert statements.unlearned(2, 2, [0.4, 0.3]) == pytest.approx(0.85)
    assert statements.unlearned(3, 2, [0.4, 0.3]) == pytest.approx(0.775)
    assert statements.printed_constant(2) == math.inf
    assert statements.printed_constant(3) * 0.3 + 0.4 == pytest.approx(1.0)
    assert statements.NPIU_PRINTED.refuted
    assert statements.unlearned(3, 1, [0.4]) == pytest.approx(0.4)
    with pytest.raises(ValueError, match="one divergence for each"):
        statements.unlearned(3, 2, [0.4])


def test_the_weak_triangle_inequality_holds_for_gaussians():
    rng = np.random.default_rng(5)
    for _ in range(100):
        x, y, z = rng.normal(size=3)
        order = float(rng.uniform(1.1, 9))
        whole = order * (x - y) ** 2 / 2
        terms = [(2 * order - 1) * (z - y) ** 2 / 2, 2 * order * (x - z) ** 2 / 2]
        steps = float(statements.unlearned(order, 2, terms))
        assert whole <= steps * (1 + 1e-12)


def test_what_an_attack_can_reach():
    from scipy.special import ndtr, ndtri

    fpr, mu = np.array([1e-6, 1e-3, 0.1, 0.5]), 1.3
    for order in (1.5, 4.0, 20.0):
        assert np.all(ndtr(mu + ndtri(fpr)) <= one_step.true_positive_rate(fpr, order, order * mu**2 / 2) + 1e-12)
    assert analysis.advantage(0.0, 0.0) == 0.0
    assert analysis.advantage(1.0, 0.0) == pytest.approx(math.tanh(0.5))
    assert analysis.advantage(1e3, 1e-5) == 1.0
    assert analysis.advantage(0.5, 0.1) == pytest.approx((math.exp(0.5) - 1 + 0.2) / (math.exp(0.5) + 1))


def test_confidence_bounds_hold_as_often_as_they_say():
    """2000 tables of 20 runs at 10%: the failures are what a binomial of that rate allows."""
    rng, weight, top, failure = np.random.default_rng(9), 3.0, 1.0, 0.1
    masses, levels = np.array([0.9, 0.1]), np.array([0.05, 0.9])
    truth = float(entropic_mean(levels, weight, np.log(masses)))
    drawn = rng.choice(levels, p=masses, size=(20, 2000))
    found = theory.confidence_upper_mean(entropic_mean(drawn, weight), weight, top, 20, theory.log_terms(1, failure))
    assert np.mean(found < truth) <= failure + 3 * math.sqrt(failure * (1 - failure) / 2000)
    assert np.mean(entropic_mean(drawn, weight) < truth) > 0.3
    assert np.all(found <= top)
    assert theory.confidence_upper_mean([0.0], 2.0, 0.0, 5, 1.0) == pytest.approx(0.0)


def test_plug_ins_sit_at_the_largest_run_where_kappa_is_large():
    d = np.random.default_rng(4).uniform(0, 1, (10, 6))
    weight = 1e5
    found = entropic_mean(d, weight)
    assert np.all(found <= d.max(0))
    assert np.all(found >= d.max(0) - math.log(10) / weight)


def test_runs_needed_are_enough_and_fewer_are_not():
    means, weights, tops = [0.1, 0.2], [4.0, 5.0], [1.0, 1.0]
    logs = theory.log_terms(2, 0.05)

    def total(runs):
        some = zip(means, weights, tops, strict=True)
        return 0.05 + sum(float(theory.confidence_upper_mean(m, w, d, runs, logs)) for m, w, d in some)

    runs = findings.runs_needed(means, weights, tops, 0.05, 0.5, logs)
    assert total(runs * 1.001) <= 0.5 < total(runs * 0.99)
    assert findings.runs_needed(means, weights, tops, 0.05, 0.3, logs) == math.inf
    assert findings.runs_needed(means, weights, tops, 0.05, 3.0, logs) == 1.0
