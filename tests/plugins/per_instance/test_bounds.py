"""From norms to the divergence of runs: the table against the formula, and the composition against its parts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import binom, hypergeom
from support import per_instance_brute as brute
from support.per_instance_brute import Chain, chain_bound, discrete, integer_divergence, largest_mean_change

from dpspec.contract import FrozenMap
from dpspec_papers import per_instance as printed_statements
from dpspec_per_instance import bounds, findings
from dpspec_per_instance.bounds import Composer, StepTable, entropic_mean, exponents, step_divergence
from dpspec_per_instance.findings import above, quantile_place

MECHANISM = {
    "noise_multiplier": 0.9,
    "clip_norm": 0.5,
    "sampling": {"scheme": "poisson", "rate": 0.05},
    "steps": 30,
    "orders": [1.5, 2.0, 4.0, 16.0],
    "composition": {"exponent": "auto", "observe_every": 1},
}
LOGS = bounds.log_terms(1000, 0.05)


def mechanism(**changes):
    return FrozenMap({**MECHANISM, **changes})


@pytest.mark.ci
@pytest.mark.parametrize("direction", ["present-first", "absent-first"])
@pytest.mark.parametrize(("rate", "sigma"), [(0.05, 0.8665), (128 / 60000, 0.469), (0.5, 3.0), (1.0, 2.0)])
def test_the_table_is_never_below_the_formula_and_hardly_above(direction, rate, sigma):
    """640 orders and norms each: above by at most 2% where the divergence does not jump, and never below."""
    table = StepTable(rate, sigma, 1.3, 40.0, direction)
    rng = np.random.default_rng(0)
    sizes = np.concatenate([[0.0, 1.0], rng.uniform(0.01, 1.0, 62)])
    excess = []
    for order in np.concatenate([[1.3, 40.0], rng.uniform(1.3, 40.0, 8)]):
        truth = np.append(0.0, (order - 1.0) * step_divergence(order, rate, sizes[1:] / sigma, direction))
        found = table.row(float(order))[table.places(sizes)]
        assert np.all(found >= truth * (1 - 1e-10))
        excess += list(found[truth > 0] / truth[truth > 0] - 1)
        assert table.saturated(order) >= step_divergence(order, rate, 1.0 / sigma, direction) * (1 - 1e-10)
    assert np.median(excess) < 0.01
    assert np.quantile(excess, 0.9) < 0.03


@pytest.mark.ci
def test_the_composition_is_that_of_its_parts():
    """Every step observed: plug-ins and confidence bounds of totals, against the theorem put together by hand."""
    rng = np.random.default_rng(1)
    runs = [rng.uniform(0, 1, (30, 5)).astype(np.float32) for _ in range(6)]
    for run in runs:
        run[0] = 1.0  # the first model is the same in all runs
    composer = Composer(mechanism(), "present-first")
    places = composer.places(runs)
    for order in composer.orders:
        e = exponents(order, 30, 90.0)
        total = composer.total(order, places, LOGS)
        plug_in, certain = np.zeros(5), np.zeros(5)
        for t in range(30):
            d = step_divergence(e.orders[t], 0.05, np.stack([run[t] for run in runs]).astype(float) / 0.9)
            part = entropic_mean(d, float(e.weights[t]))
            top = float(step_divergence(e.orders[t], 0.05, 1 / 0.9))
            plug_in += part
            certain += part if t == 0 else bounds.confidence_upper_mean(part, float(e.weights[t]), top, 6, LOGS)
        assert np.all(total.plug_in >= plug_in * (1 - 1e-9))
        assert total.plug_in == pytest.approx(plug_in, rel=0.03)
        assert np.all(total.confidence_upper >= certain * (1 - 1e-9))
        assert total.confidence_upper == pytest.approx(certain, rel=0.03)
        baseline = composer.baseline(order)
        assert baseline == pytest.approx(30 * float(step_divergence(order, 0.05, 1 / 0.9)))
        assert np.all(total.plug_in <= total.confidence_upper * (1 + 1e-9))
        assert composer.kappa(order)[0] == pytest.approx(90 * (order - 1) * baseline / 30, rel=1e-9)
        second = float(step_divergence(e.orders[1], 0.05, 1 / 0.9)) * e.weights[1]
        assert composer.kappa(order)[1] == pytest.approx(second)
    assert Composer(mechanism(steps=1), "present-first").kappa(4.0) == (0.0, 0.0)


@pytest.mark.ci
@pytest.mark.parametrize("direction", ["present-first", "absent-first"])
def test_a_saturated_record_is_never_below_the_data_independent_value(direction):
    """At every order: the composition charges it more, so that the smaller of the two is the data-independent one."""
    for changes in ({}, {"composition": {"exponent": 40.0}}, {"step_bound": "theorem"}, {"steps": 1}):
        composer = Composer(mechanism(**changes), direction)
        full = [np.ones((len(composer.observed), 3), dtype=np.float32)] * 4
        places = composer.places(full)
        for order in composer.orders:
            total = composer.total(order, places, LOGS)
            assert np.all(total.plug_in >= composer.baseline(order) * (1 - 1e-12))
            assert np.all(total.confidence_upper >= composer.baseline(order) * (1 - 1e-12))


@pytest.mark.ci
def test_steps_between_observations_are_filled_in():
    """Estimates: as at the last observation. Confidence bounds: saturated."""
    dense, sparse = (Composer(mechanism(composition={"observe_every": n}), "present-first") for n in (1, 10))
    assert list(sparse.observed) == [1, 11, 21]
    truth, found = (
        one.total(4.0, one.places([np.full((len(one.observed), 2), 0.3, dtype=np.float32)] * 3), LOGS)
        for one in (dense, sparse)
    )
    assert np.all(found.plug_in >= truth.plug_in)
    assert found.plug_in == pytest.approx(truth.plug_in, rel=0.35)
    between = np.delete(exponents(4.0, 30, 90.0).orders, [0, 10, 20])
    saturated = sum(sparse.saturated(float(order), 1) for order in between)
    assert np.all(saturated > 4 * truth.plug_in)
    assert np.all(found.confidence_upper >= saturated)


def test_phases_have_steps_of_their_own():
    two = {
        "phases": [{"steps": 10, "noise_multiplier": 2.0}, {"steps": 20, "sampling": {"scheme": "full"}}],
        **{k: v for k, v in MECHANISM.items() if k != "steps"},
    }
    composer = Composer(FrozenMap(two), "present-first")
    assert composer.count == 30
    assert composer.saturated(4.0, 10) == pytest.approx(float(step_divergence(4.0, 0.05, 0.5)))
    assert composer.saturated(4.0, 11) == pytest.approx(4.0 / 2 / 0.81)
    assert composer.baseline(4.0) == pytest.approx(10 * composer.saturated(4.0, 1) + 20 * composer.saturated(4.0, 30))


def test_quantiles_of_samples_are_safe():
    """All audited, or without a confidence: the quantile itself. The next test has confident quantiles of samples."""
    assert quantile_place(0.5, 10, 10, None) == 4
    assert quantile_place(1.0, 10, 10, 0.05) == 9
    assert quantile_place(0.9, 100, 300, None) == 89
    assert quantile_place(0.99, 20, 300, 0.05) is None


@given(st.data())
def test_how_many_of_a_sample_are_marked_is_hypergeometric(data):
    """By exact counting, and the smallest rank equals that of a search by scipy's tails."""
    population = data.draw(st.integers(1, 60))
    drawn, marked = data.draw(st.integers(1, population)), data.draw(st.integers(0, population))
    ways = [math.comb(marked, k) * math.comb(population - marked, drawn - k) for k in range(drawn + 1)]
    exact = [sum(ways[i + 1 :]) / math.comb(population, drawn) for i in range(drawn)]
    assert above(population, marked, drawn) == pytest.approx(exact, rel=1e-12, abs=1e-290)
    fraction, failure = data.draw(st.sampled_from([0.1, 0.5, 0.9, 1.0])), data.draw(st.sampled_from([0.2, 0.05, 1e-3]))
    if drawn < population:
        below = math.ceil(fraction * population - 1e-9) - 1
        searched = (i for i in range(drawn) if hypergeom.sf(i, population, below, drawn) <= failure)
        assert quantile_place(fraction, drawn, population, failure) == next(searched, None)


