"""Model updates from noisy sums: the rules of ``torch.optim``, as post-processing.

With g_t = noisy_t / divisor + weight_decay * theta_{t-1} and the learning rate r_t of the step:

    sgd        theta_t = theta_{t-1} - r_t g_t
    momentum   theta_t = theta_{t-1} - r_t b_t,   b_t = momentum b_{t-1} + g_t,   b_0 = 0
    adam       theta_t = theta_{t-1} - r_t m_t / (sqrt(v_t) + eps), with m_t and v_t bias-corrected moving averages of g
               and g^2 with decay rates beta1 and beta2

An adversary with all models can invert the first two and recover every noisy sum. Adam cannot be inverted: its first
step reveals little more than signs, and later steps can result from two different sums.

Updates are stateful, so each run needs its own. They act elementwise on states and sums (P,) or (runs, P).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from dpspec.contract.frozen import FrozenMap
from dpspec.training.device import Number, float_on_cpu
from dpspec.training.loop.checkpoint import Remembering
from dpspec.training.providers import Rates, chosen_optimizer, rates_of


class RecoveredUpdate(NamedTuple):
    """The noisy sum (P,) behind an update."""

    noisy: Tensor
    rounding: Number  # bound on the l2 norm of its rounding error
    expected: Number = 0.0  # the same from the earlier models only, by which steps may be skipped; may be inf or NaN


@dataclass(eq=False)
class Optimizer(Remembering, ABC):
    """Base class of updates. ``divisor`` is a public constant (1, or the expected batch size)."""

    rates: Rates
    divisor: float = 1.0
    weight_decay: float = 0.0
    _step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._decay = self.weight_decay * self.divisor

    @abstractmethod
    def __call__(self, state: Tensor, noisy: Tensor) -> Tensor: ...

    def _gradient(self, state: Tensor, noisy: Tensor) -> Tensor:
        return noisy + self._decay * state if self._decay else noisy

    def _next_rate(self) -> float:
        self._step += 1
        return self.rates(self._step)


@dataclass(eq=False)
class Sgd(Optimizer):
    """Gradient descent, optionally with momentum. In units of sums, it multiplies only once."""

    kept = ("_step", "_buffer", "_error")
    momentum: float = 0.0
    _buffer: Tensor | None = field(default=None, init=False)
    _error: Number = field(default=0.0, init=False)  # bound on the rounding error of an inverted buffer

    def __call__(self, state: Tensor, noisy: Tensor) -> Tensor:
        scale = self._next_rate() / self.divisor
        direction = gradient = self._gradient(state, noisy)
        if self.momentum:
            direction = self._buffer = self.momentum * _kept(self._buffer, gradient) + gradient
        return state - scale * direction

    def invert(self, before: Tensor, after: Tensor) -> RecoveredUpdate:
        """Recover the noisy sum between consecutive models (P,). Call once per step, instead of the update."""
        scale, mu = self._next_rate() / self.divisor, self.momentum
        update, eps = before - after, torch.finfo(before.dtype).eps
        decayed = self._decay * _length(before) if self._decay else 0.0
        expected = 0.5 * eps * _length(before) / scale + 4.0 * eps * decayed
        if mu:
            buffer_error = 0.0 if self._buffer is None else 3.0 * eps * _length(self._buffer)
            expected = expected + mu * (self._error + buffer_error)
        # Rounding of the update: half an ulp of the model and a few of the update's.
        gradient, error = update / scale, 0.5 * eps * (_length(after) + 6.0 * _length(update)) / scale
        if mu:
            direction, buffer, inherited = gradient, _kept(self._buffer, gradient), self._error
            error = error + 3.0 * mu * eps * _length(buffer)
            self._buffer, self._error = direction, error
            gradient, error = direction - mu * buffer, error + mu * inherited
        if self._decay:
            gradient = gradient - self._decay * before
            error = error + 4.0 * eps * decayed
        return RecoveredUpdate(gradient, error, expected)


@dataclass(eq=False)
class Adam(Optimizer):
    kept = ("_step", "_first", "_second")
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    _first: Tensor | None = field(default=None, init=False)
    _second: Tensor | None = field(default=None, init=False)

    def __call__(self, state: Tensor, noisy: Tensor) -> Tensor:
        rate, gradient = self._next_rate(), self._gradient(state, noisy)
        self._first = self.beta1 * _kept(self._first, gradient) + (1.0 - self.beta1) * gradient
        self._second = self.beta2 * _kept(self._second, gradient) + (1.0 - self.beta2) * gradient.square()
        weights = 1.0 - self.beta1**self._step, 1.0 - self.beta2**self._step
        size = self._second.sqrt() / sqrt(weights[1]) + self.eps * self.divisor
        return state - (rate / weights[0]) * self._first / size


def update_of(options: FrozenMap, expected_batch_size: float, steps: int) -> Optimizer:
    reduction = options["reduction"]
    divisor = expected_batch_size if reduction == "mean" else 1.0
    chosen = chosen_optimizer(options)
    rates, kind = rates_of(options, steps), chosen.pop("kind", "sgd")
    match kind:
        case "sgd":
            return Sgd(rates, divisor, **chosen)
        case "momentum":
            return Sgd(rates, divisor, **{"momentum": 0.9, **chosen})
        case "adam":
            return Adam(rates, divisor, **chosen)
    raise ValueError(f"optimizer must be sgd, momentum or adam, got {kind!r}")


def inversion_of(options: FrozenMap, expected_batch_size: float, steps: int) -> Sgd:
    """The update of an adversary with all models, who inverts every step in order."""
    update = update_of(options, expected_batch_size, steps)
    if not isinstance(update, Sgd):
        raise ValueError(f"updates by {type(update).__name__} cannot be inverted; residuals require sgd or momentum")
    return update


def _kept(memory: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if memory is None else memory.to(like)


def _length(vector: Tensor) -> Number:
    return float_on_cpu(torch.linalg.vector_norm(vector, dtype=torch.float64))
