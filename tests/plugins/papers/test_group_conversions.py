import csv
import functools
import math
from pathlib import Path

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.accounting import Mixture, PrivacyLoss, gaussian
from dpspec_papers.group_conversions import (
    Profile,
    converted_epsilons,
    group_epsilon,
    log_delta,
    log_factor,
    one_record_profile,
)

# The settings of Ganesh 2024, figures 1 and 2: 2000 steps, delta 1e-6; Poisson rate 0.01, or batches of 500 of 50,000.
# Epsilon and log10 of its delta for either factor; empty if every single-record epsilon up to 400 is too small.
with (Path(__file__).parent / "vadhan_figures.csv").open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))

#: The rows of more noise that are for every day.
SAMPLE = {("2.0", "2"), ("2.0", "12"), ("4.0", "7")}


@functools.cache
def profile_of(scheme: str, sigma: float) -> Profile:
    pair = Mixture.poisson(1, 0.01, sigma) if scheme == "poisson" else Mixture.fixed(1, 50_000, 500, sigma)
    return one_record_profile([(pair, 2000)])


def is_slow(row: dict[str, str]) -> bool:
    return row["scheme"] == "fixed" or (row["sigma"] != "1.0" and (row["sigma"], row["k"]) not in SAMPLE)


@pytest.mark.family
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[pytest.mark.slow] * is_slow(row)) for row in ROWS],
    ids=lambda row: f"{row['scheme']}-{row['sigma']}-{row['k']}",
)
def test_published_tables(row: dict[str, str]) -> None:
    k, profile = int(row["k"]), profile_of(row["scheme"], float(row["sigma"]))
    for factor in ("literal", "sharp"):
        found = group_epsilon(profile, k, 1e-6, factor, cap=400.0)
        if not row[factor]:  # above 400 per record
            assert found == math.inf
            continue
        assert found == pytest.approx(float(row[factor]), abs=6e-6)
        if log10_delta := row[f"{factor}_log10"]:
            assert profile(found / k) / math.log(10.0) == pytest.approx(float(log10_delta), abs=6e-3)


def test_a_group_of_one_gets_its_own_epsilon_back() -> None:
    profile = profile_of("poisson", 1.0)
    pairs = [(Mixture.poisson(1, 0.01, 1.0), 2000)]
    for baseline in ("vadhan-literal", "vadhan-sharp"):
        assert converted_epsilons(pairs, [1], 1e-6, baseline) == [pytest.approx(2.9552459109, abs=1e-9)]
    assert group_epsilon(profile, 1, 1e-6, "literal") > 3.47


@given(k=st.integers(1, 30), epsilon=st.floats(1e-12, 20.0))
def test_factors_by_summing(k: int, epsilon: float) -> None:
    brute = math.log(math.fsum(math.exp(i * epsilon) for i in range(k)))
    assert log_factor(k, epsilon, "sharp") == pytest.approx(brute, rel=1e-12, abs=1e-14)
    assert log_factor(k, epsilon, "literal") == pytest.approx(math.log(k) + k * epsilon, rel=1e-14)
    assert log_factor(k, epsilon, "sharp") <= log_factor(k, epsilon, "literal")
    assert log_factor(k, 0.0, "sharp") == pytest.approx(math.log(k))


@given(mu=st.floats(0.05, 3.0), k=st.integers(1, 6), log10_delta=st.floats(-30.0, -1.0))
def test_the_answer_is_the_least_epsilon(mu: float, k: int, log10_delta: float) -> None:
    """With the Gaussian closed form as profile: valid at the result, invalid slightly below, and never too small."""

    def profile(epsilon: float) -> float:
        return float(gaussian.log_delta(epsilon, mu))

    delta = 10.0**log10_delta
    for factor in ("literal", "sharp"):
        found = group_epsilon(profile, k, delta, factor, cap=1e6)
        assert found >= float(gaussian.epsilon(delta, k * mu)) * (1.0 - 1e-9)
        one = found / k
        assert profile(one) + log_factor(k, one, factor) <= math.log(delta) + 1e-9
        if one > 0.0:
            below = one * (1.0 - 1e-6)
            assert profile(below) + log_factor(k, below, factor) > math.log(delta)


