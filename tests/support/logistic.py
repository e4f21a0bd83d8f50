"""Logistic noise by name, as a plugin's author writes it, and wrong versions of it."""

from typing import Any

import numpy as np
from scipy.special import log_expit

from dpspec.accounting import LogConcaveNoise


class Logistic(LogConcaveNoise):
    """Noise of density e^-z / (1 + e^-z)^2, whose loss is at most sensitivity / scale."""

    is_symmetric = True

    def log_density(self, z: Any) -> Any:
        return log_expit(z) + log_expit(-z)

    def log_mass(self, low: Any, high: Any) -> Any:
        return log_expit(-low) + log_expit(high) + np.log(-np.expm1(low - high))

    def largest_loss(self, direction: Any) -> float:
        return self.shift


class Gumbel(LogConcaveNoise):
    """Noise of density exp(-z - e^-z): its loss is at most the effect, and unbounded from below."""

    def log_density(self, z: Any) -> Any:
        return -z - np.exp(-z)

    def log_mass(self, low: Any, high: Any) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            between = np.exp(-low) - np.exp(-high)  # infinite if low is
            return -np.exp(-high) + np.log(-np.expm1(-np.where(np.isinf(low), np.inf, between)))

    def largest_loss(self, direction: Any) -> float:
        return self.shift if direction == "present-first" else np.inf