@pytest.mark.parametrize("population", [10**6, 2**40, 2**62])
def test_quantiles_of_a_sample_take_no_longer_for_more_records(population):
    """For a large population the number of marked records in a sample is nearly binomial."""
    marked = population // 10
    exact = binom.sf(np.arange(40), 40, marked / population)
    assert above(population, marked, 40) == pytest.approx(exact, rel=1e-2 if population == 10**6 else 1e-6, abs=1e-30)


def test_more_records_than_there_are_are_no_sample():
    with pytest.raises(ValueError, match="cannot be a sample of 7"):
        quantile_place(0.5, 8, 7, 0.05)


EIGHT, ELEVEN = 6e-8, 6e-11
MNIST = 128 / 60000


@pytest.mark.parametrize(
    ("q", "size", "sigma", "order", "present", "absent", "tolerance"),
    [
        (0.5, 1.0, 1.0, 2, 0.35737402, 0.18569442, EIGHT),
        (0.01, 1.0, 1.0, 8, 8.9364390761e-4, 5.7238889490204e-4, ELEVEN),
        (0.1, 0.5, 1.0, 4, 6.0032829645e-3, 5.0205189860e-3, ELEVEN),
        (MNIST, 1.0, 0.469, 8, 11.156390948, 4.0428164001e-4, ELEVEN),
        (0.5, 2.0, 1.5, 3, 1.6768723200, 0.33734986348, ELEVEN),
        (1e-3, 0.01, 2.0, 4, 5.0000627502e-11, None, ELEVEN),
        (MNIST, 0.01, 0.469, 8, 8.2781442776e-9, None, ELEVEN),
        (MNIST, 1.0, 0.469, 64, 139.23264542, None, ELEVEN),
        (0.01, 1.0, 1.0, 256, 123.37677032, None, ELEVEN),
    ],
)
def test_the_reference_values_of_theorem_3_2(q, size, sigma, order, present, absent, tolerance):
    """R0 to R5: the bound and the sharper direction are exact if no other record is drawn."""
    nu = size / sigma
    assert integer_divergence(order, q, nu) == pytest.approx(present, rel=tolerance)
    assert step_divergence(order, q, nu) == pytest.approx(present, rel=tolerance)
    assert step_divergence(order, q, nu, "present-first") == pytest.approx(present, rel=tolerance)
    if absent is not None:
        assert step_divergence(order, q, nu, "absent-first") == pytest.approx(absent, rel=tolerance)


