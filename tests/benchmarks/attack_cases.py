"""Mechanisms whose truth is known, as scores and coins of one run, for ``attacks.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from peer_bounds import Array
from scipy.special import ndtri

from dpspec.stats.attacks import curve_lines

DELTA = 1e-5


class Case(NamedTuple):
    """A mechanism: scores and coins of one run, the centre that an attacker knows, and what is true."""

    name: str
    draw: Callable[[int, np.random.Generator], tuple[Array, Array]]
    centre: float
    epsilon: float
    mu: float


def mu_of(epsilon: float) -> float:
    """The mu of the Gaussian curve with this epsilon at DELTA; 0 of 0."""
    low, high = 0.0, 20.0
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if curve_lines.gaussian_epsilon(middle, DELTA) < epsilon else (low, middle)
    return high if epsilon else 0.0


def gaussian(epsilon: float) -> Case:
    """Independent Gaussian mechanisms with this epsilon at DELTA."""
    mu = mu_of(epsilon)
    # Where nothing is to be seen the attacker expects epsilon 1.
    return Case(f"Gaussian, {epsilon:g}", lambda m, s: _normal(mu, m, s), 0.5 * (mu or mu_of(1.0)), epsilon, mu)


def _normal(mu: float, canaries: int, source: np.random.Generator) -> tuple[Array, Array]:
    coins = source.integers(0, 2, canaries)
    return source.standard_normal(canaries) + mu * coins, coins


def not_gaussian() -> list[Case]:
    """Two mechanisms without a Gaussian curve."""

    def response(m: int, source: np.random.Generator) -> tuple[Array, Array]:
        coins = source.integers(0, 2, m)
        told = source.random(m) < 1.0 / (1.0 + math.exp(-1.0))
        return np.where(told, coins, 1 - coins) + 1e-9 * source.random(m), coins

    def laplace(m: int, source: np.random.Generator) -> tuple[Array, Array]:
        coins = source.integers(0, 2, m)
        seen = source.laplace(0.0, 1.0, m) + coins
        return np.abs(seen) - np.abs(seen - 1.0) + 1e-9 * source.random(m), coins

    fpr = np.linspace(1e-6, 1.0 - 1e-6, 200_001)
    power = np.where(
        fpr < 0.5 / math.e, math.e * fpr, np.where(fpr < 0.5, 1.0 - 0.25 / (math.e * fpr), 1.0 - (1.0 - fpr) / math.e)
    )
    mu = float(np.max(ndtri(np.minimum(power, 1 - 1e-12)) - ndtri(fpr)))
    kept = 1.0 / (1.0 + math.exp(-1.0))
    return [
        Case("randomised response", response, 0.5, 1.0, 2.0 * float(ndtri(kept))),
        Case("Laplace", laplace, 0.0, 1.0, mu),
    ]


def samples(case: Case, canaries: int, seeds: int) -> list[tuple[Array, Array]]:
    return [case.draw(canaries, np.random.default_rng(seed)) for seed in range(seeds)]
