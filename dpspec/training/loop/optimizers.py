"""How the noisy sum changes the model: the rules of ``torch.optim``, which are post-processing as far as privacy goes.

With g_t = noisy_t / divisor + weight_decay * theta_{t-1} and the learning rate r_t of the step:

    sgd        theta_t = theta_{t-1} - r_t g_t
    momentum   theta_t = theta_{t-1} - r_t b_t,   b_t = momentum b_{t-1} + g_t,   b_0 = 0
    nesterov   theta_t = theta_{t-1} - r_t (g_t + momentum b_t)
    adam       theta_t = theta_{t-1} - r_t m_t / (sqrt(v_t) + eps), with m_t the average of g and v_t that of g^2, whose
               weights fall by beta1 and by beta2 a step and sum to one

Whoever sees every model can undo an update of the first three and so knows every noisy sum. Adam's cannot be undone:
its first step shows hardly more than signs, and a later one can have come from two different sums.

An update has a memory, so that one is made for each run. It acts elementwise: states and sums are (P,) or (runs, P).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import sqrt
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.frozen import FrozenMap
from dpspec.training.gradients.fetching import Number, at_hand
from dpspec.training.loop.checkpoint import Memory, tensor, tensors
from dpspec.training.loop.dpsgd import Update
from dpspec.training.loop.learning_rates import Rates, rates_of


class Undone(NamedTuple):
    """noisy: (P,), the noisy sum behind an update. rounding: a bound on the l2 norm of what rounding changed of it.

    expected: what such a bound was before the update, from the models until then alone: infinite, or not a number,
        where parameters are. Steps may be left out by it, as nothing that the step draws has a part in it.
    """

    noisy: Tensor
    rounding: Number
    expected: Number = 0.0


@runtime_checkable
class Invertible(Update, Protocol):
    """An update that whoever sees all models, in order, can undo."""

    def invert(self, before: Tensor, after: Tensor) -> Undone:
        """The noisy sum that led from one model (P,) to the next; called once per step, instead of the update."""


class Optimizer(ABC):
    """What all updates share. ``divisor`` is a public constant (1, or the expected batch size)."""

    def __init__(self, rates: Rates, divisor: float = 1.0, weight_decay: float = 0.0) -> None:
        if not divisor > 0:
            raise ValueError(f"the expected batch size must be above 0, got {divisor}")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay must be at least 0, got {weight_decay}")
        self._rates = rates
        self._divisor = divisor
        self._decay = weight_decay * divisor
        self._step = 0

    @abstractmethod
    def __call__(self, state: Tensor, noisy: Tensor) -> Tensor:
        """The next model, as a new tensor like ``state``."""

    def state(self) -> Memory:
        """What it remembers between steps."""
        return {"step": np.array(self._step)}

    def restore(self, state: Memory) -> None:
        """Remember what :meth:`state` gave, or nothing."""
        self._step = int(state.get("step", 0))

    def _gradient(self, state: Tensor, noisy: Tensor) -> Tensor:
        """g_t * divisor: in units of sums plain descent multiplies once."""
        return noisy + self._decay * state if self._decay else noisy

    def _next_rate(self) -> float:
        self._step += 1
        return self._rates(self._step)


class Sgd(Optimizer):
    """Plain descent."""

    def __call__(self, state: Tensor, noisy: Tensor) -> Tensor:
        """The next model, as a new tensor like ``state``."""
        scale = self._next_rate() / self._divisor
        return state - scale * self._direction(self._gradient(state, noisy))

    def invert(self, before: Tensor, after: Tensor) -> Undone:
        """The noisy sum that led from ``before`` to ``after``, both (P,)."""
        scale = self._next_rate() / self._divisor
        update = before - after
        decayed = self._decay * _length(before) if self._decay else 0.0
        expected = 0.5 * _eps(before) * _length(before) / scale + 4.0 * _eps(before) * decayed + self._remembered()
        gradient, error = self._undirected(update / scale, _rounding(after, update) / scale)
        if self._decay:
            gradient = gradient - self._decay * before
            error = error + 4.0 * _eps(before) * decayed
        return Undone(gradient, error, expected)

    def _remembered(self) -> Number:
        """What the memory of earlier steps adds to the bound on rounding."""
        return 0.0

    def _direction(self, gradient: Tensor) -> Tensor:
        return gradient

    def _undirected(self, direction: Tensor, error: Number) -> tuple[Tensor, Number]:
        """The gradient behind a direction, and a bound on its error from a bound on the direction's."""
        return direction, error