def test_limits_and_monotonicity():
    assert step_divergence(3.0, 1.0, 0.7) == pytest.approx(3 * 0.49 / 2, rel=1e-13)
    assert step_divergence(3.0, 1.0, 0.7, "absent-first") == pytest.approx(3 * 0.49 / 2, rel=1e-13)
    assert step_divergence([1.5, 2.5], 0.1, 0.8) == pytest.approx([6.4045367381e-3, 0.011701545743], rel=ELEVEN)  # R6
    assert integer_divergence(3, 0.3, 0.0) == 0.0
    grid = step_divergence(
        np.array([1.3, 2.0, 5.5])[:, None, None], np.array([0.01, 0.1, 0.6])[:, None], [0.1, 0.5, 2.0]
    )
    for axis in range(3):
        assert np.all(np.diff(grid, axis=axis) > 0)
    orders = np.linspace(1.05, 9.0, 60)
    moments = (orders - 1) * step_divergence(orders, 0.05, 1.3)
    assert np.all(np.diff(moments, 2) > -1e-12)
    assert np.all(step_divergence(orders, 0.05, 1.3, "absent-first") <= step_divergence(orders, 0.05, 1.3))


def test_arguments_that_make_no_sense_are_refused():
    for wrong in ((1.0, 0.1, 1.0), (2.0, -0.1, 1.0), (2.0, 1.1, 1.0), (2.0, 0.1, -1.0), (2.0, 0.1, math.nan)):
        with pytest.raises(ValueError, match="must be"):
            step_divergence(*wrong)


