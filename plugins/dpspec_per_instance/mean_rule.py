"""Theorem 3.6 for means of batches, sampled, for many records at once.

Batches are rows of coins, their sums of clipped gradients one product of matrices that all records share: a record
changes its row's sum by b g and its size by b. With rows S_i + b_i g over c_i, everything that the theorem asks for is
made of the inner products of rows within one tuple, of rows with the outer batch, and of rows with the records.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dpspec_per_instance.tuples import Estimate, plug_in

Array: TypeAlias = np.ndarray[Any, Any]

#: So many numbers of pair products are held at once.
_HELD = 2**24


class Batches(NamedTuple):
    """Outer batches and tuples of inner ones: coins (outer, n) and (outer, inner, order, n), as float32."""

    outer: Array
    inner: Array


def draw(rng: np.random.Generator, records: int, rate: float, outer: int, inner: int, order: int) -> Batches:
    """Poisson batches of ``records`` records."""
    return Batches(
        (rng.random((outer, records), dtype=np.float32) < rate).astype(np.float32),
        (rng.random((outer, inner, order, records), dtype=np.float32) < rate).astype(np.float32),
    )


class _Rows(NamedTuple):
    """sums: of gradients; sizes: of batches; coins: (..., m) of the records; with ``inside`` they are part of both."""

    sums: Array
    sizes: Array
    coins: Array


def estimates(
    gradients: Array, points: Array, inside: Array | None, batches: Batches, coins: Batches | None, sigma: float
) -> tuple[Estimate, Estimate]:
    """Estimates of D(with || without) and D(without || with) of one step, (m,) each.

    gradients: (n, d), clipped, of all records of the data. points: (m, d), those of the audited records.
    inside: (m,), where the audited records stand in the data; None for records that are not in it, which ``coins`` of
        shapes (outer, m) and (outer, inner, order, m) then add.
    sigma: the deviation of the noise on the mean.
    """
    rows = [
        _Rows(
            (b.reshape(-1, b.shape[-1]) @ gradients).astype(np.float64).reshape(*b.shape[:-1], -1),
            b.sum(axis=-1, dtype=np.float64),
            b[..., inside] if coins is None else c,
        )
        for b, c in zip(batches, coins or batches, strict=True)
    ]
    order = rows[1].sums.shape[2]
    share = max(1, _HELD // max(1, rows[1].sizes.size * order))
    found: list[list[Estimate]] = [[], []]
    for left in range(0, len(points), share):
        some = slice(left, left + share)
        outer, inner = (_Rows(r.sums, r.sizes, r.coins[..., some].astype(np.float64)) for r in rows)
        for side, present in enumerate((True, False)):
            e = _exponents(outer, inner, points[some].astype(np.float64), present, coins is None) / sigma**2
            found[side].append(plug_in(e, order))
    first, second = (
        Estimate(np.concatenate([e.value for e in side]), np.concatenate([e.inner_size for e in side]))
        for side in found
    )
    return first, second


def _exponents(outer: _Rows, inner: _Rows, points: Array, present: bool, inside: bool) -> Array:
    """sum_{i<j} <v_i, v_j> of every tuple, (outer, inner, m). present: whether tuples have the record, or the outer."""
    beta_o, size_o = _part(outer, not present, inside)  # (o, m)
    beta, size = _part(inner, present, inside)  # (o, i, a, m)
    own = np.square(points).sum(axis=1)
    along_o, along = outer.sums @ points.T, inner.sums @ points.T  # (o, m), (o, i, a, m)
    gram = np.einsum("oiad,oibd->oiab", inner.sums, inner.sums)
    cross = np.einsum("oiad,od->oia", inner.sums, outer.sums)[..., None]
    square = np.square(outer.sums).sum(axis=1)[:, None]
    # u = <U_i, U_o>, w = |U_o|^2, and the sums over tuples of <U_i, U_j> and |U_i|^2
    u = (cross + beta_o[:, None, None] * along + beta * along_o[:, None, None] + beta * beta_o[:, None, None] * own) / (
        size * size_o[:, None, None]
    )
    w = (square + 2.0 * beta_o * along_o + beta_o**2 * own) / size_o**2
    diagonal = np.einsum("oiaa->oia", gram)[..., None]
    norms = (diagonal + 2.0 * beta * along + beta**2 * own) / size**2
    weights = 1.0 / size
    whole = np.einsum("oiam,oiab,oibm->oim", weights, gram, weights, optimize=True)
    reach = (weights * beta).sum(axis=2)
    whole += 2.0 * reach * (weights * along).sum(axis=2) + reach**2 * own
    a = inner.sums.shape[2]
    # |sum v|^2 - sum |v|^2 with v_i = U_i - U_o
    all_pairs = whole - 2.0 * a * u.sum(axis=2) + a**2 * w[:, None]
    same = norms.sum(axis=2) - 2.0 * u.sum(axis=2) + a * w[:, None]
    return np.asarray(0.5 * (all_pairs - same))


def _part(rows: _Rows, present: bool, inside: bool) -> tuple[Array, Array]:
    """How often g is added to each row, and the batch size, at least 1: the mean of an empty batch is 0."""
    sizes = rows.sizes[..., None]
    if inside:
        beta = np.zeros_like(rows.coins) if present else -rows.coins
    else:
        beta = rows.coins if present else np.zeros_like(rows.coins)
    return beta, np.maximum(sizes + beta, 1.0)
