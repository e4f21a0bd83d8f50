"""Slow, simple and independent computations of privacy losses, for tests only."""

import itertools
import math

import mpmath
import numpy as np

from dpspec.accounting import Interval, Mixture
from dpspec.accounting.grid import Atoms


def two_step_delta(first: Mixture, second: Mixture, epsilon: float, direction: str) -> float:
    """delta of one step of each pair: the second's closed form, averaged over the first's loss (trapezoid rule)."""
    top = float(first.sensitivities[-1])
    x = np.linspace(-13.0 * first.noise_multiplier, top + 13.0 * first.noise_multiplier, 20_001)
    loss = first.log_ratio(x)
    present = direction == "present-first"
    density = np.exp(-0.5 * (x / first.noise_multiplier) ** 2 + (loss if present else 0.0))
    density /= first.noise_multiplier * math.sqrt(2.0 * math.pi)
    if not present:
        loss = -loss
    return float(np.sum(density * second.delta(epsilon - loss, direction)) * (x[1] - x[0]))


def gaussian_delta(epsilon: float | mpmath.mpf, mu: float | mpmath.mpf) -> mpmath.mpf:
    """delta of the Gaussian mechanism, at the precision of mpmath."""
    e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def gaussian_epsilon(mu: float | mpmath.mpf, delta: float, near: float) -> mpmath.mpf:
    """epsilon of the Gaussian mechanism, by root finding near a known value."""
    log_delta = mpmath.log(mpmath.mpf(delta))
    return mpmath.findroot(lambda e: mpmath.log(gaussian_delta(e, mu)) - log_delta, near, tol=1e-40)


def holds(interval: Interval, value: float, digits: float = 1e-9) -> bool:
    """Whether an interval contains a value, up to its relative error."""
    return interval.lower * (1.0 - digits) <= value <= interval.upper * (1.0 + digits)


def curve(atoms: Atoms, epsilon: float) -> float:
    """delta(epsilon) of a discrete measure on a grid of losses."""
    losses = atoms.lowest + atoms.spacing * atoms.index
    return float(atoms.masses @ -np.expm1(np.minimum(epsilon - losses, 0.0))) + atoms.infinity


def one_step_delta(mixture: Mixture, epsilon: float, direction: str, digits: int = 30) -> mpmath.mpf:
    """The hockey-stick divergence by quadrature of max(P - e^epsilon Q, 0) with mpmath."""
    with mpmath.workdps(digits):
        sigma, exp = mpmath.mpf(mixture.noise_multiplier), mpmath.exp
        terms = [
            (mpmath.mpf(float(c)), mpmath.mpf(float(p)))
            for c, p in zip(mixture.sensitivities, mixture.probabilities, strict=True)
        ]

        def group(x: mpmath.mpf) -> mpmath.mpf:
            return sum(p * mpmath.npdf(x, c, sigma) for c, p in terms)

        def none(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.npdf(x, 0, sigma)

        first, second = (group, none) if direction == "present-first" else (none, group)
        sign = 1 if direction == "present-first" else -1
        eps = mpmath.mpf(epsilon)

        def excess(x: mpmath.mpf) -> mpmath.mpf:
            """The loss minus epsilon, monotone in x."""
            return sign * mpmath.log(sum(p * exp((c * x - c * c / 2) / sigma**2) for c, p in terms)) - eps

        low, high = -14 * sigma, terms[-1][0] + 14 * sigma
        if excess(low) < 0 and excess(high) < 0:
            return mpmath.mpf(0)
        edges = [low + (high - low) * i / 60 for i in range(61)]
        if excess(low) * excess(high) < 0:
            steps = int(digits * 3.5) + 10
            root = mpmath.findroot(excess, (low, high), solver="bisect", maxsteps=steps, verify=False)
            edges = sorted([*edges, root])
        total = mpmath.mpf(0)
        for left, right in itertools.pairwise(edges):
            middle = (left + right) / 2
            if excess(middle) > 0:
                total += mpmath.quad(lambda x: first(x) - exp(eps) * second(x), [left, right])
        return total


def two_laplace_steps(edge: float, rate: float, epsilon: float, direction: str, digits: int = 25) -> mpmath.mpf:
    """delta of two equal Laplace steps with mpmath: one step's closed form, averaged over the other's loss.

    A step without sampling and without the record has the loss -m with probability 1/2, and m with e^-m / 2.
    """
    with mpmath.workdps(digits):
        m, q, exp = mpmath.mpf(edge), mpmath.mpf(rate), mpmath.exp
        present = direction == "present-first"

        def sampled(l: mpmath.mpf) -> mpmath.mpf:  # noqa: E741
            return mpmath.log1p(q * mpmath.expm1(l))

        def one_step(e: mpmath.mpf) -> mpmath.mpf:
            x = e if present else -e
            base = exp(x) - (1 - q)
            l = min(max(mpmath.log(base / q), -m), m) if base > 0 else -m  # noqa: E741
            if present:
                return q * (1 - exp((l - m) / 2)) if l > -m else max(mpmath.mpf(0), 1 - exp(e))
            return q * exp(e + l) * (1 - exp(-(l + m) / 2)) if l < m else max(mpmath.mpf(0), 1 - exp(e))

        def term(l: mpmath.mpf, without: mpmath.mpf) -> mpmath.mpf:  # noqa: E741
            x = sampled(l)
            return without * (exp(x) * one_step(epsilon - x) if present else one_step(epsilon + x))

        edges = {-m, m}
        for kink in (sampled(-m), sampled(m)):  # where the other step's profile has a kink
            base = exp((epsilon if present else -epsilon) - kink) - (1 - q)
            if base > 0:
                edges.add(min(max(mpmath.log(base / q), -m), m))
        for start in sorted(edges):
            for distance in (1, 4, 16, 64, 256):
                edges.update(x for x in (start - distance, start + distance) if -m < x < m)
        total = term(-m, mpmath.mpf(0.5)) + term(m, exp(-m) / 2)
        for left, right in itertools.pairwise(sorted(edges)):
            total += mpmath.quad(lambda x: term(x, exp(-(x + m) / 2) / 4), [left, right])
        return total
