"""The two bounds of the test of layers, its level for all gradients, its power; and Freedman's inequality."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpspec import json_records
from dpspec.stats.conformance import noise_tests
from dpspec.stats.conformance.measurement import LEVEL
from dpspec.stats.conformance.noise_tests import SharedLayers, drift, least_seen


@pytest.mark.parametrize("count", [1, 2, 9, 300])
@pytest.mark.parametrize("ratio", [1e-9, 1e-3, 0.1, 0.7, 1.0, 1.5])
def test_log_tail_agrees_with_forty_digits(count: int, ratio: float) -> None:
    with mpmath.workdps(40):
        exact = mpmath.log(mpmath.gammainc(mpmath.mpf(count) / 2, 0, mpmath.mpf(count * ratio) / 2, regularized=True))
    assert noise_tests.log_lower_tail(count * ratio, count) == pytest.approx(float(exact), rel=1e-10, abs=1e-12)


def test_p_values_are_uniform_under_the_declaration_and_larger_with_anything_added() -> None:
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((2000, 50))
    one = np.array([noise_tests.lower_tail(s, 50).p_value for s in (draws**2).sum(1)])
    two = np.array([noise_tests.two_sided(s, 50).p_value for s in (draws**2).sum(1)])
    added = np.array([noise_tests.lower_tail(s, 50).p_value for s in ((draws + 0.7) ** 2).sum(1)])
    for level in (0.01, 0.1, 0.5):
        assert (one <= level).sum() == pytest.approx(2000 * level, abs=5 * math.sqrt(2000 * level))
        assert (two <= level).sum() == pytest.approx(2000 * level, abs=5 * math.sqrt(2000 * level))
        assert (added <= level).sum() < (one <= level).sum()


@pytest.mark.parametrize("count", [100, 5000])
@pytest.mark.parametrize(
    ("test", "sign"), [(noise_tests.lower_tail, -1), (noise_tests.two_sided, -1), (noise_tests.two_sided, 1)]
)
def test_a_detectable_deviation_is_detected(count: int, test: object, sign: int) -> None:
    assert callable(test)
    detectable = test(float(count), count).detectable
    rng = np.random.default_rng(1)
    sums = (rng.standard_normal((400, count)) ** 2).sum(1) * (1 + sign * detectable) ** 2
    rejected = sum(test(s, count).p_value <= LEVEL for s in sums)
    assert rejected >= stats.binom.ppf(0.001, 400, 0.99)
    # ... and a much smaller one is not, so that the number is not merely large.
    sums = (rng.standard_normal((400, count)) ** 2).sum(1) * (1 + sign * 0.5 * detectable) ** 2
    assert sum(test(s, count).p_value <= LEVEL for s in sums) < 200


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_detectable_scale_of_laplace_noise_is_detected(sign: int) -> None:
    def p_value(values: np.ndarray) -> float:
        return noise_tests.two_sided(2.0 * float(np.abs(values).sum()), 600, absolute=True).p_value

    detectable = noise_tests.two_sided(600.0, 600, absolute=True).detectable
    assert detectable is not None
    draws = np.random.default_rng(4).laplace(size=(400, 300))
    assert sum(p_value(row * (1 + sign * detectable)) <= LEVEL for row in draws) >= stats.binom.ppf(0.001, 400, 0.99)
    assert sum(p_value(row * (1 + sign * 0.5 * detectable)) <= LEVEL for row in draws) < 200


def test_what_else_is_in_the_sum_costs_power_up_to_all_of_it() -> None:
    alone = noise_tests.lower_tail(1000.0, 1000)
    beside = noise_tests.lower_tail(1200.0, 1000)
    swamped = noise_tests.lower_tail(5000.0, 1000)
    assert alone.detectable is not None
    assert beside.detectable is not None
    assert 0 < alone.detectable < beside.detectable < 1
    assert swamped.detectable is None
    assert swamped.p_value == 1.0


@pytest.mark.parametrize("bad", [(-1.0, 3), (math.nan, 3), (1.0, 0)])
def test_impossible_arguments_are_refused(bad: tuple[float, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        noise_tests.lower_tail(*bad)


@pytest.mark.parametrize(("chains", "steps"), [(1, 2), (3, 7), (400, 50)])
def test_chernoff_uses_the_determinant_of_the_chains(chains: int, steps: int) -> None:
    path = np.diag(np.ones(steps - 1), 1) + np.diag(np.ones(steps - 1), -1)
    pairs, count, x = chains * (steps - 1), chains * steps, 0.8 * chains * (steps - 1)
    best = min(
        -0.5 * chains * float(np.linalg.slogdet(np.eye(steps) - s * path)[1]) - s * x
        for s in np.linspace(0.001, 0.499, 300)
    )
    found = noise_tests.correlation(-x, pairs, count)
    assert found.p_value == pytest.approx(min(1.0, 2 * math.exp(best)), rel=0.01)
    assert found.measured == pytest.approx(-0.8)


def test_the_correlation_of_many_pairs_is_normal() -> None:
    found = noise_tests.correlation(5.0 * math.sqrt(200_000), 200_000, 210_000)
    assert found.p_value == pytest.approx(2 * stats.norm.sf(5.0))
    assert found.detectable == pytest.approx((stats.norm.isf(LEVEL / 2) + stats.norm.isf(0.01)) / math.sqrt(200_000))
    many = noise_tests.correlation(5.0 * math.sqrt(200_000), 200_000, 210_000, tried=9)
    assert many.p_value == pytest.approx(9 * found.p_value)
    assert many.detectable > found.detectable
    assert noise_tests.correlation(1.0, 17, 34).detectable is None


def test_the_quietest_coordinate_and_layer() -> None:
    rng = np.random.default_rng(5)
    p_coordinates, p_layers = [], []
    for _ in range(400):
        sums = (rng.standard_normal((30, 20)) ** 2).sum(0)
        p_coordinates.append(noise_tests.least_coordinate(float(sums.min()), 30, 20).p_value)
        parts = {"a": (float(sums[:5].sum()), 150), "b": (float(sums[5:].sum()), 450)}
        p_layers.append(noise_tests.quietest(parts)[1].p_value)
    for level in (0.1, 0.01):
        assert (np.array(p_coordinates) <= level).sum() <= stats.binom.ppf(0.999, 400, level)
        assert (np.array(p_layers) <= level).sum() <= stats.binom.ppf(0.999, 400, level)
    assert noise_tests.least_coordinate(0.0, 30, 20).p_value == 0.0
    assert noise_tests.quietest({"a": (150.0, 150), "b": (450.0 * 0.3, 450)})[0] == "b"


def test_the_lower_tail_of_the_smallest_numbers_is_a_logarithm() -> None:
    assert noise_tests.log_lower_tail(5e-324, 30.0) == -math.inf
    assert math.isfinite(noise_tests.log_lower_tail(1e-320, 30.0))


@pytest.mark.parametrize("steps", [1, 2, 7, 300])
def test_products_agree_with_loops(steps: int) -> None:
    rng = np.random.default_rng(steps)
    rows, earlier = rng.standard_normal((steps, 5)), rng.standard_normal((steps, 5))
    found_lags, found_largest = noise_tests.products(rows, earlier)
    lags, largest = np.zeros(steps), 0.0
    for t in range(steps):
        for s in range(t):
            product = float(rows[t] @ earlier[s])
            lags[t - s] += product
            if abs(product) > abs(largest):
                largest = product
    np.testing.assert_allclose(found_lags, lags, atol=1e-9)
    assert found_largest == pytest.approx(largest)


def test_two_runs() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.standard_normal((9, 4)), rng.standard_normal((7, 4))
    assert abs(noise_tests.largest_across(one, other)) == pytest.approx(np.abs(one @ other.T).max())


def p_values(rows: np.ndarray) -> tuple[float, float]:
    steps, width = rows.shape
    lags, largest = noise_tests.products(rows)
    lag = noise_tests.worst_lag(lags)
    pairs = steps * (steps - 1) // 2
    return (
        noise_tests.correlation(float(lags[lag]), (steps - lag) * width, steps * width, steps // 2, "").p_value,
        noise_tests.correlation(largest, width, 2 * width, pairs, "").p_value,
    )


def test_noise_that_returns_is_seen_at_its_lag_or_in_its_pair() -> None:
    rng = np.random.default_rng(2)
    epoch = np.tile(rng.standard_normal((10, 256)), (4, 1))  # a generator that is reseeded each epoch
    assert noise_tests.worst_lag(noise_tests.products(epoch)[0]) % 10 == 0
    assert p_values(epoch)[0] < LEVEL
    pool = rng.standard_normal((200, 1024))
    drawn = pool[rng.integers(0, 200, 60)]  # a pool that is drawn from
    assert p_values(drawn)[1] < LEVEL


def test_the_worst_lag_of_few_rows() -> None:
    assert noise_tests.worst_lag(np.zeros(1)) == 0
    assert noise_tests.worst_lag(np.array([0.0, -3.0, 1.0])) == 1
    assert noise_tests.worst_lag(np.array([0.0, 1.0, 3.0, 9.0])) == 2  # lags beyond half of the run are not tested


Array = np.ndarray
STEPS, SIZE = 20, 100


def shared(product: float, first: float, second: float, count: int, pairs: int = 1, **more: float) -> SharedLayers:
    squares = {"a": first, "b": second}
    return SharedLayers(
        **{"squares": squares, "product": product, "rounding": 0.0, "count": count, "planned": count, "pairs": pairs}
        | more
    )


def p_value(one: Array, other: Array, pairs: int = 1) -> float:
    """Of the residuals of two layers, (steps, k) each."""
    found = shared(float((one * other).sum()), float((one**2).sum()), float((other**2).sum()), one.size, pairs)
    return found.p_value()


def noise(source: np.random.Generator, steps: int = STEPS, size: int = SIZE) -> tuple[Array, Array]:
    return source.standard_normal((steps, size)), source.standard_normal((steps, size))


def adaptive(source: np.random.Generator, gain: float) -> tuple[Array, Array, Array]:
    """Both layers hold one gradient, which follows the noise of the step before and, in the second, of the first layer;
    with the gradients of the second."""
    one, other = noise(source)
    gradients = np.zeros_like(one)
    for step in range(1, STEPS):
        gradients[step] = gain * (0.5 * other[step - 1] + 0.5 * one[step - 1] + 0.5 * one[step])
    return one + gain * np.roll(other, 1, axis=0), other + gradients, gradients


@pytest.mark.family
@pytest.mark.parametrize("gain", [0.5, 0.0, 2.0])
def test_the_bound_on_all_that_is_no_noise_holds(monkeypatch: pytest.MonkeyPatch, gain: float) -> None:
    """At a = 0.2 it is missed in at most 20% of 400 runs (99.9% quantile), and not by far more than it needs."""
    monkeypatch.setattr(noise_tests, "_MISSED", 0.2)
    missed, ratios = 0, []
    for seed in range(400):
        _, other, gradients = adaptive(np.random.default_rng(seed), gain)
        bound = noise_tests._others(float((other**2).sum()), other.size, other.size)
        missed += float((gradients**2).sum()) > bound
        ratios.append(bound / max(1.0, float((gradients**2).sum())))
    assert missed <= stats.binom.ppf(0.999, 400, 0.2)
    if gain == 2.0:
        assert 1.0 < np.median(ratios) < 1.2


def test_the_bound_on_the_rest_holds_and_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients and an allowance for them, p is Ville's for a normal sum: at most 5% are rejected at 5%."""
    monkeypatch.setattr(noise_tests, "_others", lambda *_: 0.0)
    monkeypatch.setattr(noise_tests, "_AIMED", 0.1)
    shares = [p_value(*noise(np.random.default_rng(seed))) <= 0.2 for seed in range(400)]
    assert 1 <= sum(shares) <= stats.binom.ppf(0.999, 400, 0.2)


