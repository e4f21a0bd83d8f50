"""Trade-off functions, advantage and reconstruction bounds of composed losses: references, oracles, identities."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.accounting_oracle import holds

from dpspec.accounting import DIRECTIONS, Direction, GaussianTradeOff, Laplace, Mixture, Pair, PrivacyLoss
from dpspec.accounting.profiles import bound_power

PRESENT, ABSENT = "present-first", "absent-first"


def composed(noise: str, effect: float, rate: float, steps: int) -> PrivacyLoss:
    pair = Mixture.poisson(1, rate, 1.0 / effect) if noise == "gaussian" else Laplace(1.0 / effect, rate=rate)
    return PrivacyLoss.of(pair).compose(steps)


def test_steps_of_different_noise() -> None:
    loss = PrivacyLoss.gaussian(2.0) + PrivacyLoss.gaussian(1.0) + PrivacyLoss.gaussian(4.0)
    assert holds(loss.rero(0.001), 0.025912269330270, 1e-13)


@pytest.mark.ci
def test_baselines_down_to_1e_30() -> None:
    loss = composed("gaussian", 1.0, 0.01, 1000)
    kappas = [1e-30, 1e-20, 1e-12, 1e-3]
    found = loss.reros(kappas)
    for kappa, interval in zip(kappas, found, strict=True):
        assert interval.relative_width <= 1e-4
        assert interval.lower >= kappa
    assert holds(found[-1], 0.0040684478811426, 1e-11)
    # one line of the profile bounds each: delta + e^epsilon kappa at any epsilon
    for epsilon in (1.0, 5.0, 20.0):
        delta = loss.delta(epsilon).upper
        for kappa, interval in zip(kappas, found, strict=True):
            assert interval.lower <= delta + math.exp(epsilon) * kappa


steps = st.builds(
    Mixture.poisson,
    st.integers(1, 3),
    st.floats(math.log(1e-4), math.log(0.9)).map(math.exp),
    st.floats(math.log(0.3), math.log(5.0)).map(math.exp),
) | st.builds(Laplace, st.floats(0.2, 5.0), st.just(1.0), st.floats(0.001, 0.9))
levels = st.floats(math.log(1e-9), math.log(0.9999)).map(math.exp)


@given(steps, st.sampled_from(DIRECTIONS), levels)
def test_one_step_by_brute_force(pair: Pair, direction: Direction, level: float) -> None:
    """The minimum of delta + e^epsilon level over a fine grid of epsilons, slightly above the true minimum."""
    found = PrivacyLoss.of(pair, direction).rero(level, direction=direction)
    low, high = 1e300, 1e300
    epsilons = np.linspace(-12.0, 40.0, 521)
    for epsilon, bounds in zip(epsilons, pair.all_log_delta_bounds(epsilons, direction), strict=True):
        low, high = (min(x, math.exp(b) + math.exp(epsilon) * level) for x, b in zip((low, high), bounds, strict=True))
    assert found.lower <= high * (1.0 + 1e-12)
    assert found.upper >= level
    if level > 1e-6:
        assert low <= found.upper * 1.11


@given(
    st.builds(
        Mixture.poisson,
        st.integers(1, 3),
        st.floats(math.log(1e-9), 0.0).map(math.exp),
        st.floats(math.log(1e-3), math.log(1e3)).map(math.exp),
    ),
    st.sampled_from(DIRECTIONS),
    st.lists(st.floats(-3.0, 40.0) | st.floats(0.0, 1e-6), min_size=2, max_size=9, unique=True),
)
def test_profiles_at_several_epsilons_together_agree_with_those_of_each(pair, direction, epsilons):
    edge = -pair.ratio.log_zero  # where the outcomes end, absent-first
    ascending = sorted({*epsilons, *([edge, edge * (1.0 - 1e-9)] if math.isfinite(edge) else [])})
    together = pair.all_log_delta_bounds(ascending, direction)
    for epsilon, (low, high) in zip(ascending, together, strict=True):
        lower, upper = pair.log_delta_bounds(epsilon, direction)
        assert low <= upper
        assert lower <= high
        assert low <= high


@pytest.mark.ci
@given(steps, st.integers(1, 200), st.floats(0.001, 0.9))
def test_the_directions_are_each_others_inverse(pair: Pair, count: int, alpha: float) -> None:
    present, absent = (PrivacyLoss.of(pair, direction).compose(count) for direction in DIRECTIONS)
    beta = present.tradeoff(alpha)
    if not 1e-6 < beta.lower <= beta.upper < 1.0:
        return
    back = [absent.tradeoff(end) for end in (beta.lower, beta.upper)]
    assert back[1].lower <= alpha * (1.0 + 1e-9)
    assert alpha * (1.0 - 1e-9) <= back[0].upper


def test_full_batches_have_closed_forms() -> None:
    errors = {1e-9: 1.0 - math.exp(0.5) * 1e-9, 0.01: 1.0 - math.exp(0.5) * 0.01, 0.5: 0.5 * math.exp(-0.5)}
    for alpha, error in errors.items():
        found = PrivacyLoss.gaussian(2.0).compose(16).tradeoff(alpha)
        assert holds(found, float(GaussianTradeOff(2.0)(alpha)), 1e-11)
        assert found.width < 1e-10
        assert holds(PrivacyLoss.of(Laplace(2.0)).tradeoff(alpha), error, 1e-7)  # Dong, Roth and Su 2022, A.6


@pytest.mark.ci
def test_the_symmetrised_curve_is_the_concave_hull_of_both() -> None:
    loss = composed("gaussian", 1.0, 0.1, 100)
    kappas = np.array([1e-3, 0.05, 0.1, 0.2, 0.24, 0.25, 0.26, 0.3, 0.5, 0.9, 0.99])
    present, absent = (np.array([x.lower for x in loss.reros(kappas, direction=d)]) for d in DIRECTIONS)
    found = loss.reros(kappas, direction="both")
    for i, interval in enumerate(found):
        assert interval.relative_width <= 1e-4
        assert interval.upper >= max(present[i], absent[i])
        # a mixture of two tests of either kind
        for a, b in itertools.combinations(range(len(kappas)), 2):
            if kappas[a] < kappas[i] < kappas[b]:
                share = (kappas[b] - kappas[i]) / (kappas[b] - kappas[a])
                mixed = share * max(present[a], absent[a]) + (1.0 - share) * max(present[b], absent[b])
                assert mixed <= interval.upper * (1.0 + 1e-9)
    step = composed("gaussian", 1.0, 0.1, 1)  # an edge of the hull, which neither curve touches
    assert step.rero(0.4, direction="both").lower > max(step.rero(0.4).upper, step.rero(0.4, direction=ABSENT).upper)
    # and mirrored it is itself
    beta = loss.tradeoff(0.05)
    assert loss.tradeoff(beta.upper).lower <= 0.05 <= loss.tradeoff(beta.lower).upper


def test_reconstruction_does_not_depend_on_the_losses_direction() -> None:
    loss = composed("gaussian", 1.0, 0.1, 10)
    by_direction = [loss.rero(0.1), *(PrivacyLoss(loss.phases, direction).rero(0.1) for direction in DIRECTIONS)]
    assert by_direction[0] == by_direction[1] == by_direction[2]
    assert holds(by_direction[0], 0.19529790173965, 1e-11)
    other = loss.rero(0.1, direction=ABSENT)
    assert other.upper < by_direction[0].lower


@pytest.mark.ci
def test_advantage_is_delta_at_zero_in_either_direction() -> None:
    loss = composed("laplace", 1.0, 0.1, 30)
    both = [PrivacyLoss(loss.phases, direction).advantage() for direction in DIRECTIONS]
    assert max(x.lower for x in both) <= min(x.upper for x in both)
    for alpha in (0.1, 0.3, 0.5):
        assert 1.0 - loss.tradeoff(alpha).upper - alpha <= both[0].upper


def test_small_type_two_errors_keep_their_digits() -> None:
    loss = PrivacyLoss.of(Mixture.poisson(1, 0.1, 1.0), PRESENT).compose(100)
    errors = [loss.tradeoff(alpha) for alpha in (0.9, 0.99, 0.999, 0.99999)]
    for interval in errors:
        assert interval.relative_width <= 1e-4
    assert errors[-1].upper < 1e-5


@pytest.mark.ci
def test_the_level_undoes_the_power() -> None:
    loss = composed("gaussian", 1.0, 0.1, 100)
    for kappa in (1e-12, 1e-4, 0.1):
        gamma = loss.rero(kappa, width=1e-6)
        found = [loss.level(end) for end in (gamma.lower, gamma.upper)]
        assert found[0].lower <= kappa <= found[1].upper
        assert found[1].relative_width <= 1e-4
    assert holds(loss.level(0.0094029307613824), 1e-4, 1e-11)
    assert holds(PrivacyLoss.gaussian(1.0).level(0.38914369164536), 0.1, 1e-11)
    assert holds(PrivacyLoss.of(Laplace(1.0)).level(0.69343379902380), 0.3, 1e-11)


def test_bounds_that_do_not_close_in_say_so() -> None:
    found, _ = bound_power(math.log(0.1), lambda e: -math.inf, lambda e: 0.0, 0.0, 1.0)
    assert found.lower <= 0.1
    assert found.upper == 1.0
