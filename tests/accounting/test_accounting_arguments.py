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
    Polygon,
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
    joint_noise_multiplier,
    largest_sum_pair,
    log_delta_at_orders,
    real_divisor_pair,
    sampled_gaussian_integer_rdp,
    sampled_gaussian_rdp,
    sampled_laplace_rdp,
)
from dpspec.accounting.rdp import Tries

LOSS = PrivacyLoss.gaussian(1.0)

#: Valid arguments of a step.
DEFAULTS = {"group_size": 1, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: LOSS.rero(0.0), "kappa"),
        (lambda: LOSS.rero(0.1, direction="sideways"), "direction"),
        (lambda: LOSS.tradeoff(-0.1), "alpha"),
        (lambda: LOSS.level(1.0), "power"),
        (lambda: LOSS.tradeoff(0.1, width=0.0), "width"),
        (lambda: sampled_laplace_rdp(2.0, 0.1, 1.0, "sideways"), "direction"),
        (lambda: epsilon_at_orders(2.0, 1.0, 0.0), "delta"),
        (lambda: epsilon_at_orders(2.0, 1.0, 0.1, "newest"), "conversion"),
        (lambda: log_delta_at_orders(2.0, 1.0, math.inf), "epsilon"),
        (lambda: best_epsilon([2.0, 3.0], [1.0], 0.1), "orders and rdp"),
        (lambda: best_epsilon([2.0], [1.0], 1.0), "delta"),
        (lambda: sampled_gaussian_rdp(1.0, 0.1, 1.0), "orders"),
        (lambda: sampled_gaussian_rdp(2.0, 1.1, 1.0), "rate"),
        (lambda: sampled_gaussian_rdp(2.0, 0.1, 0.0), "noise_multiplier"),
        (lambda: sampled_gaussian_rdp(2.0, 0.1, 1.0, "sideways"), "direction"),
        (lambda: sampled_gaussian_integer_rdp(2.5, 0.1, 1.0), "orders"),
        (lambda: gaussian_rdp(2.0, -1.0), "effect"),
        (lambda: composed_rdp([(Mixture.full(1, 1.0), 0)], 2.0), "steps"),
        (lambda: Tries("geometric", 0.5), "mean"),
        (lambda: Tries("poisson", 0.0), "mean"),
        (lambda: Tries("geometric", 2.0, 1.0), "eta"),
        (lambda: Tries("truncated-negative-binomial", 2.0), "eta"),
        (lambda: Tries("binomial", 2.0), "law"),
        *(
            (lambda pair=pair: RandomAllocation(*pair), "steps|noise_multiplier")
            for pair in ((0, 1.0), (5, 0.0), (10**8, 1.0))
        ),
        *(
            (lambda pair=pair: RandomAllocation(5, *pair), "noise_multiplier|group_size")
            for pair in ((0.3, 4), (1.0, 0), (2.0, 17))
        ),
        (lambda: RandomAllocation(5, 0.01), "noise_multiplier"),
        *(
            (
                lambda at=at: TruncatedPoisson(
                    **{"group_size": 1, "rate": 0.1, "cap": 5, "n": 10, "noise_multiplier": 1.0, **at}
                ),
                next(iter(at)),
            )
            for at in (
                {"rate": 0.0},
                {"rate": 1.1},
                {"cap": 0},
                {"group_size": 0},
                {"n": -1},
                {"noise_multiplier": 0.0},
            )
        ),
        (lambda: Revealed([(0.5, Mixture.full(1, 1.0)), (0.4, Mixture.full(1, 1.0))]), "sum to 1"),
        (lambda: Revealed([(0.5, Mixture.full(1, 1.0)), (0.5, Mixture.full(1, 2.0))]), "same noise_multiplier"),
        (lambda: Revealed([]), "above 0"),
        (lambda: GaussianTradeOff(math.nan), "mu"),
        (lambda: GaussianTradeOff(1.0)(1.5), "alpha"),
        (lambda: GaussianTradeOff(1.0).tpr(-0.1), "fpr"),
        (lambda: Polygon.from_epsilon_delta([(-1.0, 0.1)]), "points"),
        (lambda: Polygon.from_epsilon_delta([(1.0, 1.1)]), "points"),
        (lambda: PrivacyLoss.gaussian(1.0, rate=1.5), "rate"),
        (lambda: PrivacyLoss.gaussian(0.0), "std"),
        (lambda: PrivacyLoss.gaussian(1.0, sensitivity=-1.0), "sensitivity"),
        (lambda: Laplace(0.0), "scale"),
        *(
            (lambda call=call, x=x: call(x), name)
            for x in (5e-324, 1e-310, 1e-300, 1e-160, 1e160, 1e300, 1.7e308)
            for call, name in (
                (lambda x: Mixture.full(1, x), "noise_multiplier"),
                (lambda x: Mixture.poisson(3, 0.5, x), "noise_multiplier"),
                (lambda x: Mixture.fixed(2, 10, 3, x), "noise_multiplier"),
                (lambda x: Mixture([0.0, 1.0, x], [0.5, 0.25, 0.25], 1.0), "noise_multiplier"),
                (lambda x: DoubleMixture.poisson(1, 1, 0.5, x), "noise_multiplier"),
                (lambda x: PrivacyLoss.gaussian(x), "std"),
                (lambda x: PrivacyLoss.gaussian(1.0, sensitivity=x), "std"),
                (lambda x: TruncatedPoisson(1, 0.1, 5, 10, x).above(), "noise_multiplier"),
                (lambda x: Laplace(x), "scale"),
                (lambda x: Laplace(1.0, x), "scale"),
                (lambda x: largest_sum_pair(3, 1.0, x, 0.0), "noise_multiplier"),
                (lambda x: joint_noise_multiplier(x, 1.0), "noise_multiplier"),
                (lambda x: joint_noise_multiplier(1.0, x), "count_std"),
                (lambda x: real_divisor_pair(0.5, x, 1.0), "noise_multiplier"),
                (lambda x: real_divisor_pair(0.5, 1.0, x), "count_std"),
                (lambda x: discrete_gaussian(x), "scale"),
                (lambda x: gaussian.delta(1.0, x), "mu"),
                (lambda x: gaussian_rdp(2.0, x), "effect"),
                (lambda x: sampled_gaussian_rdp(2.0, 0.1, x), "noise_multiplier"),
            )
        ),
        (lambda: gaussian_rdp(1e160, 1.0), "orders"),
        (lambda: log_delta_at_orders(2.0, 1.0, 1e300), "epsilon"),
        (lambda: LOSS.compose(10**400), "times"),
        (lambda: LOSS.compose(10**10).compose(10**10), "steps"),
        (lambda: LOSS.delta(-1e300), "epsilon"),
        (lambda: Mixture.fixed(1, 10**400, 3, 1.0), "n must"),
        (lambda: SymmetricMixture((math.nan, Mixture.full(1, 1.0))), "weights"),
        (lambda: Laplace(1.0, sensitivity=math.nan), "sensitivity"),
        (lambda: Discrete([0.5, 0.4], [0.5, 0.5]), "present"),
        (lambda: Discrete([0.5, 0.5], [0.5, 0.6]), "absent"),
        (lambda: Discrete([0.5, 0.5], [0.5, math.nan]), "absent"),
        (lambda: Discrete([], []), "present"),
        (lambda: Discrete([[0.5, 0.5]], [[0.5, 0.5]]), "present"),  # type: ignore[list-item]
        (lambda: Discrete([0.5, 0.5], [1.0]), "absent"),
        (lambda: Mixture.poisson(1.5, 0.1, 1.0), "group_size"),
        (lambda: Mixture.poisson(True, 0.1, 1.0), "group_size"),
        (lambda: Mixture.poisson(1, 1.1, 1.0), "rate"),
        (lambda: Mixture.poisson(1, 0.1, 0.0), "noise_multiplier"),
        (lambda: Mixture.poisson(1, 0.1, "1"), "noise_multiplier"),
        (lambda: Mixture.fixed(1, 10, 11, 1.0), "batch_size"),
        (lambda: Mixture.fixed(1, 0, 1, 1.0), "n must"),
        (lambda: Mixture([1.0, 2.0], [0.5, 0.4], 1.0), "probabilities"),
        (lambda: Mixture([1.0], [0.5, 0.5], 1.0), "probabilities"),
        (lambda: Mixture([-1.0], [1.0], 1.0), "sensitivities"),
        (lambda: Mixture([], [], 1.0), "sensitivities"),
        (lambda: Mixture.full(1, 1.0).delta(1.0, "both"), "direction"),
        (lambda: PrivacyLoss(()), "phases"),
        (lambda: PrivacyLoss(((1.0, 2),)), "phases"),
        (lambda: PrivacyLoss.of(Mixture.full(1, 1.0), "sideways"), "direction"),
        (lambda: PrivacyLoss(((Mixture.full(1, 1.0), 0),)), "steps"),
        (lambda: LOSS.compose(-1), "times"),
        (lambda: LOSS.compose(1.5), "times"),
        (lambda: LOSS.epsilon(0.0), "delta"),
        (lambda: LOSS.epsilon(1e-5, width=0.0), "width"),
        (lambda: LOSS.delta(math.inf), "epsilon"),
        (lambda: LOSS + PrivacyLoss.gaussian(1.0, direction="present-first"), "direction"),
        (lambda: gaussian.delta(1.0, 0.0), "mu"),
        (lambda: gaussian.delta(math.nan, 1.0), "epsilon"),
        (lambda: gaussian.epsilon(1.0, 1.0), "delta"),
    ],
)
def test_senseless_arguments_are_named(call: Callable[[], object], argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        call()