@pytest.mark.family
@pytest.mark.parametrize("gain", [0.5, 0.0, 2.0])
def test_layers_with_noise_of_their_own_are_not_rejected(gain: float) -> None:
    """400 seeds, with similar gradients that follow the noise; and noise larger than declared."""
    runs = [adaptive(np.random.default_rng(seed), gain)[:2] for seed in range(400)]
    assert sum(p_value(*run) <= 0.05 for run in runs) <= stats.binom.ppf(0.999, 400, 0.05)
    assert all(p_value(3.0 * one, 5.0 * other) > 0.05 for one, other in runs[:50] if gain == 0.0)


@pytest.mark.parametrize("gain", [0.0, 0.3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_noise_that_two_layers_share_is_rejected(sign: float, gain: float) -> None:
    for seed in range(20):
        one, other = noise(np.random.default_rng(seed))
        assert p_value(one, sign * one + gain * other, 28) < 1e-10


@pytest.mark.parametrize(("steps", "size", "pairs"), [(1, 1200, 1), (30, 100, 28)])
def test_the_least_that_is_seen_is_seen(steps: int, size: int, pairs: int) -> None:
    """Seeds 0 to 199: rejected in at least 99%, up to the 0.1% quantile."""
    least = least_seen(steps * size, pairs)
    assert least is not None
    seen = 0
    for seed in range(200):
        one, own = noise(np.random.default_rng(seed), steps, size)
        seen += p_value(one, least * one + math.sqrt(1.0 - least**2) * own, pairs) <= LEVEL
    assert seen >= stats.binom.ppf(1e-3, 200, 0.99)


def test_of_few_coordinates_or_many_pairs_nothing_is_seen() -> None:
    assert least_seen(300, 1) is least_seen(10**6, 10**9) is None
    one, _ = noise(np.random.default_rng(0), 1, 300)
    assert p_value(one, one) > LEVEL


def test_the_least_seen_correlation_is_beyond_the_limit_by_the_margin_of_its_power() -> None:
    for count, pairs in ((2_000, 1), (100_000, 28)):
        correlation = least_seen(count, pairs)
        assert correlation is not None
        product = correlation * count - 1.5 * float(stats.norm.ppf(0.99)) * math.sqrt(2.0 * count)
        squares = {"a": float(count), "b": float(count)}
        at_limit = SharedLayers(squares=squares, product=product, rounding=0.0, count=count, planned=count, pairs=pairs)
        assert at_limit.p_value() == pytest.approx(LEVEL, rel=1e-6)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("squares", {"a": 1000.0}, "squares must name two layers"),
        ("squares", {"a": 1000.0, "b": 950.0, "c": 1.0}, "squares must name two layers"),
        ("product", 980.0, "product must be at most the product of the norms"),
        ("product", float("nan"), "product must be a number"),
        ("squares", {"a": 1000.0, "b": -1.0}, "squares.b must be a number from 0"),
        ("planned", 999, "planned must be at least count"),
        ("pairs", 0, "pairs must be an integer from 1"),
    ],
)
def test_evidence_of_layers_that_no_run_stores_is_refused(key: str, value: object, rule: str) -> None:
    kept = json_records.write(shared(-900.0, 1000.0, 950.0, 1000, 6, rounding=10.0))
    assert json_records.write(json_records.read(SharedLayers, kept, "kept")) == kept
    with pytest.raises(ValueError, match=rule):
        json_records.read(SharedLayers, {**kept, key: value}, "kept")


