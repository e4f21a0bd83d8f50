"""The worst of all pairs of runs is found without looking at all pairs: against all pairs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dpspec.stats.conformance import measurement, noise_checks
from dpspec.stats.conformance.evidence.measured import FirstResidual


def firsts(count: int, seed: int, again: tuple[int, int] | None = None) -> list[FirstResidual]:
    source = np.random.default_rng(seed)
    rows = source.normal(size=(count, 40)) * source.uniform(0.5, 2.0, size=(count, 1))
    if again is not None:
        rows[again[1]] = -0.9 * rows[again[0]]
    scales = source.uniform(0.8, 1.5, size=(count, 2))
    return [
        FirstResidual(row=tuple(row.tolist()), least=float(a * a), variance=float(a * a * 40 * b))
        for row, (a, b) in zip(rows, scales, strict=True)
    ]


@pytest.mark.parametrize(("count", "again"), [(2, None), (7, None), (300, None), (300, (20, 299)), (40, (0, 39))])
def test_residuals_of_the_worst_pair_are_those_of_all_pairs(count, again):
    found = firsts(count, count, again)
    every = [noise_checks._two_runs(one, other) for one, other in combinations(found, 2)]
    pairs = noise_checks._suspects([one.row for one in found], unit=True)
    some = [noise_checks._two_runs(found[i], found[j]) for i, j in pairs]
    assert len(pairs) <= count
    expected = measurement.worst("independent-noise", every, "measured", "")
    chosen = measurement.worst("independent-noise", some, "measured", "", len(every))
    assert (chosen.p_value, chosen.test) == (expected.p_value, expected.test)
    if expected.p_value < 1.0 or again:
        assert chosen == expected


@pytest.mark.parametrize("again", [None, (3, 260)])
def test_products_of_the_worst_pair_are_those_of_all_pairs(again):
    rows = [np.asarray(one.row) for one in firsts(280, 5, again)]
    every = [abs(float(a @ b)) for a, b in combinations(rows, 2)]
    some = [abs(float(rows[i] @ rows[j])) for i, j in noise_checks._suspects(rows, unit=False)]
    assert max(some) == pytest.approx(max(every), rel=1e-12)


def test_rows_of_different_lengths_are_all_looked_at():
    assert noise_checks._suspects([[1.0], [1.0, 2.0], [3.0]], unit=True) == [(0, 1), (0, 2), (1, 2)]
