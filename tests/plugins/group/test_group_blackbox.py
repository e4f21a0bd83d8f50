from __future__ import annotations

import functools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpspec.accounting import (
    Mixture,
    PrivacyLoss,
    best_log_delta,
    composed_rdp,
    gaussian,
    group_curve,
)
from dpspec_group.printed.blackbox import (
    Profile,
    example_profile,
    group_epsilon_from_profile,
    linear_reference,
    log_factor,
)
from dpspec_group.printed.contour import Contour

# The settings of Ganesh 2024, figures 1 and 2: 2000 steps, delta 1e-6; Poisson rate 0.01, or batches of 500 of 50,000.
# k, literal, log10 of the delta it needs, sharp, log10; None where no single-record epsilon up to 400 will do.
Row = tuple[int, float | None, float | None, float | None, float | None]
POISSON: dict[float, list[Row]] = {
    1.0: [
        (1, 3.47406, -7.51, 2.95525, -6.00),
        (2, 8.55565, -10.02, 6.95835, -7.52),
        (3, 16.07178, -13.46, 12.45235, -9.61),
        (4, 28.32476, -18.90, 20.41105, -12.65),
        (5, 50.19425, -28.50, 33.32644, -17.58),
        (6, 98.14495, -49.40, 56.38012, -26.40),
        (7, 253.35788, -116.88, 107.05577, -45.85),
        (8, 1614.62734, -708.13, 272.71978, -109.64),
        (9, None, None, 1766.00878, -687.75),
        (10, None, None, None, None),
        (11, None, None, None, None),
        (12, None, None, None, None),
    ],
    2.0: [
        (1, 1.09446, -6.48, 1.03496, -6.00),
        (2, 2.39326, -7.34, 2.22072, -6.61),
        (3, 3.85992, -8.15, 3.53101, -7.17),
        (4, 5.49653, -8.99, 4.97755, -7.77),
        (5, 7.31033, -9.87, 6.57505, -8.42),
        (6, 9.31036, -10.82, 8.33783, -9.14),
        (7, 11.50647, -11.84, 10.27944, -9.94),
        (8, 13.90884, -12.94, 12.41296, -10.82),
        (9, 16.52778, -14.13, 14.75115, -11.79),
        (10, 19.37356, -15.41, 17.30638, -12.85),
        (11, 22.45638, -16.79, 20.09068, -14.01),
        (12, 25.78629, -18.28, 23.11567, -15.27),
    ],
    4.0: [
        (1, 0.47252, -6.21, 0.46012, -6.00),
        (2, 1.00714, -6.74, 0.97033, -6.42),
        (3, 1.58182, -7.16, 1.50955, -6.73),
        (4, 2.19301, -7.55, 2.07529, -7.01),
        (5, 2.83967, -7.93, 2.66763, -7.28),
        (6, 3.52162, -8.31, 3.28750, -7.55),
        (7, 4.23910, -8.69, 3.93616, -7.82),
        (8, 4.99260, -9.07, 4.61503, -8.11),
        (9, 5.78274, -9.47, 5.32552, -8.40),
        (10, 6.61022, -9.87, 6.06901, -8.71),
        (11, 7.47579, -10.29, 6.84682, -9.04),
        (12, 8.38025, -10.72, 7.66022, -9.38),
    ],
}
FIXED: dict[float, list[tuple[int, float | None, float | None]]] = {
    2.0: [(1, 3.47398, 2.95518), (4, 28.32382, 20.41041), (8, 1614.41883, 272.70054), (9, None, 1765.77588)],
    4.0: [(1, 1.09443, 1.03494), (6, 9.31010, 8.33761), (12, 25.78545, 23.11493)],
    8.0: [(2, 1.00712, 0.97031), (7, 4.23900, 3.93607), (12, 8.38003, 7.66002)],
}


@functools.cache
def poisson(sigma: float) -> Profile:
    return functools.cache(example_profile([(Mixture.poisson(1, 0.01, sigma), 2000)]))