def adaptive_runs(runs: int, seed: int, shift: float = 0.0) -> list[tuple[float, float]]:
    """Sums of noise and of centered coins whose weights follow the path, with the conditional variances."""
    rng = np.random.default_rng(seed)
    q, sigma, steps, records = 0.1, 0.5, 40, 30
    found = []
    for _ in range(runs):
        total = variance = 0.0
        for _ in range(steps):
            weights = rng.uniform(-1, 1, records) * (1.0 if total > 0 else 0.2)
            coins = rng.random(records) < q
            total += sigma * rng.standard_normal() + float(((coins - q) * weights).sum()) + shift
            variance += sigma**2 + q * (1 - q) * float((weights**2).sum())
        found.append((total, variance))
    return found


@pytest.mark.ci
def test_p_values_of_drift_hold_for_adaptive_runs() -> None:
    p = np.array([drift(t, v, 10.0, 1.0, test="").p_value for t, v in adaptive_runs(800, 0)])
    for level in (0.3, 0.1, 0.01):
        assert (p <= level).mean() <= level
    assert p.min() < 0.5


def test_a_detectable_drift_is_detected() -> None:
    variances = [v for _, v in adaptive_runs(50, 1, shift=1.0)]
    detectable = drift(0.0, float(np.mean(variances)), 10.0, 1.0, test="").detectable
    assert detectable is not None
    found = [drift(t, v, 10.0, 1.0, test="") for t, v in adaptive_runs(300, 2, shift=detectable / 40)]
    assert sum(f.p_value <= LEVEL for f in found) >= stats.binom.ppf(0.001, 300, 0.99)
    half = [drift(t, v, 10.0, 1.0, test="") for t, v in adaptive_runs(300, 3, shift=0.4 * detectable / 40)]
    assert sum(f.p_value <= LEVEL for f in half) < 30


