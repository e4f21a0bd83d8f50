"""Per-example gradients of one parameter, written out or factored.

Norms ("ghost norms": Goodfellow 2015; Li, Tramer, Liang and Hashimoto 2022) and weighted sums (Bu, Wang, Zha and
Karypis 2023) need only the factors. Squared norms are float64 and never below the gradient's: if terms can cancel, a
bound on rounding is added.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

#: Number of entries converted to float64 per piece.
_SUMMED = 2**17


class Gradients(ABC):
    @abstractmethod
    def squares(self) -> Tensor: ...

    @abstractmethod
    def rows(self) -> Tensor: ...

    @abstractmethod
    def add(self, total: Tensor, weights: Tensor) -> None:
        """Add sum_i weights_i gradient_i to ``total`` (*shape) in place; weights (b,) float32."""

    def settled(self) -> Gradients:
        """Equivalent gradients without references to other tensors, kept until a chunk is summed."""
        return self


@dataclass(frozen=True)
class Rows(Gradients):
    values: Tensor

    def squares(self) -> Tensor:
        return squares_of(self.values)

    def rows(self) -> Tensor:
        return self.values

    def add(self, total: Tensor, weights: Tensor) -> None:
        rows = self.values.reshape(len(weights), total.numel())
        total.view(-1).addmv_(rows.T, weights.to(rows.dtype))


@dataclass(frozen=True)
class Pieces(Gradients):
    """Gradients that ``pieces`` writes out on demand as values (n, *shape), b in total."""

    pieces: Callable[[], Iterator[Tensor]]

    def squares(self) -> Tensor:
        return _joined([squares_of(piece) for piece in self.pieces()])

    def rows(self) -> Tensor:
        return _joined(list(self.pieces()))

    def add(self, total: Tensor, weights: Tensor) -> None:
        self.settled().add(total, weights)

    def settled(self) -> Rows:
        return Rows(self.rows())


@dataclass(frozen=True)
class Outer(Gradients):
    """sum_t outputs_it inputs_it^T: inputs (b, T, d), outputs (b, T, p), for a weight (p, ...) of p d entries."""

    inputs: Tensor
    outputs: Tensor
    shape: tuple[int, ...]

    def squares(self) -> Tensor:
        """sum_st (a_s . a_t) (b_s . b_t), which is |a|^2 |b|^2 for T = 1."""
        if self.inputs.shape[1] == 1:
            return squares_of(self.inputs) * squares_of(self.outputs)
        return gram_squares(self.inputs, self.outputs)

    def rows(self) -> Tensor:
        return torch.bmm(self.outputs.transpose(1, 2), self.inputs).view(-1, *self.shape)

    def add(self, total: Tensor, weights: Tensor) -> None:
        weighted = self.outputs * weights.to(self.outputs.dtype)[:, None, None]
        total.view(len(total), -1).addmm_(weighted.flatten(0, 1).T, self.inputs.flatten(0, 1))


@dataclass(frozen=True)
class Lookup(Gradients):
    """sum_t outputs_it at row tokens_it: tokens (b, T), outputs (b, T, p), for a table (count, p)."""

    tokens: Tensor
    outputs: Tensor
    count: int

    def squares(self) -> Tensor:
        """Sum outputs by token in float64 first, because a token may repeat within a record."""
        b, width = len(self.tokens), self.outputs.shape[-1]
        record = torch.arange(b, device=self.tokens.device)[:, None]
        keys, place = torch.unique(record * self.count + self.tokens, return_inverse=True)
        sums = self.outputs.new_zeros(len(keys), width, dtype=torch.float64)
        _add_rows(sums, place.flatten(), self.outputs.reshape(-1, width).double())
        return _add_rows(sums.new_zeros(b), keys // self.count, sums.square().sum(1))

    def rows(self) -> Tensor:
        b, length = self.tokens.shape
        rows = self.outputs.new_zeros(b, self.count, self.outputs.shape[-1])
        record = torch.arange(b, device=self.tokens.device).repeat_interleave(length)
        return rows.index_put_((record, self.tokens.flatten()), self.outputs.flatten(0, 1), accumulate=True)

    def add(self, total: Tensor, weights: Tensor) -> None:
        weighted = self.outputs * weights.to(self.outputs.dtype)[:, None, None]
        _add_rows(total, self.tokens.flatten(), weighted.flatten(0, 1))


def _add_rows(total: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    """Add ``rows`` (m, ...) to the entries ``where`` (m,) of ``total`` in place, deterministically."""
    if total.is_cuda:
        return total.index_put_((where,), rows, accumulate=True)
    return total.index_add_(0, where, rows)


def squares_of(rows: Tensor) -> Tensor:
    """Squared l2 norm (b,), float64, of rows (b, ...).

    torch copies the operand of a sum in another dtype, so rows are processed in pieces that fit the cache.
    """
    flat = rows.reshape(len(rows), prod(rows.shape[1:]))
    some = max(1, _SUMMED // max(1, flat.shape[1]))
    parts = [flat] if len(flat) <= some else torch.split(flat, some)
    return _joined([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts]).square_()


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def gram_squares(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Squared norm (b,) of sum_t b_t a_t^T for vectors a (b, T, d) and b (b, T, p), from two Gram matrices, rounded up.

    The terms may cancel, so n 2^-52 (sum_t |a_t| |b_t|)^2 is added, with n = d + p + T^2 operations per term.
    """
    a, b = inputs.double(), outputs.double()
    ga, gb = torch.bmm(a, a.transpose(1, 2)), torch.bmm(b, b.transpose(1, 2))
    lengths = (ga.diagonal(dim1=1, dim2=2) * gb.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
    operations = a.shape[2] + b.shape[2] + a.shape[1] ** 2
    return ga.mul_(gb).sum((1, 2)) + operations * 2.0**-52 * lengths.square()


def gram_pays(positions: int, width: int, depth: int) -> bool:
    """Whether T^2 (width + depth) float64 products of Gram matrices cost less than half of T width depth."""
    return positions == 1 or 4 * positions * (width + depth) <= width * depth
