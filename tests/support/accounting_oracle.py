"""Slow, obvious and independent ways to the same numbers, for tests only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import mpmath
import numpy as np

from dpspec.accounting import Mixture
from dpspec.accounting.grid import Atoms


def one_step_delta(mixture: Mixture, epsilon: float, direction: str, digits: int = 30) -> mpmath.mpf:
    """The hockey-stick divergence by quadrature of max(P - e^epsilon Q, 0) with mpmath."""
    with mpmath.workdps(digits):
        sigma, exp = mpmath.mpf(mixture.sigma), mpmath.exp
        terms = [(mpmath.mpf(float(c)), mpmath.mpf(float(p))) for c, p in _terms(mixture)]

        def group(x: mpmath.mpf) -> mpmath.mpf:
            return sum(p * mpmath.npdf(x, c, sigma) for c, p in terms)

        def none(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.npdf(x, 0, sigma)

        def log_ratio(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.log(sum(p * exp((c * x - c * c / 2) / sigma**2) for c, p in terms))

        first, second = (group, none) if direction == "present-first" else (none, group)
        sign = 1 if direction == "present-first" else -1
        eps = mpmath.mpf(epsilon)
        top = terms[-1][0]
        low, high = -14 * sigma, top + 14 * sigma
        # where the sign changes: the loss is monotone in x
        if sign * log_ratio(low) < eps and sign * log_ratio(high) < eps:
            return mpmath.mpf(0)
        edges = [low + (high - low) * i / 60 for i in range(61)]
        if (sign * log_ratio(low) - eps) * (sign * log_ratio(high) - eps) < 0:
            a, b = low, high
            rising = sign * log_ratio(a) < eps
            for _ in range(int(digits * 3.5) + 10):
                m = (a + b) / 2
                if (sign * log_ratio(m) < eps) == rising:
                    a = m
                else:
                    b = m
            edges = sorted([*edges, a])
        total = mpmath.mpf(0)
        for left, right in itertools.pairwise(edges):
            middle = (left + right) / 2
            if sign * log_ratio(middle) > eps:
                total += mpmath.quad(lambda x: first(x) - exp(eps) * second(x), [left, right])
        return total


def _terms(mixture: Mixture) -> list[tuple[float, float]]:
    return list(zip(mixture.sensitivities, mixture.probabilities, strict=True))


class Contour:
    """delta(epsilon) of a composition by a contour integral of its moment generating function.

    delta = (1/pi) * integral over u > 0 of Re[M(z)^T e^(-z eps) / (z (z + 1))], z = s + iu, with s > 0 at the saddle.
    Quadrature only, no grid of losses and no discretisation of masses; about 11 digits for ten steps or more.
    """

    def __init__(self, phases: Sequence[tuple[Mixture, int]], direction: str) -> None:
        self.present = direction == "present-first"
        self.phases = list(phases)

    def _table(self, tilt: float) -> list[tuple[np.ndarray, np.ndarray, float, int]]:
        """Losses, tilted weights summing to one, ln M(tilt), and steps, for each phase."""
        tables = []
        for mixture, steps in self.phases:
            shifts = np.asarray(mixture.sensitivities) / mixture.sigma
            top = float(shifts[-1])
            z = 1.0 + tilt if self.present else -tilt
            low, high = min(0.0, z * top) - 13.0, max(0.0, z * top) + 13.0
            step = self._step(mixture)
            x = np.arange(low, high, step)
            loss = mixture.log_ratio(x * mixture.sigma)
            exponent = -0.5 * x * x + z * loss
            ceiling = exponent.max()
            weights = np.exp(exponent - ceiling)
            total = weights.sum()
            keep = weights > 1e-25 * total
            log_m = ceiling + math.log(total * step / math.sqrt(2 * math.pi))
            tables.append(((loss if self.present else -loss)[keep], weights[keep] / total, log_m, steps))
        return tables

    def _step(self, mixture: Mixture) -> float:
        return min(0.04, mixture.sigma / (32.0 * float(mixture.sensitivities[-1])))

    def saddle(self, epsilon: float) -> float:
        """The tilt at which T M'/M - eps - 1/s - 1/(1+s) = 0."""
        low, high = math.log(1e-3), math.log(1e4)
        for _ in range(60):
            middle = 0.5 * (low + high)
            s = math.exp(middle)
            mean = sum(steps * float(w @ loss) for loss, w, _, steps in self._table(s))
            low, high = (middle, high) if mean - epsilon - 1 / s - 1 / (1 + s) < 0 else (low, middle)
        return math.exp(0.5 * (low + high))

    def log_delta(self, epsilon: float, tilt: float | None = None) -> float:
        """ln delta(epsilon)."""
        s = self.saddle(epsilon) if tilt is None else tilt
        tables = self._table(s)
        means = [float(w @ loss) for loss, w, _, _ in tables]
        spread = math.sqrt(sum(t[3] * float(t[1] @ (t[0] - mean) ** 2) for t, mean in zip(tables, means, strict=True)))
        # beyond this the steps in x no longer resolve the oscillation of e^(iu loss)
        largest = min(1.5 * m.sigma / (self._step(m) * float(m.sensitivities[-1])) for m, _ in self.phases)
        du = 2 * math.pi / (60 * spread + 40 / min(s, 1.0) + 40)
        total, first, start = 0.0, None, 0
        while start < 200_000 and du * start < largest:
            u = du * np.arange(start, start + 512)
            log_m = np.zeros(len(u), dtype=complex)
            for (loss, w, _, steps), mean in zip(tables, means, strict=True):
                log_m += steps * (np.log(np.exp(1j * np.outer(u, loss - mean)) @ w) + 1j * u * mean)
            value = (np.exp(log_m - 1j * u * epsilon) / ((s + 1j * u) * (s + 1 + 1j * u))).real
            if first is None:
                first = abs(value[0])
                value[0] *= 0.5
            total += float(value.sum())
            start += 512
            if np.max(np.abs(value[-64:])) < 1e-18 * first:
                break
        else:
            raise ArithmeticError("the contour integral does not converge")
        log_scale = sum(steps * log_m for _, _, log_m, steps in tables) - s * epsilon
        result = log_scale + math.log(total * du / math.pi)
        if log_scale - result > 12.0:
            raise ArithmeticError("the integrand cancels to nothing: the loss is too heavy-tailed for a contour")
        return result

    def epsilon(self, delta: float, near: float) -> float:
        """The epsilon at which delta is reached, by the secant rule from ``near``; one tilt serves all."""
        tilt = self.saddle(near)
        goal = math.log(delta)
        a, fa = near, self.log_delta(near, tilt) - goal
        b = near + fa / tilt
        for _ in range(30):
            fb = self.log_delta(b, tilt) - goal
            if abs(fb) < 1e-12 or fa == fb:
                break
            a, b, fa = b, b - fb * (b - a) / (fb - fa), fb
        return b


def two_step_delta(first: Mixture, second: Mixture, epsilon: float, direction: str) -> float:
    """delta of one step of each pair: the second's closed form averaged over the first's loss (trapezoid rule)."""
    top = float(first.sensitivities[-1])
    x = np.linspace(-13.0 * first.sigma, top + 13.0 * first.sigma, 20_001)
    loss = first.log_ratio(x)
    present = direction == "present-first"
    density = np.exp(-0.5 * (x / first.sigma) ** 2 + (loss if present else 0.0))
    density /= first.sigma * math.sqrt(2.0 * math.pi)
    if not present:
        loss = -loss
    return float(np.sum(density * second.delta(epsilon - loss, direction)) * (x[1] - x[0]))


def curve(atoms: Atoms, epsilon: float) -> float:
    """delta(epsilon) of a measure on a grid, losses taken as they stand."""
    losses = atoms.lowest + atoms.spacing * atoms.index
    return float(atoms.masses @ -np.expm1(np.minimum(epsilon - losses, 0.0))) + atoms.infinity
