"""Steps, compositions and questions over the whole admitted range, log-uniform, and exact values of single steps."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
from hypothesis import strategies as st

from dpspec.accounting import (
    Discrete,
    Interval,
    Laplace,
    Mixture,
    Pair,
    PrivacyLoss,
    RandomAllocation,
    TruncatedPoisson,
)


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers from ``low`` to ``high``, as many in each order of magnitude."""
    return st.floats(math.log(low), math.log(high)).map(lambda x: min(max(math.exp(x), low), high))


def integers(high: float) -> st.SearchStrategy[int]:
    """Integers from 1 to ``high``, as many in each order of magnitude."""
    return log_uniform(1.0, high).map(lambda x: max(1, round(x)))


noises = log_uniform(1e-8, 1e8)
rates = st.one_of(log_uniform(1e-300, 1.0), log_uniform(1e-6, 1.0), st.just(1.0))
deltas = st.one_of(log_uniform(1e-300, 0.9), log_uniform(1e-12, 0.9))
epsilons = st.one_of(log_uniform(1e-12, 1e6), st.just(0.0))


def _fixed(members: int, records: int, share: float, sigma: float) -> Pair:
    return Mixture.fixed(members, records, max(1, round(share * records)), sigma)


def _truncated(rate: float, cap: int, records: int, sigma: float) -> Pair:
    return TruncatedPoisson(1, rate, cap, records, sigma).above()


def _discrete(weights: list[float], others: list[float]) -> Pair:
    one, two = np.array(weights), np.array(others[: len(weights)] + weights[len(others) :])
    return Discrete(one / one.sum(), two / two.sum())


poisson = st.builds(Mixture.poisson, st.just(1), rates, noises)
laplace = st.builds(Laplace, noises, st.just(1.0), rates)
discrete = st.builds(_discrete, *[st.lists(log_uniform(1e-300, 1.0), min_size=2, max_size=6)] * 2)
pairs = st.one_of(
    poisson,
    laplace,
    discrete,
    st.builds(Mixture.full, integers(1e6), noises),
    st.builds(Mixture.poisson, integers(1e3), log_uniform(1e-9, 1.0), noises),
    st.builds(_fixed, integers(50), integers(1e6), log_uniform(1e-6, 1.0), noises),
    st.builds(_truncated, log_uniform(1e-9, 0.5), integers(1e4), integers(1e6), noises),
    st.builds(RandomAllocation, integers(1e4), log_uniform(0.1, 1e8)),
)
large_groups = st.builds(Mixture.poisson, integers(1e6), log_uniform(1e-9, 1.0), noises)
steps = st.one_of(st.just(1), st.just(2), integers(1e4), integers(1e9))
directions = st.sampled_from(("present-first", "absent-first", "both"))


@st.composite
def losses(draw: st.DrawFn) -> PrivacyLoss:
    count = draw(st.sampled_from((1, 1, 1, 2, 3)))
    return PrivacyLoss(tuple((draw(pairs), draw(steps)) for _ in range(count)), draw(directions))


#: Questions about a loss: a name, the answer, and its smallest and largest value.
Question = tuple[str, Callable[[PrivacyLoss], Interval], float, float]


@st.composite
def questions(draw: st.DrawFn) -> Question:
    kind = draw(st.sampled_from(("epsilon", "delta", "advantage", "tradeoff", "rero", "level")))
    if kind == "epsilon":
        delta = draw(deltas)
        return f"epsilon({delta!r})", lambda loss: loss.epsilon(delta), 0.0, math.inf
    if kind == "delta":
        epsilon = draw(epsilons)
        return f"delta({epsilon!r})", lambda loss: loss.delta(epsilon), 0.0, 1.0
    if kind == "advantage":
        return "advantage()", lambda loss: loss.advantage(), 0.0, 1.0
    level = draw(deltas)
    if kind == "tradeoff":
        return f"tradeoff({level!r})", lambda loss: loss.tradeoff(level), 0.0, 1.0 - level
    if kind == "rero":
        return f"rero({level!r})", lambda loss: loss.rero(level), level, 1.0
    return f"level({level!r})", lambda loss: loss.level(level), 0.0, level


def exact_delta(pair: Pair, epsilon: float, direction: str) -> mpmath.mpf | None:
    """delta of one step of a Poisson-sampled Gaussian or Laplace step, and of finitely many outcomes."""
    e, present = mpmath.mpf(epsilon), direction == "present-first"
    if isinstance(pair, Discrete):
        first, second = (pair.present, pair.absent) if present else (pair.absent, pair.present)
        terms = zip(map(mpmath.mpf, first.tolist()), map(mpmath.mpf, second.tolist()), strict=True)
        return mpmath.fsum(max(p - mpmath.exp(e) * q, mpmath.mpf(0)) for p, q in terms)
    if isinstance(pair, Laplace):
        q, m = mpmath.mpf(pair.rate), mpmath.mpf(pair.edge)
    elif isinstance(pair, Mixture) and len(pair.ratio.shifts) == 2 and pair.ratio.shifts[0] == 0.0:
        q, m = mpmath.exp(mpmath.mpf(float(pair.log_probabilities[1]))), mpmath.mpf(float(pair.ratio.shifts[1]))
    else:
        return None
    base = mpmath.exp(e if present else -e) - (1 - q)
    if base <= 0:  # every outcome exceeds epsilon present-first, no outcome absent-first
        return max(mpmath.mpf(0), 1 - mpmath.exp(e)) if present else mpmath.mpf(0)
    loss = mpmath.log(base / q)  # of the step without sampling
    if isinstance(pair, Laplace):
        loss = min(max(loss, -m), m)
        if present:
            return q * (1 - mpmath.exp((loss - m) / 2)) if loss > -m else max(mpmath.mpf(0), 1 - mpmath.exp(e))
        return q * mpmath.exp(e + loss) * (1 - mpmath.exp(-(loss + m) / 2)) if loss < m else 1 - mpmath.exp(e)
    z = loss / m + m / 2
    if present:
        return q * mpmath.ncdf(m - z) + (1 - q - mpmath.exp(e)) * mpmath.ncdf(-z)
    return (1 - (1 - q) * mpmath.exp(e)) * mpmath.ncdf(z) - q * mpmath.exp(e) * mpmath.ncdf(z - m)
