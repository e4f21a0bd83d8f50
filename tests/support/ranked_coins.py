"""Inclusion bits of canaries by ascending score, as attacks store them."""

from __future__ import annotations

import numpy as np


def ranked(scores: np.ndarray, coins: np.ndarray) -> str:
    return "".join(map(str, coins[np.argsort(scores, kind="stable")]))


def gaussian(mu: float, canaries: int, seed: int | np.random.Generator) -> str:
    """Scores N(0, 1) of absent and N(mu, 1) of inserted canaries."""
    source = np.random.default_rng(seed)
    coins = source.integers(0, 2, canaries)
    return ranked(source.standard_normal(canaries) + mu * coins, coins)
