"""The Gaussian mechanism's exact privacy profile, in log space.

A pair N(0, 1), N(mu, 1) has (Balle and Wang 2018, Theorem 8), in either direction,

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

T steps of sensitivity c and noise sigma compose exactly to mu = sqrt(T) c / sigma. As the two terms may agree to almost
all digits, the difference is taken between Mills ratios: with R(z) = (1 - Phi(z)) / phi(z) and u = epsilon/mu - mu/2,

    delta = phi(u) (R(u) - R(u + mu)) = phi(u) * integral over [u, u + mu] of (1 - z R(z)) dz.
"""

import functools
import math

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, log_ndtr, ndtr

from dpspec.accounting.numerics import EPS, LOG_ROOT_TWO_PI, Floats, Interval, bounded_effect, crossing, gauss_rule

_NODES, _WEIGHTS = gauss_rule(8)

#: Below this u the first term is so close to one that the second is subtracted from it directly: Mills ratios overflow
#: below u = -37.6.
_FAR_LEFT = -25.0


def log_delta(epsilon: npt.ArrayLike, mu: npt.ArrayLike) -> Floats:
    """ln delta(epsilon) of the Gaussian pair with effect ``mu`` > 0; arrays broadcast.

    The relative error of delta is below ``relative_error``. The result is finite down to delta = 1e-300 and beyond.
    """
    eps, effect = np.broadcast_arrays(np.asarray(epsilon, dtype=np.float64), np.asarray(mu, dtype=np.float64))
    _require_effects(effect)
    if np.any(np.isnan(eps)):
        raise ValueError("epsilon must be a number")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        u = eps / effect - 0.5 * effect
        drop = np.asarray(_mills(u) - _mills(u + effect))
        # The definition's difference has a relative error of 9e-12 at epsilon 0.01 and mu 0.002, and this one 3e-15.
        # R(u) - R(u + mu): by quadrature of 1 - z R(z) if mu is small, else as a difference
        short = effect * np.maximum(1.0, -u) < 0.25
        if short.any():
            z = u[short, None] + effect[short, None] * _NODES
            # Far out 1 - z R(z) by its asymptotic series: the difference has a relative error of 2e-13 at z = 60 and
            # of 1e-6 at 1e5. The series has 2e-16 from 60 on, and 3e-11 at 20.
            w = 1.0 / np.square(np.maximum(np.abs(z), 1.0))
            series = w * (1 - 3 * w * (1 - 5 * w * (1 - 7 * w * (1 - 9 * w * (1 - 11 * w)))))
            slope = np.where(z > 60.0, series, 1.0 - z * _mills(z))
            drop[short] = effect[short] * np.sum(_WEIGHTS * slope, axis=-1)
        result = np.asarray(-0.5 * u * u - LOG_ROOT_TWO_PI + np.log(drop))
        far = u < _FAR_LEFT
        if far.any():  # R overflows, while both terms of the definition are plain numbers
            left = -u[far]
            excess = -np.expm1(np.minimum(eps[far] + log_ndtr(left - effect[far]) - log_ndtr(left), 0.0))
            result[far] = np.log(excess) + log_ndtr(left)
    result = np.where(eps == np.inf, -np.inf, result)
    return np.asarray(np.minimum(np.where(eps == -np.inf, 0.0, result), 0.0), dtype=np.float64)


def normal_masses(z: Floats) -> Floats:
    """Masses of the standard normal distribution between neighbors of ``z``, which ascends.

    Above 0 they are computed in the lower tail: differences of ``ndtr`` are multiples of 1e-16 there.

    >>> z = np.array([8.4, 8.5])
    >>> float(ndtr(z[1]) - ndtr(z[0])), f"{normal_masses(z)[0]:.4g}"
    (0.0, '1.284e-17')
    """
    return np.asarray(np.where(z[:-1] > 0.0, ndtr(-z[:-1]) - ndtr(-z[1:]), ndtr(z[1:]) - ndtr(z[:-1])))


def delta(epsilon: npt.ArrayLike, mu: npt.ArrayLike) -> Floats:
    """delta(epsilon) of the Gaussian pair with effect ``mu``; see ``log_delta``."""
    return np.asarray(np.exp(log_delta(epsilon, mu)), dtype=np.float64)


def epsilon(delta: npt.ArrayLike, mu: npt.ArrayLike) -> Floats:
    """The epsilon >= 0 at which the Gaussian pair has this ``delta`` in (0, 1); 0 if delta(0) is below it.

    Vectorized bisection to the last bits; returns the safe end of the bracket, delta(result) <= delta as computed.
    """
    target, effect = np.broadcast_arrays(np.asarray(delta, dtype=np.float64), np.asarray(mu, dtype=np.float64))
    if not np.all((target > 0.0) & (target < 1.0)):
        raise ValueError("delta must be above 0 and below 1")
    _require_effects(effect)
    goal = np.log(target)
    # delta(epsilon) <= Phi(mu/2 - epsilon/mu), and Phi(-z) <= exp(-z^2/2) / 2
    low, high = np.zeros(goal.shape), effect * (0.5 * effect + np.sqrt(np.maximum(-2.0 * goal, 0.0)) + 1.0)
    for _ in range(200):
        middle = 0.5 * (low + high)
        if np.all((middle == low) | (middle == high)):
            break
        above = log_delta(middle, effect) > goal
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray(np.where(log_delta(np.zeros(goal.shape), effect) <= goal, 0.0, high), dtype=np.float64)


