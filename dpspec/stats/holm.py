"""Holm's step-down adjustment of p-values, which controls the family-wise error under any dependence."""

from __future__ import annotations

from collections.abc import Sequence


def adjust(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values: in ascending order, adjusted_(i) = min(1, max over j <= i of (n - j + 1) p_(j)) (Holm 1979).

    >>> adjust([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    if any(not 0.0 <= p <= 1.0 for p in p_values):
        raise ValueError("p-values must lie in [0, 1]")
    n = len(p_values)
    adjusted = [0.0] * n
    so_far = 0.0
    for rank, index in enumerate(sorted(range(n), key=lambda k: p_values[k])):
        so_far = max(so_far, min(1.0, (n - rank) * p_values[index]))
        adjusted[index] = so_far
    return adjusted