def check(profile: Profile, row: Row) -> None:
    k, *expected = row
    for factor, epsilon, log10_delta in (("literal", *expected[:2]), ("sharp", *expected[2:])):
        found = group_epsilon_from_profile(profile, k, 1e-6, factor, as_printed=True)
        if epsilon is None:
            assert found.epsilon == math.inf
            assert found.above == k * 400.0
            assert str(found) == f"> {k * 400}"
            continue
        assert found.above is None
        assert found.epsilon == pytest.approx(epsilon, abs=6e-6)
        if log10_delta is not None:
            assert found.log10_delta == pytest.approx(log10_delta, abs=6e-3)


@pytest.mark.parametrize("row", POISSON[1.0], ids=lambda row: f"k={row[0]}")
def test_table_of_sigma_one(row: Row) -> None:
    check(poisson(1.0), row)


@pytest.mark.parametrize(("sigma", "k"), [(2.0, 2), (2.0, 12), (4.0, 7)])
def test_table_of_more_noise(sigma: float, k: int) -> None:
    check(poisson(sigma), POISSON[sigma][k - 1])


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [2.0, 4.0])
def test_table_whole(sigma: float) -> None:
    for row in POISSON[sigma]:
        check(poisson(sigma), row)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", FIXED)
def test_table_of_fixed_batches(sigma: float) -> None:
    profile = example_profile([(Mixture.fixed(1, 50_000, 500, sigma), 2000)])
    for k, literal, sharp in FIXED[sigma]:
        check(profile, (k, literal, None, sharp, None))


def test_a_group_of_one_gets_its_own_epsilon_back() -> None:
    profile = poisson(1.0)
    plain = group_epsilon_from_profile(profile, 1, 1e-6, "literal")
    assert plain.epsilon == pytest.approx(2.9552459109, abs=1e-9)
    assert plain == group_epsilon_from_profile(profile, 1, 1e-6, "sharp")
    assert group_epsilon_from_profile(profile, 1, 1e-6, "literal", as_printed=True).epsilon > 3.47


@settings(max_examples=60, deadline=None)
@given(k=st.integers(1, 30), epsilon=st.floats(1e-12, 20.0))
def test_factors_by_summing(k: int, epsilon: float) -> None:
    brute = math.log(math.fsum(math.exp(i * epsilon) for i in range(k)))
    assert log_factor(k, epsilon, "sharp") == pytest.approx(brute, rel=1e-12, abs=1e-14)
    assert log_factor(k, epsilon, "literal") == pytest.approx(math.log(k) + k * epsilon, rel=1e-14)
    assert log_factor(k, epsilon, "sharp") <= log_factor(k, epsilon, "literal")
    assert log_factor(k, 0.0, "sharp") == pytest.approx(math.log(k))


@settings(max_examples=40, deadline=None)
@given(mu=st.floats(0.05, 3.0), k=st.integers(1, 6), log10_delta=st.floats(-30.0, -1.0))
def test_the_answer_is_the_least_epsilon(mu: float, k: int, log10_delta: float) -> None:
    """With the Gaussian closed form as profile: valid where it says, not valid a little below, and never too small."""

    def profile(epsilon: float) -> float:
        return float(gaussian.log_delta(epsilon, mu))

    delta = 10.0**log10_delta
    for factor in ("literal", "sharp"):
        found = group_epsilon_from_profile(profile, k, delta, factor, cap=1e6)
        used = "sharp" if k == 1 else factor
        assert found.epsilon >= float(gaussian.epsilon(delta, k * mu)) * (1.0 - 1e-9)
        one = found.epsilon / k
        assert profile(one) + log_factor(k, one, used) <= math.log(delta) + 1e-9
        if one > 0.0:
            below = one * (1.0 - 1e-6)
            assert profile(below) + log_factor(k, below, used) > math.log(delta)


def test_delta_so_large_that_nothing_is_left() -> None:
    assert group_epsilon_from_profile(lambda e: float(gaussian.log_delta(e, 0.01)), 3, 0.5).epsilon == 0.0


def test_a_profile_that_ends() -> None:
    """Pure DP: delta is 0 from the pure epsilon on, and no delta is needed beyond it."""
    pure = group_epsilon_from_profile(lambda e: math.log(0.5) if e < 2.0 else -math.inf, 4, 1e-6)
    assert pure.epsilon == pytest.approx(8.0, rel=1e-11)
    assert pure.epsilon >= 8.0


# the lemma on Renyi divergences: what was used when the paper was written


