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
from collections.abc import Callable, Iterator, Sequence
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

    def settled(self) -> Gradients:
        """The same, holding on to nothing but themselves: what a chunk's gradients are until they are added up."""
        return self


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
class Pieces(Gradients):
    """Yet to be written out, some records after the others.

    pieces: gives values (n, *shape) that make up b.
    measured: their squared norms (b,), where there is a faster way than to write them out. Else no more than one piece
    is ever held for norms, and it is read while it is in the cache.
    """

    pieces: Callable[[], Iterator[Tensor]]
    measured: Callable[[], Tensor] | None = None

    def squares(self) -> Tensor:
        """As they are ``measured``, or summed in float64 piece by piece."""
        if self.measured is not None:
            return self.measured()
        return _joined([squares_of(piece) for piece in self.pieces()])

    def rows(self) -> Tensor:
        """(b, *shape), worked out each time."""
        return _joined(list(self.pieces()))

    def add(self, total: Tensor, weights: Tensor) -> None:
        """As those written out."""
        self.settled().add(total, weights)

    def only(self, kept: Tensor) -> Rows:
        """As of those written out."""
        return self.settled().only(kept)

    def settled(self) -> Rows:
        """Written out."""
        return Rows(self.rows())


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
    parts = [flat] if len(flat) <= some else torch.split(flat, some)
    return _joined([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts]).square_()


def _joined(parts: list[Tensor]) -> Tensor:
    """One after the other; a single one as it is."""
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def gram_squares(inputs: Tensor, outputs: Tensor) -> Tensor:
    """||sum_t b_t a_t^T||^2 (b,) for inputs a (b, T, d) and outputs b (b, T, p), from two T x T matrices of products.

    Float64, and never below the exact value: the terms may cancel, so that a bound on what rounding can have taken,
    n 2^-52 (sum_t |a_t| |b_t|)^2 with n = d + p + T^2 operations per term, is added.
    """
    a, b = inputs.double(), outputs.double()
    ga, gb = torch.bmm(a, a.transpose(1, 2)), torch.bmm(b, b.transpose(1, 2))
    return _of_products(ga, gb, a.shape[2] + b.shape[2])


def _of_products(ga: Tensor, gb: Tensor, operations: int) -> Tensor:
    """:func:`gram_squares` from inner products (b, T, T), which took at most ``operations`` a pair; ``ga`` is spent."""
    lengths = (ga.diagonal(dim1=1, dim2=2) * gb.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
    operations += ga.shape[1] ** 2
    return ga.mul_(gb).sum((1, 2)) + operations * 2.0**-52 * lengths.square()


def gram_pays(positions: int, width: int, depth: int) -> bool:
    """Whether norms by inner products of T positions cost less than half of gradients (width, depth) written out.

    Those take T width depth multiplications, the inner products T^2 (width + depth) at twice the price each, since
    they are float64. With one position there is nothing to multiply.
    """
    return positions == 1 or 4 * positions * (width + depth) <= width * depth


def convolved_squares(
    x: Tensor,
    outputs: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """:func:`gram_squares` (b,) of a convolution's weight: inputs (b, c, ...), gradients of outputs (b, p, ...).

    Nothing is unfolded: what two output positions see has the inner product sum_o G[s + o, t + o], over the kernel's
    offsets o, of the inner products G of the c channels at two pixels, so that each is formed once and not once for
    every offset. With n operations a term that are no more than those of the unfolded input, its bound holds.
    """
    b, spatial = len(x), len(kernel)
    pixels, rows = x.flatten(2).double(), outputs.flatten(2).double()
    products = torch.bmm(pixels.transpose(1, 2), pixels).view(b, *x.shape[2:], *x.shape[2:])
    for axis, length in enumerate(outputs.shape[2:]):
        pair, how = (1 + axis, 1 + spatial + axis), (kernel[axis], stride[axis], padding[axis], dilation[axis])
        products = _diagonal_sums(products, pair, length, *how)
    seen = products.view(b, rows.shape[2], rows.shape[2])
    return _of_products(seen, torch.bmm(rows.transpose(1, 2), rows), prod(kernel) * x.shape[1] + rows.shape[1])


def _diagonal_sums(
    products: Tensor, pair: tuple[int, int], length: int, size: int, step: int, padding: int, gap: int
) -> Tensor:
    """sum_o products[step i + gap o - padding, step j + gap o - padding] along a pair of axes, o < size, i, j < length.

    What lies in the padding is zero.
    """
    side = products.shape[pair[0]]
    found = products.new_zeros([length if axis in pair else n for axis, n in enumerate(products.shape)])
    for offset in range(size):
        shift = gap * offset - padding
        first, last = max(0, -(shift // step)), min(length, (side - 1 - shift) // step + 1)
        if first < last:
            here, there = slice(first, last), slice(step * first + shift, step * (last - 1) + shift + 1, step)
            to = tuple(here if axis in pair else slice(None) for axis in range(products.ndim))
            found[to] += products[tuple(there if axis in pair else slice(None) for axis in range(products.ndim))]
    return found


def convolved_pays(pixels: int, positions: int, width: int, depth: int, channels: int) -> bool:
    """:func:`gram_pays` for :func:`convolved_squares`: c channels at S pixels, p at T positions."""
    return 4 * (pixels**2 * channels + positions**2 * width) <= positions * width * depth