@pytest.mark.parametrize(("total", "variance"), [(30.0, 10.0), (80.0, 17.0), (-200.0, 400.0)])
def test_the_bound_is_freedmans_on_the_grid(total: float, variance: float) -> None:
    k = next(k for k in range(1000) if 10.0 * 1.25**k >= variance * (1 - 1e-9))
    v, x = 10.0 * 1.25**k, abs(total)
    expected = 2 * (k + 1) * (k + 2) * math.exp(-x * x / (2 * (v + x / 3)))
    assert drift(total, variance, 10.0, 1.0, test="").p_value == pytest.approx(min(1.0, expected))


def test_units_and_many_sums() -> None:
    found = drift(30.0, 10.0, 10.0, 60.0, test="t", declared=1.0)
    assert found.measured == 1.5
    tried = drift(30.0, 10.0, 10.0, 60.0, test="t", declared=1.0, tried=10)
    assert tried.p_value == pytest.approx(10 * found.p_value)
    assert tried.detectable > found.detectable
    assert drift(0.0, 1.0, 1.0, 0.0, test="t").detectable is None
    assert drift(math.inf, 1.0, 1.0, 1.0, test="t").p_value == 0.0


def test_fresh_noise_passes() -> None:
    rng = np.random.default_rng(1)
    found = np.array([p_values(rng.standard_normal((30, 64))) for _ in range(300)])
    for level in (0.1, 0.01):
        assert (found <= level).mean() <= level