@functools.cache
def renyi() -> Profile:
    rdp = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    orders = np.array(rdp.DEFAULT_RDP_ORDERS, dtype=float)
    divergences = composed_rdp([(Mixture.poisson(1, 0.01, 1.0), 2000)], orders)
    return lambda epsilon: best_log_delta(orders, divergences, epsilon).value


@pytest.mark.parametrize(
    ("k", "epsilon"),
    [(1, 3.2465), (2, 7.6975), (3, 13.9731), (4, 23.2859), (5, 38.1911), (6, 64.9862), (7, 123.5122), (8, 311.9823)],
)
def test_the_librarys_column(k: int, epsilon: float) -> None:
    assert group_epsilon_from_profile(renyi(), k, 1e-6).epsilon == pytest.approx(epsilon, abs=1.1e-4)


@pytest.mark.parametrize(("k", "epsilon"), [(9, 1900.4359), (10, 68215.3), (12, 277043.0)])
def test_its_infinities_are_underflow(k: int, epsilon: float) -> None:
    """In logarithms the same routine gives a number, for a delta that float64 cannot hold."""
    found = group_epsilon_from_profile(renyi(), k, 1e-6, cap=1e5)
    assert found.epsilon == pytest.approx(epsilon, rel=1e-5)
    assert math.exp(found.log_delta) == 0.0


def test_real_orders_do_better_and_stay_above_the_exact_profile() -> None:
    rdp = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    orders = np.union1d(rdp.DEFAULT_RDP_ORDERS, 1.0 + np.geomspace(1e-2, 1e3, 400))
    divergences = composed_rdp([(Mixture.poisson(1, 0.01, 1.0), 2000)], orders)

    def best(epsilon: float) -> float:
        return best_log_delta(orders, divergences, epsilon).value

    for k in (2, 8):
        found = group_epsilon_from_profile(best, k, 1e-6).epsilon
        assert found <= group_epsilon_from_profile(renyi(), k, 1e-6).epsilon
        assert found >= group_epsilon_from_profile(poisson(1.0), k, 1e-6).epsilon


# the line that is no bound


@pytest.mark.parametrize("k", [2, 5, 12])
def test_black_box_answers_are_above_the_groups_own(k: int) -> None:
    (own,) = group_curve([(Mixture.poisson(k, 0.01, 2.0), 2000)], [1e-6])
    sharp = group_epsilon_from_profile(poisson(2.0), k, 1e-6).epsilon
    literal = group_epsilon_from_profile(poisson(2.0), k, 1e-6, "literal").epsilon
    assert own.upper < sharp < literal


@pytest.mark.parametrize(
    ("rate", "sigma", "delta", "k", "one", "group"),
    [
        (0.001, 0.2, 1e-4, 2, 11.1165653513, 13.6722005931),
        (0.01, 0.25, 1e-3, 2, 7.6630782185, 10.0125643550),
        (0.01, 0.25, 1e-3, 3, 7.6630782185, 11.5763118006),
    ],
)
def test_k_times_epsilon_is_no_lower_bound(
    rate: float, sigma: float, delta: float, k: int, one: float, group: float
) -> None:
    """One step, exact: the group's epsilon is far below k times that of one record."""
    assert group < linear_reference(one, k) - 4.0
    for size, epsilon in ((1, one), (k, group)):
        step = Mixture.poisson(size, rate, sigma)
        assert step.delta(epsilon, "present-first") == pytest.approx(delta, rel=1e-8)
        interval = PrivacyLoss.of(step).epsilon(delta)
        assert interval.lower <= epsilon + 1e-9
        assert epsilon - 1e-9 <= interval.upper
        assert interval.upper < linear_reference(one, k) or size == 1


def test_k_times_epsilon_is_no_upper_bound_either() -> None:
    """Over 2000 steps the group's epsilon lies above it."""
    (one,) = group_curve([(Mixture.poisson(1, 0.01, 1.0), 2000)], [1e-6])
    (four,) = group_curve([(Mixture.poisson(4, 0.01, 1.0), 2000)], [1e-6])
    assert four.lower > linear_reference(one.upper, 4)


# the contour


