"""Discrete Gaussian noise, and contributions on its grid: exact sampling and sums in integers.

Noise x on the integers has probabilities in proportion to exp(-x^2 / (2 scale^2)). All comparisons are between
integers, so that each number has exactly this distribution if the generator's words are uniform (Canonne, Kamath and
Steinke 2020, Algorithms 1 to 3). ``docs/explanation/proofs/floating-point.md`` has the bound of a training with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from dpspec.accounting import DISCRETE_SCALE
from dpspec.contract.providers import GradientCanaries
from dpspec.training.device import send
from dpspec.training.gradients.persample import Clip, ClippedSum, Clipper, FlatModel
from dpspec.training.loop.contributions import RecordsAndCanaries

#: Words have 62 uniform bits: a product of a bound and a word never leaves int64.
_WORD_BITS = 62

#: Candidates for a number that is returned, above 1 / 0.47, and candidates at least.
_CANDIDATES, _FEWEST = 2.4, 64


def uniform_below(bounds: Tensor, source: torch.Generator) -> Tensor:
    """Uniform integers in [0, bound), one for each of ``bounds`` (n,), int64, from 1 to 2^61."""
    drawn = _words(bounds, source)
    limits = 2**_WORD_BITS - 2**_WORD_BITS % bounds  # a multiple of the bound, above half of all words
    while len(rejected := torch.nonzero(drawn >= limits).flatten()):
        drawn[rejected] = _words(bounds[rejected], source)
    remainders: Tensor = drawn % bounds
    return remainders


def _words(like: Tensor, source: torch.Generator) -> Tensor:
    """Uniform words of 62 bits; ``random_`` of int64 has 63 uniform ones."""
    drawn: Tensor = torch.empty_like(like).random_(generator=source) & (2**_WORD_BITS - 1)
    return drawn


def bernoulli_exp(numerators: Tensor, denominator: int, source: torch.Generator) -> Tensor:
    """Independent events (n,) of probability exp(-numerator / denominator) for ``numerators`` (n,), int64, at least 0.

    Algorithm 1: exp(-w) exp(-f) with the integer part w, one event of probability exp(-1) each, and the fraction f.
    """
    happens = torch.ones_like(numerators, dtype=torch.bool)
    wholes, fractions = numerators // denominator, numerators % denominator
    pending = torch.nonzero(wholes > 0).flatten()
    while len(pending):
        happened = _bernoulli_exp_fraction(torch.full_like(pending, denominator), denominator, source)
        happens[pending[~happened]] = False
        pending = pending[happened]
        wholes[pending] -= 1
        pending = pending[wholes[pending] > 0]
    pending = torch.nonzero(happens).flatten()
    happens[pending] = _bernoulli_exp_fraction(fractions[pending], denominator, source)
    return happens


def _bernoulli_exp_fraction(numerators: Tensor, denominator: int, source: torch.Generator) -> Tensor:
    """The same for ``numerators`` (n,) of at most the denominator.

    With events A_k of probability f / k, the first k without A_k is odd with probability exp(-f).
    """
    odd = torch.zeros_like(numerators, dtype=torch.bool)
    pending, k = torch.arange(len(numerators), device=numerators.device), 1
    while len(pending):
        bounds = torch.full_like(pending, denominator * k)
        ends = uniform_below(bounds, source) >= numerators[pending]
        odd[pending[ends]] = k % 2 == 1
        pending, k = pending[~ends], k + 1
    return odd


def discrete_laplace(count: int, scale: int, source: torch.Generator) -> Tensor:
    """Candidates (m,), m of about 0.6 ``count``, with probabilities in proportion to exp(-|x| / scale): Algorithm 2."""
    offsets = uniform_below(torch.full((count,), scale, dtype=torch.int64, device=source.device), source)
    offsets = offsets[bernoulli_exp(offsets, scale, source)]
    multiples, pending = torch.zeros_like(offsets), torch.arange(len(offsets), device=offsets.device)
    while len(pending):
        pending = pending[_bernoulli_exp_fraction(torch.ones_like(pending), 1, source)]
        multiples[pending] += 1
    sizes = offsets + scale * multiples
    negative = uniform_below(torch.full_like(sizes, 2), source) == 1
    values = torch.where(negative, -sizes, sizes)
    return values[~(negative & (sizes == 0))]


def discrete_gaussian(count: int, scale: int, source: torch.Generator) -> Tensor:
    """``count`` independent integers, int64, with probabilities in proportion to exp(-x^2 / (2 scale^2)): Algorithm 3.

    A candidate x of the discrete Laplace distribution is accepted with probability exp(-(|x| - scale)^2 / (2 scale^2)).

    Args:
        count: Number of integers.
        scale: From 1 to 2^20.
        source: The only source of randomness; the integers are on its device.
    """
    if not 1 <= scale <= DISCRETE_SCALE:
        raise ValueError(f"scale must be from 1 to {DISCRETE_SCALE}, got {scale}")
    accepted, missing = [torch.zeros(0, dtype=torch.int64, device=source.device)], count
    while missing > 0:
        values = discrete_laplace(math.ceil(_CANDIDATES * missing) + _FEWEST, scale, source)
        # Squares stay within int64. Such a candidate has probability e^-1024, and is accepted with e^-523000.
        values = values[values.abs() < 1024 * scale]
        chosen = values[bernoulli_exp((values.abs() - scale).square(), 2 * scale * scale, source)]
        accepted.append(chosen[:missing])
        missing -= len(accepted[-1])
    return torch.cat(accepted)


@dataclass(frozen=True, kw_only=True)
class IntegerClipper(Clipper):
    """A clipper whose contributions are integer vectors, in multiples of ``grid``.

    Attributes:
        grid: Spacing, the standard deviation of the noise divided by ``DISCRETE_SCALE``.
        largest_square: Largest squared norm of a contribution in spacings, (DISCRETE_SCALE / noise_multiplier)^2,
            rounded down.
    """

    grid: float
    largest_square: int

    @classmethod
    def of(cls, clip: Clipper, noise_multiplier: float) -> IntegerClipper:
        """The same clipping with the grid of noise with this multiplier."""
        return cls(
            clip_norm=clip.clip_norm,
            coordinate_bound=clip.coordinate_bound,
            per_layer=clip.per_layer,
            grid=noise_multiplier * clip.clip_norm / DISCRETE_SCALE,
            largest_square=math.floor((DISCRETE_SCALE / Fraction(noise_multiplier)) ** 2),
        )

    def integers(self, clipped: Tensor) -> Tensor:
        """Round a clipped gradient (P,) toward zero, which only shortens it, to integers (P,), int64.

        Float rounding before may leave it too long: then it shrinks by steps of 2^-20 of each value, rounded up.
        """
        rounded = torch.trunc(clipped.double() / self.grid).long()
        while int(rounded.square().sum()) > self.largest_square:
            rounded -= rounded.sign() * -(-rounded.abs() // 2**20)
        return rounded


class IntegerContributions(RecordsAndCanaries):
    """Sums of integer contributions, int64, of n real records, followed by ``count`` gradient canaries.

    Each gradient is computed alone: in a batch its last bits depend on the number of other records, and a rounded
    contribution would, too.
    """

    def __init__(self, model: FlatModel, x: Tensor, y: Tensor, canaries: GradientCanaries | None = None) -> None:
        super().__init__(model, x, y, canaries)
        self._zero = torch.zeros(model.size, dtype=torch.int64, device=model.device)

    def _real(self, state: Tensor, rows: Tensor, clip_norm: Clip) -> ClippedSum:
        gradients = (self._model.rows(state, self._x[row], self._y[row]) for row in torch.split(rows, 1))
        return self._sum(gradients, clip_norm)

    def _planted(self, canaries: GradientCanaries, state: Tensor, indices: Tensor, clip_norm: Clip) -> ClippedSum:
        indices = send(indices, state.device)
        return self._sum((canaries.gradients(index).to(state) for index in torch.split(indices, 1)), clip_norm)

    def _sum(self, gradients: Iterable[Tensor], clip: Clip) -> ClippedSum:
        """Sum of the contributions of ``gradients``, (1, P) each; none of an empty batch."""
        assert isinstance(clip, IntegerClipper)
        total, squares = self._zero.clone(), [0]
        for gradient in gradients:
            if len(gradient):
                integers = clip.integers(clip.rows(self._model.layout, gradient)[0])
                total += integers
                squares.append(int(integers.square().sum()))
        norms = torch.tensor(squares[1:], dtype=torch.float64, device=total.device).sqrt() * clip.grid
        return ClippedSum(total, norms)
