"""Pairs of batches that differ in a record which is longer, larger or smaller than all others, or has another mask.

A step that scales all records by the longest one does not show it while another record is as long as the replaced one.
In the batches of a pair, the other records are therefore shorter or smaller.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

#: The smallest width of sequences, and the factor of a larger record.
_WIDTH, _SCALE = 4, 30.0

#: Factors of features, with both signs, as a loss is small for one of two labels; 1e30 overflows in squares. A record
#: of infinite or no numbers has these in place of all its features.
BOUNDLESS = (1e4, -1e4, 1e30, math.inf, math.nan)


def extreme_records(
    batch: Sequence[Tensor], randomness: random.Random, *, keeps_counts: bool
) -> list[tuple[int, list[Tensor], list[Tensor]]]:
    """Choose a row, a batch and the same batch with an extreme record in this row, several times.

    Args:
        batch: Tensors (b, ...) of the records.
        randomness: Chooses the row.
        keeps_counts: Whether to keep the number of different tokens of each record, which ghost norms of embeddings
            have as a shape.
    """
    size = len(batch[0])
    sequences = [is_sequence(tensor) for tensor in batch]
    lengths = [(t != padding_of(t)).sum(1) for t, has_lengths in zip(batch, sequences, strict=True) if has_lengths]
    total = torch.stack(lengths).sum(0) if lengths else torch.zeros(size)
    shortest = torch.nonzero(total == total.min())[:, 0].tolist()
    row = randomness.choice(shortest)
    pairs = [_pair(batch, sequences, row, torch.amin, torch.amax, fill=True)]
    if not keeps_counts:
        longest = torch.nonzero(total == total.max())[:, 0].tolist()
        row = randomness.choice(longest)
        pairs.append(_pair(batch, sequences, row, torch.amax, torch.amin, fill=False))
    return [pair for pair in pairs if any(not torch.equal(a, b) for a, b in zip(*pair[1:], strict=True))]


def _pair(
    batch: Sequence[Tensor],
    sequences: Sequence[bool],
    row: int,
    usual: Callable[[Tensor], Tensor],
    extreme: Callable[[Tensor], Tensor],
    *,
    fill: bool,
) -> tuple[int, list[Tensor], list[Tensor]]:
    """The batch with the ``usual`` number in columns, and with the ``extreme`` one at ``row``.

    fill: whether the extreme record has the full width and large features; else it has one token.
    """
    base, changed = [], []
    for tensor, has_lengths in zip(batch, sequences, strict=True):
        before = tensor.detach().clone()
        after = before
        if tensor.numel() == len(tensor) and tensor.dtype is not torch.bool:
            before[...] = usual(tensor)
            after = before.clone()
            after[row] = extreme(tensor)
        elif has_lengths:
            before = _shortened(before, row) if fill else before
            after = before.clone()
            after[row] = _filled(before, row) if fill else _single(before, row)
        elif tensor.is_floating_point() and fill:
            after = before.clone()
            after[row] *= _SCALE
        base.append(before)
        changed.append(after)
    return row, base, changed


def boundless_records(
    batch: Sequence[Tensor], randomness: random.Random
) -> list[tuple[int, list[Tensor], list[Tensor]]]:
    """Choose a row, and batches whose record there has features far beyond all others, as no loss is a limit for.

    Guards against spikes, such as a clamp of the mean loss or ``nan_to_num``, let such a record switch off the others.

    Args:
        batch: Tensors (b, ...) of the records.
        randomness: Chooses the row.

    Returns:
        The row, the batch, and the batch with another record, for each of the numbers :data:`BOUNDLESS`.
    """
    row, features = randomness.randrange(len(batch[0])), [is_features(tensor) for tensor in batch]
    changed = []
    for factor in BOUNDLESS if any(features) else ():
        values = [tensor.detach().clone() for tensor in batch]
        for value, has_features in zip(values, features, strict=True):
            if has_features:
                value[row] = value[row] * factor if math.isfinite(factor) else factor
        changed.append((row, [tensor.detach() for tensor in batch], values))
    return changed


def is_features(tensor: Tensor) -> bool:
    """Whether rows are real numbers, several for each record."""
    return tensor.is_floating_point() and tensor.numel() > len(tensor)


def is_sequence(tensor: Tensor) -> bool:
    """Whether rows (b, width) are tokens or a mask of different lengths, with padding at one end."""
    if tensor.dim() != 2 or tensor.shape[1] < _WIDTH or tensor.is_complex():
        return False
    if tensor.is_floating_point() and not bool(((tensor == 0.0) | (tensor == 1.0)).all()):
        return False
    tokens = tensor != padding_of(tensor)
    lengths = tokens.sum(1)
    width = torch.arange(tensor.shape[1], device=tensor.device)
    at_end = tokens == (width < lengths[:, None])
    at_start = tokens == (width >= tensor.shape[1] - lengths[:, None])
    return bool((lengths > 0).all()) and len(lengths.unique()) > 1 and bool(at_end.all() or at_start.all())  # type: ignore[no-untyped-call]


def padding_of(tokens: Tensor) -> int:
    """Return the value that probably fills short rows of tokens (b, length): -100, 0, or its mode."""
    usual = next((value for value in (-100, 0) if bool((tokens == value).any())), None)
    return int(tokens.flatten().mode().values) if usual is None else usual


def _shortened(batch: Tensor, row: int) -> Tensor:
    """Remove one token of each other record of full width: padding replaces it, so the number of values stays."""
    padding = padding_of(batch)
    for number in range(len(batch)):
        if number != row and bool((batch[number] != padding).all()):
            last = batch[number, -1].clone()
            equal = batch[number] == last
            equal[0] = False  # a record has a token, also if all its tokens are equal
            batch[number, equal] = padding
    return batch


def _filled(batch: Tensor, row: int) -> Tensor:
    """The record of a row in full width: its own tokens, and one that it does not have in place of the padding."""
    record, padding = batch[row].clone(), padding_of(batch)
    short = record == padding
    tokens = record[~short]
    if not bool(short.any()) or not len(tokens):
        return record
    record[short] = tokens[0]
    new_tokens = batch[(batch != padding) & ~torch.isin(batch, tokens)]
    if len(new_tokens):
        record[short.nonzero()[0]] = new_tokens[0]
    return record


def _single(batch: Tensor, row: int) -> Tensor:
    """The record of a row with its first token only."""
    record, padding = batch[row].clone(), padding_of(batch)
    tokens = (record != padding).nonzero()[:, 0]
    record[tokens[1:]] = padding
    return record