@pytest.mark.parametrize(
    ("epsilon", "present", "absent"),
    [
        (1.0, 0.111356092307, 0.107079259770),
        (4.0, 2.85252415832e-5, 9.59166719699e-6),
        (8.0, 3.40985404648e-15, 1.18726593e-18),
    ],
)
def test_contour_reference_values(epsilon: float, present: float, absent: float) -> None:
    phases = [(Mixture.poisson(4, 0.01, 2.0), 2000)]
    assert math.exp(Contour.of(phases, "present-first").log_delta(epsilon)) == pytest.approx(present, rel=2e-11)
    assert math.exp(Contour.of(phases, "absent-first").log_delta(epsilon)) == pytest.approx(absent, rel=5e-9)


@pytest.mark.parametrize(
    ("k", "delta", "present", "absent"),
    [
        (1, 1e-12, 4.8982216034, 3.5044122904),
        (1, 1e-20, 7.4232239888, 4.4911652791),
        (1, 1e-30, 10.4986226448, 5.3915921580),
        (8, 1e-12, 49.0574843120, 33.570716725),
        (8, 1e-20, 64.9918515310, 40.612356432),
        (8, 1e-30, 88.5746570214, 47.147363045),
    ],
)
def test_contour_at_tiny_deltas(k: int, delta: float, present: float, absent: float) -> None:
    phases = [(Mixture.poisson(k, 0.01, 1.0), 2000)]
    for direction, epsilon in (("present-first", present), ("absent-first", absent)):
        found = Contour.of(phases, direction).log_delta(epsilon)
        assert found == pytest.approx(math.log(delta), abs=2e-7)


def test_contour_of_a_schedule() -> None:
    phases = [(Mixture.poisson(3, 0.01, 1.0), 1000), (Mixture.poisson(3, 0.01, 2.0), 1000)]
    for direction, epsilon in (("present-first", 7.6726601398), ("absent-first", 5.9190418734)):
        assert Contour.of(phases, direction).log_delta(epsilon) == pytest.approx(math.log(1e-6), abs=1e-8)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 20.0, 300.0, 3000.0])
def test_contour_of_gaussian_steps_is_the_closed_form(epsilon: float) -> None:
    """Down to delta = e^-70,000,000 and beyond."""
    for direction in ("present-first", "absent-first"):
        found = Contour.of([(Mixture.full(1, 40.0), 100)], direction).log_delta(epsilon)
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
        ours = Contour.of([(Mixture.poisson(1, rate, 1.0), steps)], "present-first").log_delta(epsilon)
        assert abs(ours - truth) < 1e-9


def test_contour_of_one_step_and_of_nothing() -> None:
    step = Mixture.poisson(2, 0.1, 1.0)
    one = Contour.of([(step, 1)], "absent-first")
    assert one.log_delta(0.1) == pytest.approx(float(step.log_delta(0.1, "absent-first")))
    assert one.log_delta(5.0) == -math.inf  # beyond the largest loss
    assert Contour.of([(step, 20)], "absent-first").log_delta(-40.0001 * math.log(0.9)) == -math.inf
    assert Contour.of([(Mixture([0.0], [1.0], 1.0), 5)], "present-first").log_delta(0.0) == -math.inf


def test_what_the_contour_refuses_the_certified_engine_answers() -> None:
    phases = [(Mixture.poisson(1, 0.1, 1.0), 3)]
    with pytest.raises(ArithmeticError):
        Contour.of(phases, "present-first").log_delta(0.5)
    bound = PrivacyLoss(tuple(phases)).delta(0.5)
    assert example_profile(phases)(0.5) == pytest.approx(math.log(bound.upper), abs=1e-3)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: group_epsilon_from_profile(lambda e: -e, 0, 0.1), "k"),
        (lambda: group_epsilon_from_profile(lambda e: -e, 2, 0.0), "delta"),
        (lambda: group_epsilon_from_profile(lambda e: -e, 2, 0.1, cap=0.0), "cap"),
        (lambda: group_epsilon_from_profile(lambda e: -e, 2, 0.1, "blunt"), "factor"),
        (lambda: linear_reference(1.0, 0), "k"),
        (lambda: Contour.of([(Mixture.full(1, 1.0), 0)], "present-first"), "steps"),
        (lambda: Contour.of([(Mixture.full(1, 1.0), 1)], "both"), "direction"),
        (lambda: Contour.of([(Mixture.full(1, 1.0), 2)], "present-first").log_delta(-1.0), "epsilon"),
    ],
)
def test_senseless_arguments_are_named(call: object, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()