class Momentum(Sgd):
    """Descent along a decaying sum of all gradients so far, or with ``nesterov`` along the next one's forecast."""

    def __init__(
        self,
        rates: Rates,
        divisor: float = 1.0,
        weight_decay: float = 0.0,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
    ) -> None:
        super().__init__(rates, divisor, weight_decay)
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum must be within [0, 1), got {momentum}")
        self._momentum = momentum
        self._nesterov = nesterov
        self._buffer: Tensor | None = None
        self._error: Number = 0.0

    def state(self) -> Memory:
        """The step, the decaying sum and, where updates are undone, the bound on its error."""
        return {**super().state(), **tensors(buffer=self._buffer), "error": np.array(float(self._error))}

    def restore(self, state: Memory) -> None:
        """Remember what :meth:`state` gave, or nothing."""
        super().restore(state)
        self._buffer = tensor(state, "buffer")
        self._error = float(state.get("error", 0.0))

    def _direction(self, gradient: Tensor) -> Tensor:
        self._buffer = self._momentum * _kept(self._buffer, gradient) + gradient
        return gradient + self._momentum * self._buffer if self._nesterov else self._buffer

    def _remembered(self) -> Number:
        length = _length(self._buffer) if self._buffer is not None else 0.0
        return self._momentum * (self._error + (3.0 * _eps(self._buffer) * length if self._buffer is not None else 0.0))

    def _undirected(self, direction: Tensor, error: Number) -> tuple[Tensor, Number]:
        mu, before, known = self._momentum, _kept(self._buffer, direction), self._error
        error = error + 3.0 * mu * _eps(before) * _length(before)
        if self._nesterov:
            gradient = (direction - mu**2 * before) / (1.0 + mu)
            self._buffer, self._error = mu * before + gradient, (mu * known + error) / (1.0 + mu)
            return gradient, (error + mu**2 * known) / (1.0 + mu)
        self._buffer, self._error = direction, error
        return direction - mu * before, error + mu * known


class Adam(Optimizer):
    """Descent along averaged gradients, every coordinate in units of its own recent size."""

    def __init__(
        self,
        rates: Rates,
        divisor: float = 1.0,
        weight_decay: float = 0.0,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(rates, divisor, weight_decay)
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} must be within [0, 1), got {beta}")
        if not eps > 0:
            raise ValueError(f"eps must be above 0, got {eps}")
        self._beta1, self._beta2, self._eps = beta1, beta2, eps * divisor
        self._first: Tensor | None = None
        self._second: Tensor | None = None

    def __call__(self, state: Tensor, noisy: Tensor) -> Tensor:
        """The next model, as a new tensor like ``state``."""
        rate, gradient = self._next_rate(), self._gradient(state, noisy)
        self._first = self._beta1 * _kept(self._first, gradient) + (1.0 - self._beta1) * gradient
        self._second = self._beta2 * _kept(self._second, gradient) + (1.0 - self._beta2) * gradient.square()
        weights = 1.0 - self._beta1**self._step, 1.0 - self._beta2**self._step
        size = self._second.sqrt() / sqrt(weights[1]) + self._eps
        return state - (rate / weights[0]) * self._first / size

    def state(self) -> Memory:
        """The step and both averages."""
        return {**super().state(), **tensors(first=self._first, second=self._second)}

    def restore(self, state: Memory) -> None:
        """Remember what :meth:`state` gave, or nothing."""
        super().restore(state)
        self._first, self._second = tensor(state, "first"), tensor(state, "second")


def update_of(options: FrozenMap, expected_batch_size: float, steps: int) -> Optimizer:
    """The update of a spec's training block over ``steps`` steps; raises ``ValueError`` naming what does not fit."""
    reduction = options["reduction"]
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction must be sum or mean, got {reduction!r}")
    divisor = expected_batch_size if reduction == "mean" else 1.0
    chosen = {key: value for key, value in (options.get("optimizer") or {}).items() if value is not None}
    kinds: dict[str, type[Optimizer]] = {"sgd": Sgd, "momentum": Momentum, "adam": Adam}
    kind = chosen.pop("kind", "sgd")
    if kind not in kinds:
        raise ValueError(f"optimizer must be sgd, momentum or adam, got {kind!r}")
    return kinds[kind](rates_of(options, steps), divisor, **chosen)


def _kept(memory: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if memory is None else memory.to(like)


def _rounding(state: Tensor, update: Tensor) -> Number:
    """A bound on the l2 norm of the rounding errors in ``update``: half a unit of ``state``, and a few of its own."""
    return 0.5 * _eps(state) * (_length(state) + 6.0 * _length(update))


def _length(vector: Tensor) -> Number:
    return at_hand(torch.linalg.vector_norm(vector, dtype=torch.float64))


def _eps(vector: Tensor) -> float:
    return torch.finfo(vector.dtype).eps