def _random(rng):
    count = int(rng.integers(0, 4))
    others, record = rng.uniform(-1, 1, count), float(rng.uniform(-1, 1))
    q, sigma = float(rng.choice([0.05, 0.2, 0.5, 0.9])), float(rng.uniform(0.5, 2.0))
    return others, record, q, sigma, str(rng.choice(["sum", "mean"]))


def test_theorem_3_2_is_never_below_the_truth():
    """80 random mini-batches, both rules, both directions, whole and real orders: no violation."""
    rng = np.random.default_rng(1)
    for _ in range(80):
        others, record, q, sigma, rule = _random(rng)
        largest = largest_mean_change(abs(record), np.abs(others - record)) if rule == "mean" else abs(record)
        present, absent = brute.pair(others, record, q, rule)
        order = float(rng.choice([1.5, 2.0, 3.0, 4.5]))
        bound = step_divergence(order, q, largest / sigma, "present-first")
        sharp = step_divergence(order, q, largest / sigma, "absent-first")
        assert brute.renyi(order, present, absent, sigma) <= bound * (1 + 1e-9) + 1e-12
        assert brute.renyi(order, absent, present, sigma) <= sharp * (1 + 1e-9) + 1e-12


NEAR = 6e-8


def printed_order(order, p, turns):
    """The order after ``turns`` iterations of the recursion as printed: g(a) = p / (p - 1) a - 1 / p."""
    for _ in range(turns):
        order = p / (p - 1) * order - 1 / p
    return order


def _printed(first, second, order, p):
    n = first.steps
    orders = np.array([printed_order(order, p, n - t) for t in range(1, n + 1)])
    shares = [(p - 1) ** i / p ** (i + 1) / (order - 1) for i in range(n - 1)]
    total = ((p - 1) / p) ** (n - 1) * (orders[0] - 1) / (order - 1) * discrete(orders[0], first.start, second.start)
    for i, share in enumerate(shares):
        row, other, a = first.rows[n - 2 - i], second.rows[n - 2 - i], orders[n - 1 - i]
        powers = p * (a - 1) * discrete(a, row, other)
        total += share * float(logsumexp(powers + np.log(first.before(n - i))))
    return total


def test_two_steps_and_the_wrong_expectation():
    """R13: the expectation over the second argument's training falls below the truth."""
    p_chain = Chain((0.77, 0.23), ((0.47, 0.53), (0.42, 0.58)))
    q_chain = Chain((0.97, 0.03), ((0.52, 0.48), (0.96, 0.04)))
    e = exponents(2, 2, 2.0)
    assert e.orders == pytest.approx([3, 2])
    truth = float(discrete(2, p_chain.paths(), q_chain.paths()))
    assert truth == pytest.approx(2.7581731, rel=NEAR)
    assert chain_bound(p_chain, q_chain, p_chain, e.orders, e.weights) == pytest.approx(2.7584754, rel=NEAR)
    wrong = chain_bound(p_chain, q_chain, q_chain, e.orders, e.weights)
    assert wrong == pytest.approx(1.9020473, rel=NEAR)
    assert wrong < truth
    assert _printed(p_chain, q_chain, 2, 2.0) == pytest.approx(3.2558063, rel=NEAR)
    assert float(discrete(2, q_chain.paths(), p_chain.paths())) == pytest.approx(0.21737399, rel=NEAR)
    assert chain_bound(q_chain, p_chain, q_chain, e.orders, e.weights) == pytest.approx(0.27888391, rel=NEAR)


