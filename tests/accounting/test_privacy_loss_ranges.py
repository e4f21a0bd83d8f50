"""From one step to 10^7, rates from 1e-8, groups to 10^4, deltas to 1e-30: valid everywhere, and narrow where asked."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
from support.accounting_oracle import gaussian_epsilon

from dpspec.accounting import DIRECTIONS, Direction, Mixture, PrivacyLoss
from dpspec_group.black_box import log_delta

PRESENT, ABSENT = "present-first", "absent-first"


@pytest.mark.parametrize("delta", [1e-20, 1e-30])
@pytest.mark.parametrize("way", ["sampled", "closed form"])
def test_the_gaussian_a_thousand_times_through_the_grid(way: str, delta: float) -> None:
    effect = 1.0 / 32.0
    pair = {
        "sampled": Mixture([0.0, effect], [1e-18, 1.0], 1.0),
        "closed form": Mixture.full(1, 32.0),
    }[way]
    for direction in DIRECTIONS:
        interval = PrivacyLoss.of(pair, direction).compose(1000).epsilon(delta)
        with mpmath.workdps(50):
            truth = gaussian_epsilon(effect * math.sqrt(1000.0), delta, float(interval.upper))
            assert interval.lower <= truth * (1 + mpmath.mpf(1e-12))
            assert truth * (1 - mpmath.mpf(1e-12)) <= interval.upper
        assert interval.relative_width < 1e-4


#: rate, steps, group, sigma, delta.
Setting = tuple[float, int, int, float, float]

RATES, STEPS = (1e-8, 1e-6, 1e-4, 0.01, 0.3, 1.0 - 1e-9), (1, 100, 10**4, 10**7)
GROUPS, SIGMAS, DELTAS = (1, 30, 10**4), (0.3, 1.0, 20.0), (1e-5, 1e-12, 1e-20, 1e-30)

#: A few of them for every day.
SAMPLE: list[Setting] = [
    (1e-8, 100, 1, 0.3, 1e-20),
    (1e-8, 10**4, 30, 1.0, 1e-5),
    (1e-8, 10**4, 10**4, 20.0, 1e-30),
    (1e-6, 1, 30, 1.0, 1e-12),
    (1e-6, 10**4, 1, 20.0, 1e-30),
    (1e-4, 10**4, 1, 1.0, 1e-20),
    (1e-4, 100, 10**4, 20.0, 1e-12),
    (0.01, 100, 30, 1.0, 1e-12),
    (0.01, 10**4, 1, 20.0, 1e-5),
    (0.3, 10**4, 1, 0.3, 1e-30),
    (0.3, 100, 10**4, 1.0, 1e-5),
    (1.0 - 1e-9, 10**4, 1, 20.0, 1e-20),
    (1.0 - 1e-9, 10**4, 10**4, 0.3, 1e-12),
]


def check(setting: Setting, direction: Direction) -> None:
    rate, steps, group, sigma, delta = setting
    pair = Mixture.poisson(group, rate, sigma)
    loss = PrivacyLoss.of(pair, direction).compose(steps)
    interval = loss.epsilon(delta, width=1e-3)
    assert 0.0 <= interval.lower <= interval.upper
    if not interval.upper < 1e4:
        return
    # never above what no sampling would cost, and an independent value where there is one
    mu = math.sqrt(steps) * group / sigma
    assert interval.lower <= PrivacyLoss.gaussian(1.0 / mu).epsilon(delta).upper
    back = loss.delta(interval.upper, width=1e-2)
    assert back.lower <= delta * (1.0 + 1e-9)
    if interval.lower > 0.0 and group == 1:
        try:
            found = log_delta(loss.phases, direction, interval.upper)
            below = log_delta(loss.phases, direction, interval.lower)
        except ArithmeticError:
            return
        assert found <= math.log(delta) + 1e-8 * abs(math.log(delta))
        assert below >= math.log(delta) - 1e-8 * abs(math.log(delta))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("setting", SAMPLE, ids=str)
def test_some_extremes(setting: Setting, direction: Direction) -> None:
    check(setting, direction)


@pytest.mark.slow
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("rate", RATES)
def test_all_extremes(rate: float, steps: int, direction: Direction) -> None:
    for group, sigma, delta in itertools.product(GROUPS, SIGMAS, DELTAS):
        check((rate, steps, group, sigma, delta), direction)