def test_delta_so_large_that_nothing_is_left() -> None:
    assert group_epsilon(lambda e: float(gaussian.log_delta(e, 0.01)), 3, 0.5) == 0.0


def test_a_profile_that_ends() -> None:
    """Pure DP: delta is 0 from the pure epsilon on, and no delta is needed beyond it."""
    pure = group_epsilon(lambda e: math.log(0.5) if e < 2.0 else -math.inf, 4, 1e-6)
    assert pure == pytest.approx(8.0, rel=1e-11)
    assert pure >= 8.0


def test_linear_is_no_lower_bound() -> None:
    """One step, exact: epsilon of a group of two is far below twice that of one record."""
    one, group = 11.1165653513, 13.6722005931
    assert group < 2 * one - 4.0
    for size, epsilon in ((1, one), (2, group)):
        interval = PrivacyLoss.of(Mixture.poisson(size, 0.001, 0.2)).epsilon(1e-4)
        assert interval.lower - 1e-9 <= epsilon <= interval.upper + 1e-9
        assert interval.relative_width < 1e-6


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 20.0, 300.0, 3000.0])
def test_contour_of_gaussian_steps_is_the_closed_form(epsilon: float) -> None:
    for direction in ("present-first", "absent-first"):
        found = log_delta([(Mixture.full(1, 40.0), 100)], direction, epsilon)
        truth = float(gaussian.log_delta(epsilon, 0.25))
        assert found == pytest.approx(truth, abs=1e-10 * (1.0 + abs(truth)))


@pytest.mark.slow
def test_contour_against_mpmath_far_below_float64() -> None:
    """1e-165: the same integral at 30 digits, with its own nodes, somewhat off the saddle."""
    rate, steps, epsilon, tilt = 0.01, 2000, 50.0, 8.0
    with mpmath.workdps(30):
        q = mpmath.mpf(rate)
        # E_Q[(1 - q + q e^(z - 1/2))^(1 + s)] by the trapezoid rule
        outputs = [mpmath.mpf(i) / 8 for i in range(-13 * 8, 22 * 8)]
        losses = [mpmath.log(1 - q + q * mpmath.exp(z - mpmath.mpf(1) / 2)) for z in outputs]
        weights = [mpmath.npdf(z) / 8 * mpmath.exp((1 + tilt) * loss) for z, loss in zip(outputs, losses, strict=True)]
        scale = mpmath.fsum(weights)
        total, step = mpmath.mpf(0), mpmath.mpf(1) / 40
        for i in range(4000):
            u = i * step
            moment = mpmath.fsum(w * mpmath.expj(u * loss) for w, loss in zip(weights, losses, strict=True)) / scale
            s = mpmath.mpc(tilt, u)
            value = (moment**steps * mpmath.expj(-u * epsilon) / (s * (s + 1))).real
            total += value / 2 if i == 0 else value
            if i > 40 and abs(moment**steps) < mpmath.mpf(10) ** -28:
                break
        truth = steps * mpmath.log(scale) - tilt * epsilon + mpmath.log(total * step / mpmath.pi)
        ours = log_delta([(Mixture.poisson(1, rate, 1.0), steps)], "present-first", epsilon)
        assert abs(ours - truth) < 1e-9


def test_contour_of_one_step_and_of_nothing() -> None:
    step = Mixture.poisson(2, 0.1, 1.0)
    assert log_delta([(step, 1)], "absent-first", 0.1) == pytest.approx(float(step.log_delta(0.1, "absent-first")))
    assert log_delta([(step, 1)], "absent-first", 5.0) == -math.inf  # beyond the largest loss
    assert log_delta([(step, 20)], "absent-first", -40.0001 * math.log(0.9)) == -math.inf
    assert log_delta([(Mixture([0.0], [1.0], 1.0), 5)], "present-first", 0.0) == -math.inf


def test_what_the_contour_refuses_the_certified_engine_answers() -> None:
    phases = [(Mixture.poisson(1, 0.1, 1.0), 3)]
    with pytest.raises(ArithmeticError):
        log_delta(phases, "present-first", 0.5)
    bound = PrivacyLoss(tuple(phases)).delta(0.5)
    assert one_record_profile(phases)(0.5) == pytest.approx(math.log(bound.upper), abs=1e-3)