def _random_chain(rng, steps):
    def law():
        v = rng.uniform(0.02, 0.98)
        return (v, 1 - v)

    return Chain(law(), *[(law(), law()) for _ in range(steps - 1)])


def test_random_chains_are_never_above_the_bound_and_the_wrong_variants_are():
    """300 chains, no violation. The second argument's expectation and orders
    reversed in time both fall below the truth, and the printed recursion never below the repaired one."""
    rng = np.random.default_rng(3)
    below = {"second argument": 0, "reversed": 0}
    for _ in range(300):
        n = int(rng.integers(2, 5))
        first, second = _random_chain(rng, n), _random_chain(rng, n)
        order, p = float(rng.choice([1.5, 2.0, 4.0])), float(rng.choice([1.3, 2.0, 3.0 * n, 50.0]))
        truth = float(discrete(order, first.paths(), second.paths()))
        e = exponents(order, n, p)
        bound = chain_bound(first, second, first, e.orders, e.weights)
        assert truth <= bound * (1 + 1e-10)
        assert bound <= _printed(first, second, order, p) * (1 + 1e-10)
        below["second argument"] += chain_bound(first, second, second, e.orders, e.weights) < truth * (1 - 1e-9)
        below["reversed"] += chain_bound(first, second, first, e.orders[::-1], e.weights[::-1]) < truth * (1 - 1e-9)
    assert below["second argument"] >= 5
    assert below["reversed"] >= 3


def test_orders_stay_near_with_the_exponent_of_the_paper():
    """R17 and Fact 3.4, for every number of steps."""
    assert exponents(8, 4687, 14061).orders[0] == pytest.approx(10.768707991, rel=6e-11)
    assert printed_order(8, 14061, 4686) == pytest.approx(10.768736120, rel=6e-11)
    for n in (1, 2, 5, 100, 4687):
        assert exponents(8, n, 3.0 * n).orders[0] < 1 + math.exp(1 / 3) * 7


def test_an_entropic_mean_lies_between_the_mean_and_the_largest():
    values = np.random.default_rng(0).uniform(0, 2, (7, 3))
    for weight in (1e-6, 1.0, 50.0):
        found = entropic_mean(values, weight)
        assert np.all(values.mean(0) <= found * (1 + 1e-12))
        assert np.all(found <= values.max(0))
    assert entropic_mean(values, 1e-7) == pytest.approx(values.mean(0), rel=1e-6)
    assert entropic_mean(values, 1e9) == pytest.approx(values.max(0), rel=1e-8)
    assert entropic_mean([1.5, 1.5], 1e4) == pytest.approx(1.5)
    assert entropic_mean([0.0, 9.0], 3.0, [0.0, -math.inf]) == pytest.approx(0.0)
    with pytest.raises(ValueError, match="weight"):
        entropic_mean([1.0], 0.0)


NORMS = np.array([(1.0, 0.8, 0.5, 0.3), (1.0, 0.9, 0.4, 0.1), (1.0, 0.7, 0.6, 0.2)])


