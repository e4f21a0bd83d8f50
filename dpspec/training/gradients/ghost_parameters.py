"""Per-example gradients of one parameter, written out or as factors: squared norms, weighted sums, rows.

The gradient of a dense weight is B_i^T A_i for record i's inputs A_i and output gradients B_i. Its norm and a weighted
sum over records need no more than the factors, which is what makes norms "ghosts" of gradients that never existed
(Goodfellow 2015; Li, Tramer, Liang and Hashimoto 2022), and the sum can reuse them without a second backward pass
(Bu, Wang, Zha and Karypis 2023). The gradient that is added is the exact product of the float32 factors, up to the
rounding of float32 sums. Squared norms are float64 throughout, with the rounding of that arithmetic added on top
where terms can cancel: they are never below those of the gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

#: So many entries are copied to float64 at a time.
_SUMMED = 2**17


class Gradients(ABC):
    """The gradients of b records with respect to one parameter of shape ``shape``."""

    @abstractmethod
    def squares(self) -> Tensor:
        """The squared l2 norms (b,) in float64."""

    @abstractmethod
    def rows(self) -> Tensor:
        """The gradients themselves, (b, *shape)."""

    @abstractmethod
    def add(self, total: Tensor, weights: Tensor) -> None:
        """Add sum_i weights_i gradient_i to ``total`` (*shape) in place; weights (b,) float32."""

    @abstractmethod
    def only(self, kept: Tensor) -> Gradients:
        """Those of the records where ``kept`` (b,) is true."""


@dataclass(frozen=True)
class Rows(Gradients):
    """Written out: values (b, *shape)."""

    values: Tensor

    def squares(self) -> Tensor:
        """Summed in float64."""
        return squares_of(self.values)

    def rows(self) -> Tensor:
        """As they are."""
        return self.values

    def add(self, total: Tensor, weights: Tensor) -> None:
        """One product of a matrix and a vector."""
        rows = self.values.reshape(len(weights), total.numel())
        total.view(-1).addmv_(rows.T, weights.to(rows.dtype))

    def only(self, kept: Tensor) -> Rows:
        """A copy of the rows that are kept."""
        return Rows(self.values[kept])


@dataclass(frozen=True)
class Outer(Gradients):
    """sum_t outputs_it inputs_it^T: inputs (b, T, d), outputs (b, T, p), for a weight of shape (p, ...), d in all."""

    inputs: Tensor
    outputs: Tensor
    shape: tuple[int, ...]

    def squares(self) -> Tensor:
        """sum_st (a_s . a_t) (b_s . b_t), and |a|^2 |b|^2 where T = 1."""
        if self.inputs.shape[1] == 1:
            return squares_of(self.inputs) * squares_of(self.outputs)
        return gram_squares(self.inputs, self.outputs)

    def rows(self) -> Tensor:
        """(b, *shape)."""
        return torch.bmm(self.outputs.transpose(1, 2), self.inputs).view(-1, *self.shape)

    def add(self, total: Tensor, weights: Tensor) -> None:
        """One product of matrices over all records and positions."""
        weighted = self.outputs * weights.to(self.outputs.dtype)[:, None, None]
        total.view(len(total), -1).addmm_(weighted.flatten(0, 1).T, self.inputs.flatten(0, 1))

    def only(self, kept: Tensor) -> Outer:
        """Copies of the factors that are kept."""
        return Outer(self.inputs[kept], self.outputs[kept], self.shape)


@dataclass(frozen=True)
class Lookup(Gradients):
    """sum_t outputs_it at row tokens_it: tokens (b, T), outputs (b, T, p), for a table (count, p)."""

    tokens: Tensor
    outputs: Tensor
    count: int

    def squares(self) -> Tensor:
        """Outputs are first added up by token, in float64, since a token may come more than once in a record."""
        b, width = len(self.tokens), self.outputs.shape[-1]
        record = torch.arange(b, device=self.tokens.device)[:, None]
        keys, place = torch.unique(record * self.count + self.tokens, return_inverse=True)
        sums = self.outputs.new_zeros(len(keys), width, dtype=torch.float64)
        _add_rows(sums, place.flatten(), self.outputs.reshape(-1, width).double())
        return _add_rows(sums.new_zeros(b), keys // self.count, sums.square().sum(1))

    def rows(self) -> Tensor:
        """(b, count, p), mostly zeros."""
        b, length = self.tokens.shape
        rows = self.outputs.new_zeros(b, self.count, self.outputs.shape[-1])
        record = torch.arange(b, device=self.tokens.device).repeat_interleave(length)
        return rows.index_put_((record, self.tokens.flatten()), self.outputs.flatten(0, 1), accumulate=True)

    def add(self, total: Tensor, weights: Tensor) -> None:
        """Touches the rows of the table that the records use."""
        weighted = self.outputs * weights.to(self.outputs.dtype)[:, None, None]
        _add_rows(total, self.tokens.flatten(), weighted.flatten(0, 1))

    def only(self, kept: Tensor) -> Lookup:
        """Copies of what is kept."""
        return Lookup(self.tokens[kept], self.outputs[kept], self.count)


def _add_rows(total: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    """Add ``rows`` (m, ...) to the entries ``where`` (m,) of ``total`` in place, in the same order each time."""
    if total.is_cuda:
        return total.index_put_((where,), rows, accumulate=True)
    return total.index_add_(0, where, rows)


def squares_of(rows: Tensor) -> Tensor:
    """The squared l2 norm (b,) in float64 of rows (b, ...).

    Torch copies what it sums in another type: a few records at a time, so that the copy stays in the cache.
    """
    flat = rows.reshape(len(rows), prod(rows.shape[1:]))
    some = max(1, _SUMMED // max(1, flat.shape[1]))
    norms = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in torch.split(flat, some)]
    return (torch.cat(norms) if len(norms) > 1 else norms[0]).square_()


def gram_squares(inputs: Tensor, outputs: Tensor) -> Tensor:
    """||sum_t b_t a_t^T||^2 (b,) for inputs a (b, T, d) and outputs b (b, T, p), from two T x T matrices of products.

    Float64, and never below the exact value: the terms may cancel, so that a bound on what rounding can have taken,
    n 2^-52 (sum_t |a_t| |b_t|)^2 with n = d + p + T^2 operations per term, is added.
    """
    a, b = inputs.double(), outputs.double()
    ga, gb = torch.bmm(a, a.transpose(1, 2)), torch.bmm(b, b.transpose(1, 2))
    lengths = (ga.diagonal(dim1=1, dim2=2) * gb.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
    operations = a.shape[2] + b.shape[2] + a.shape[1] ** 2
    return ga.mul_(gb).sum((1, 2)) + operations * 2.0**-52 * lengths.square()


def gram_pays(positions: int, width: int, depth: int) -> bool:
    """Whether norms by inner products of T positions cost less than half of gradients (width, depth) written out.

    Those take T width depth multiplications, the inner products T^2 (width + depth) at twice the price each, since
    they are float64. With one position there is nothing to multiply.
    """
    return positions == 1 or 4 * positions * (width + depth) <= width * depth