def _require_effects(effects: Floats) -> None:
    if not np.all((effects > 0.0) & np.isfinite(effects)):
        raise ValueError("mu must be finite and above 0")
    for extreme in (float(effects.min(initial=1.0)), float(effects.max(initial=1.0))):
        bounded_effect("mu", extreme)


def relative_error(epsilon: float, mu: float) -> float:
    """A bound on the relative error of ``delta``, for mu right to 3 units in the last place (see ``numerics.md``)."""
    u = abs(epsilon) / mu + mu
    return EPS * (256.0 + 32.0 * u * u + 2.0 * abs(math.log(mu)))


def delta_interval(epsilon: float, mu: float) -> Interval:
    """``delta`` with its rounding error on both sides."""
    value, error = float(delta(epsilon, mu)), min(relative_error(epsilon, mu), 1e300)
    return Interval(max(0.0, value * (1.0 - error) - 5e-324), min(1.0, value * (1.0 + error) + 5e-324))


@functools.lru_cache(maxsize=4096)  # claims, a run and its verification repeat the question
def epsilon_interval(log_target: float, mu: float) -> Interval:
    """``epsilon`` at delta = e^``log_target`` < 1, with its rounding error on both sides."""
    top = mu * (0.5 * mu + math.sqrt(max(-2.0 * log_target, 0.0)) + 1.0)  # no less than epsilon
    error = relative_error(top, mu) + 4.0 * EPS * abs(log_target)
    at_zero = float(log_delta(0.0, mu)) - log_target
    upper = lower = 0.0
    if at_zero > -error:
        upper, _ = crossing(lambda x: -error - (float(log_delta(x, mu)) - log_target), top, 0.0, within=2.0 * EPS * top)
    if at_zero > error:
        lower, _ = crossing(lambda x: float(log_delta(x, mu)) - log_target - error, 0.0, upper, within=2.0 * EPS * top)
    return Interval(lower * (1.0 - 4.0 * EPS), upper * (1.0 + 4.0 * EPS))


#: Above this effect tails of the loss bound delta more tightly than the closed form with its rounding error.
_STEEP = 1e3

#: A loss this far above epsilon counts in full, up to e^-``_MARGIN``.
_MARGIN = 40.0


def log_delta_bounds(epsilon: npt.ArrayLike, mu: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Bounds of ln delta(epsilon) for effects ``mu`` of any size, at least 0; arrays broadcast, (n,).

    With the loss L, delta is at most P[L > epsilon] = Phi(mu/2 - epsilon/mu), and at least
    P[L > epsilon + s] (1 - e^-s).
    """
    eps, effect = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (epsilon, mu)))
    nothing = np.full(eps.shape, -np.inf)
    nothing[eps < 0.0] = np.log(-np.expm1(eps[eps < 0.0]))
    low, high = nothing.copy(), nothing.copy()
    usual = (effect > 0.0) & (effect <= _STEEP) & (np.abs(eps) <= _STEEP * effect)
    if usual.any():
        usual_effects = effect[usual]
        u = np.abs(eps[usual]) / usual_effects + usual_effects
        error = 2.0 * EPS * (256.0 + 32.0 * u * u + 2.0 * np.abs(np.log(usual_effects)))
        value = log_delta(eps[usual], usual_effects)
        low[usual], high[usual] = value - error, value + error
    tail = (effect > 0.0) & ~usual
    if tail.any():
        tail_effects, ends = effect[tail], eps[tail]
        with np.errstate(over="ignore", invalid="ignore"):  # epsilon / mu may be infinite: no loss is as large
            z = np.array(
                [0.5 * tail_effects - ends / tail_effects, 0.5 * tail_effects - (ends + _MARGIN) / tail_effects]
            )
            doubt = 4.0 * EPS * (0.5 * tail_effects + (np.abs(ends) + _MARGIN) / tail_effects)
            error = 4.0 * EPS * (8.0 + np.square(np.minimum(z, 0.0)))
            log_upper, log_lower = log_ndtr(z[0] + doubt) + error[0], log_ndtr(z[1] - doubt) - error[1] - 1e-15
        high[tail] = np.where(np.isnan(log_upper), 0.0, log_upper)
        low[tail] = np.where(np.isnan(log_lower), -np.inf, log_lower)
    return np.maximum(low, nothing - 4.0 * EPS), np.minimum(np.maximum(high, nothing + 4.0 * EPS), 0.0)


def _mills(z: Floats) -> Floats:
    return np.asarray(math.sqrt(0.5 * math.pi) * erfcx(z / math.sqrt(2.0)), dtype=np.float64)