@pytest.mark.parametrize(
    ("order", "p", "orders", "parts", "total", "certain"),
    [
        (2, 12.0, (2.298271976, 2.1900826446, 2.0909090909, 2),
         (0.020724826, 0.010345504, 3.1166337e-3, 4.839978e-4), 0.034670962, 0.072596680),
        (4, 12.0, (4.8948159279, 4.5702479339, 4.2727272727, 4),
         (0.11772990, 0.033729372, 6.9937071e-3, 9.888827e-4), 0.15944186, 0.32555179),
    ],
)  # fmt: skip
def test_the_plug_in_of_three_runs(order, p, orders, parts, total, certain):
    """R16."""
    e = exponents(order, 4, p)
    assert e.orders == pytest.approx(orders, rel=6e-10)
    d = [step_divergence(a, 0.1, NORMS[:, t]) for t, a in enumerate(e.orders)]
    found = [float(d[0][0]), *(float(entropic_mean(d[t], float(e.weights[t]))) for t in (1, 2, 3))]
    assert found == pytest.approx(parts, rel=2e-7)
    assert sum(found) == pytest.approx(total, rel=NEAR)
    for t in (1, 2, 3):
        top, logs = float(step_divergence(e.orders[t], 0.1, 1.0)), bounds.log_terms(3, 0.05)
        found[t] = float(bounds.confidence_upper_mean(found[t], float(e.weights[t]), top, 3, logs))
    assert sum(found) == pytest.approx(certain, rel=NEAR)


def test_counts_of_fact_3_5():
    """R17: as printed, and right."""
    for arguments, printed, right in (
        ((2, 1, 2.2, 0.1, 0.05), 3.04256e-4, 7.2137163e16),
        ((2, 0.2, 0.41, 0.1, 0.05), 24.837606, 84691.249),
        ((8, 0.05, 0.11, 0.1, 0.05), 17.32861, 443799.66),
    ):
        as_printed, hoeffding = printed_statements.fact_3_5(*arguments)
        assert as_printed == pytest.approx(printed, rel=2e-6)
        assert hoeffding == pytest.approx(right, rel=NEAR)
    assert printed_statements.FACT_PRINTED.refuted


def test_unlearning_without_retraining():
    """R17: the proof's constant; the printed one is undefined at 2."""
    assert printed_statements.unlearned(2, 2, [0.4, 0.3]) == pytest.approx(0.85)
    assert printed_statements.unlearned(3, 2, [0.4, 0.3]) == pytest.approx(0.775)
    assert printed_statements.unlearned(3, 2, [0.4, 0.3], printed=True) == pytest.approx(1.0)
    assert printed_statements.NPIU_PRINTED.refuted
    assert printed_statements.unlearned(3, 1, [0.4]) == pytest.approx(0.4)


def test_the_weak_triangle_inequality_holds_for_gaussians():
    rng = np.random.default_rng(5)
    for _ in range(100):
        x, y, z = rng.normal(size=3)
        order = float(rng.uniform(1.1, 9))
        whole = order * (x - y) ** 2 / 2
        terms = [(2 * order - 1) * (z - y) ** 2 / 2, 2 * order * (x - z) ** 2 / 2]
        steps = float(printed_statements.unlearned(order, 2, terms))
        assert whole <= steps * (1 + 1e-12)


def test_the_advantage_of_an_epsilon():
    assert findings.advantage(0.0, 0.0) == 0.0
    assert findings.advantage(1.0, 0.0) == pytest.approx(math.tanh(0.5))
    assert findings.advantage(1e3, 1e-5) == 1.0
    assert findings.advantage(0.5, 0.1) == pytest.approx((math.exp(0.5) - 1 + 0.2) / (math.exp(0.5) + 1))


def test_confidence_bounds_hold_as_often_as_they_say():
    """2000 tables of 20 runs at 10%: the number of failures is within a binomial of that rate."""
    rng, weight, top, failure = np.random.default_rng(9), 3.0, 1.0, 0.1
    masses, levels = np.array([0.9, 0.1]), np.array([0.05, 0.9])
    truth = float(entropic_mean(levels, weight, np.log(masses)))
    drawn = rng.choice(levels, p=masses, size=(20, 2000))
    found = bounds.confidence_upper_mean(entropic_mean(drawn, weight), weight, top, 20, bounds.log_terms(1, failure))
    assert np.mean(found < truth) <= failure + 3 * math.sqrt(failure * (1 - failure) / 2000)
    assert np.mean(entropic_mean(drawn, weight) < truth) > 0.3
    assert np.all(found <= top)
    assert bounds.confidence_upper_mean([0.0], 2.0, 0.0, 5, 1.0) == pytest.approx(0.0)


