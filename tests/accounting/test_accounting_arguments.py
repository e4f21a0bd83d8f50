"""Arguments without a meaning are refused, and the message names them."""

import math
from collections.abc import Callable

import pytest

from dpspec.accounting import (
    Discrete,
    DoubleMixture,
    GaussianTradeOff,
    Laplace,
    Mixture,
    PrivacyLoss,
    RandomAllocation,
    Revealed,
    SymmetricMixture,
    TruncatedPoisson,
    best_epsilon,
    composed_rdp,
    discrete_gaussian,
    epsilon_at_orders,
    gaussian,
    gaussian_rdp,
    gradient_noise_multiplier,
    joint_noise_multiplier,
    largest_sum_pair,
    log_delta_at_orders,
    real_divisor_pair,
    sampled_gaussian_integer_rdp,
    sampled_gaussian_rdp,
)
from dpspec.accounting.rdp import Tries

LOSS, RARE = PrivacyLoss.gaussian(1.0), Mixture.poisson(1, 0.1, 1.0)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: LOSS.rero(0.0), "kappa"),
        (lambda: LOSS.tradeoff(-0.1), "alpha"),
        (lambda: LOSS.level(1.0), "power"),
        (lambda: epsilon_at_orders(2.0, 1.0, 0.1, "newest"), "conversion"),
        (lambda: log_delta_at_orders(2.0, 1.0, math.inf), "epsilon"),
        (lambda: best_epsilon([2.0, 3.0], [1.0], 0.1), "orders and rdp"),
        (lambda: sampled_gaussian_rdp(2.0, 1.1, 1.0), "rate"),
        (lambda: sampled_gaussian_integer_rdp(2.5, 0.1, 1.0), "orders"),
        (lambda: gaussian_rdp(2.0, -1.0), "effect"),
        (lambda: composed_rdp([(Mixture.full(1, 1.0), 0)], 2.0), "steps"),
        (lambda: Tries("poisson", 0.0), "mean"),
        (lambda: Tries("truncated-negative-binomial", 2.0), "eta"),
        (lambda: Tries("binomial", 2.0), "law"),
        *((lambda pair=pair: RandomAllocation(*pair), "steps|sigma") for pair in ((0, 1.0), (5, 0.0), (10**8, 1.0))),
        *((lambda pair=pair: RandomAllocation(5, *pair), "sigma|members") for pair in ((0.3, 4), (1.0, 0), (2.0, 17))),
        *(
            (
                lambda at=at: TruncatedPoisson(**{"k": 1, "rate": 0.1, "cap": 5, "n": 10, "sigma": 1.0, **at}),
                next(iter(at)),
            )
            for at in ({"rate": 0.0}, {"rate": 1.1}, {"cap": 0}, {"k": 0}, {"n": -1}, {"sigma": 0.0})
        ),
        (lambda: Revealed([(0.5, Mixture.full(1, 1.0)), (0.4, Mixture.full(1, 1.0))]), "sum to 1"),
        (lambda: Revealed([(0.5, Mixture.full(1, 1.0)), (0.5, Mixture.full(1, 2.0))]), "same sigma"),
        (lambda: largest_sum_pair(0, 1.0, 2.0, 1.0), "batches must be at least 1"),
        (lambda: largest_sum_pair(2, 1.0, -1.0, 1.0), "present and absent must be different"),
        (lambda: largest_sum_pair(2, 1.0, 2.0, 1.0, 0.0), "share must be above 0"),
        (lambda: gradient_noise_multiplier(2.0, 1.0), "count_std must be above joint / 2 = 1.0, got 1.0"),
        (lambda: real_divisor_pair(0.0, 1.0, 1.0), "rate"),
        (lambda: real_divisor_pair(0.1, 1.0, 1.0, 0), "group_size"),
        (lambda: DoubleMixture(RARE, Mixture.poisson(1, 0.1, 2.0)), "both mixtures must have the same sigma"),
        (lambda: DoubleMixture.poisson(-1, 1, 0.1, 1.0), "removed"),
        (lambda: SymmetricMixture((1.0, Mixture.poisson(2, 0.1, 1.0))), "0 and another one"),
        (lambda: SymmetricMixture((0.7, RARE), (0.4, RARE)), "weights above 0, at most 1 in total"),
        (lambda: GaussianTradeOff(math.nan), "mu"),
        (lambda: PrivacyLoss.gaussian(1.0, rate=1.5), "rate"),
        *(
            (lambda call=call, x=x: call(x), name)
            for x in (5e-324, 1e-160, 1e160, 1.7e308)
            for call, name in (
                (lambda x: Mixture.full(1, x), "sigma"),
                (lambda x: Mixture([0.0, 1.0, x], [0.5, 0.25, 0.25], 1.0), "sigma"),
                (lambda x: DoubleMixture.poisson(1, 1, 0.5, x), "sigma"),
                (lambda x: TruncatedPoisson(1, 0.1, 5, 10, x).above(), "sigma"),
                (lambda x: Laplace(x), "scale"),
                (lambda x: largest_sum_pair(3, 1.0, x, 0.0), "sigma"),
                (lambda x: joint_noise_multiplier(x, 1.0), "noise_multiplier"),
                (lambda x: real_divisor_pair(0.5, x, 1.0), "noise_multiplier"),
                (lambda x: discrete_gaussian(x), "sigma"),
                (lambda x: gaussian.delta(1.0, x), "mu"),
                (lambda x: gaussian_rdp(2.0, x), "effect"),
                (lambda x: sampled_gaussian_rdp(2.0, 0.1, x), "sigma"),
            )
        ),
        (lambda: gaussian_rdp(1e160, 1.0), "orders"),
        (lambda: log_delta_at_orders(2.0, 1.0, 1e300), "epsilon"),
        (lambda: LOSS.compose(10**400), "times"),
        (lambda: LOSS.delta(-1e300), "epsilon"),
        (lambda: Mixture.fixed(1, 10**400, 3, 1.0), "n must"),
        (lambda: SymmetricMixture((math.nan, Mixture.full(1, 1.0))), "weights"),
        (lambda: Discrete([0.5, 0.4], [0.5, 0.5]), "present"),
        (lambda: Mixture.poisson(True, 0.1, 1.0), "k"),
        (lambda: Mixture.fixed(1, 10, 11, 1.0), "batch_size"),
        (lambda: Mixture([-1.0], [1.0], 1.0), "sensitivities"),
        (lambda: Mixture.full(1, 1.0).delta(1.0, "both"), "direction"),
        (lambda: PrivacyLoss.of(Mixture.full(1, 1.0), "sideways"), "direction"),
        (lambda: PrivacyLoss(((Mixture.full(1, 1.0), 0),)), "steps"),
        (lambda: LOSS.epsilon(0.0), "delta"),
        (lambda: LOSS.delta(math.inf), "epsilon"),
        (lambda: LOSS + PrivacyLoss.gaussian(1.0, direction="present-first"), "direction"),
    ],
)
def test_senseless_arguments_are_named(call: Callable[[], object], argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        call()