class _Descent:
    """R15: theta <- theta - 0.6 (sum of clip(theta - x) over a Poisson batch + N(0, 1)) from theta = 0, densities by
    Gauss-Legendre panels that break where gradients start to be clipped."""

    eta, sigma, q, record = 0.6, 1.0, 0.3, 0.4

    def __init__(self, rows):
        self.rows = rows
        kinks = sorted({x + s for x in (0.5, 0.3, 0.4) for s in (-1.0, 1.0)})
        edges = np.unique(np.concatenate([np.linspace(-7, 7, 57), kinks]))
        nodes, weights = np.polynomial.legendre.leggauss(16)
        half = np.diff(edges) / 2
        self.x = (edges[:-1, None] + half[:, None] * (nodes + 1)).ravel()
        self.w = (half[:, None] * weights).ravel()

    def step(self, theta):
        found = np.zeros((len(self.x), len(theta)))
        for coins in np.ndindex(*[2] * len(self.rows)):
            mass = math.prod(self.q if c else 1 - self.q for c in coins)
            total = sum((c * np.clip(theta - r, -1, 1) for c, r in zip(coins, self.rows, strict=True)), 0.0 * theta)
            z = (self.x[:, None] - (theta - self.eta * total)) / (self.eta * self.sigma)
            found += mass * np.exp(-0.5 * z**2) / (self.eta * self.sigma * math.sqrt(2 * math.pi))
        return found

    def laws(self, steps):
        law = self.step(np.zeros(1))[:, 0] * self.w
        found = [law]
        for _ in range(steps - 2):
            law = (self.step(self.x) @ law) * self.w
            found.append(law)
        return found

    def contributions(self, order, steps, p):
        e, size = exponents(order, steps, p), np.abs(np.clip(self.x - self.record, -1, 1))
        found = [float(step_divergence(e.orders[0], self.q, abs(self.record)))]
        for t, law in enumerate(self.laws(steps), start=2):
            held = law > 1e-30
            d = step_divergence(e.orders[t - 1], self.q, size[held])
            found.append(float(entropic_mean(d, float(e.weights[t - 1]), np.log(law[held]))))
        return found[::-1]


@pytest.mark.family
@pytest.mark.parametrize(
    ("direction", "n", "p", "truth", "bound", "parts"),
    [
        ("add", 2, 2.0, 0.043615337, 0.069698732, (0.045576314, 0.024122419)),
        ("remove", 2, 2.0, 0.036410315, 0.071296835, (0.047174416, 0.024122419)),
        ("add", 3, 2.0, 0.076055671, 0.20491361, (0.052562097, 0.10878612, 0.043565398)),
        ("remove", 3, 2.0, 0.063736008, 0.21260549, (0.056299951, 0.11274014, 0.043565398)),
        ("add", 3, 9.0, 0.076055671, 0.14676794, (0.063981494, 0.065062303, 0.017724138)),
        ("remove", 3, 9.0, 0.063736008, 0.15299214, (0.068113873, 0.067154128, 0.017724138)),
    ],
)
def test_dp_sgd_in_one_dimension(direction, n, p, truth, bound, parts):
    """R15: expectations over training on the first argument's data; the paper's add has the record in it."""
    chain = _Descent((0.5, 0.3, 0.4) if direction == "add" else (0.5, 0.3))
    found = chain.contributions(2, n, p)
    assert found == pytest.approx(parts, rel=NEAR)
    assert sum(found) == pytest.approx(bound, rel=NEAR)
    assert truth <= sum(found)
    assert n * float(step_divergence(2, 0.3, 1.0)) == pytest.approx({2: 0.28758651, 3: 0.43137976}[n], rel=NEAR)
