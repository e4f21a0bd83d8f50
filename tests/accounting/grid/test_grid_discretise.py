"""Cells to measures: what chords keep, and what removing kinks may do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.accounting import Cells
from dpspec.accounting.grid import discretize_from_above, discretize_from_below, remove_kinks


def test_chords_keep_both_masses() -> None:
    cells = Cells(
        lowest=-0.2,
        spacing=0.1,
        index=np.array([0, 1, 4, 5]),
        mass=np.array([0.2, 0.3, 0.1]),
        excess=np.array([0.01, 0.04, 0.005]),
        error=np.zeros(3),
        slip=np.zeros(3),
        shift=0.0,
        below=0.0,
        above=0.05,
    )
    atoms = discretize_from_above(cells)
    second = float(np.sum((cells.mass - cells.excess) * np.exp(-(cells.lowest + cells.spacing * cells.index[:-1]))))
    assert atoms.masses.sum() == pytest.approx(0.6, rel=1e-14)
    assert atoms.masses @ np.exp(-(atoms.lowest + atoms.spacing * atoms.index)) == pytest.approx(second, rel=1e-13)
    assert atoms.infinity == 0.05
    merged = discretize_from_below(cells)
    assert merged.masses.sum() <= 0.65 + 1e-14
    assert np.all(merged.masses >= 0.0)


@given(
    st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=30),
    st.lists(st.integers(1, 5), min_size=30, max_size=30),
    st.floats(0.01, 0.5),
)
def test_removing_kinks_only_lowers_a_curve(values: list[float], gaps: list[int], spacing: float) -> None:
    nodes = np.array(values)
    losses = spacing * np.cumsum(gaps[: len(nodes)])
    after = remove_kinks(nodes, losses)
    assert np.all(after >= 0.0)
    for epsilon in np.concatenate((losses, 0.5 * (losses[1:] + losses[:-1]), [losses[0] - 1.0])):
        weights = -np.expm1(np.minimum(epsilon - losses, 0.0))
        # a curve is compared with what lies over it, which is never below zero
        assert after @ weights <= max(nodes @ weights, 0.0) + 1e-12 or after @ weights <= 1e-12


def test_a_measure_without_kinks_is_left_alone() -> None:
    nodes = np.array([0.1, 0.0, 0.5])
    np.testing.assert_array_equal(remove_kinks(nodes, np.array([0.0, 1.0, 2.0])), nodes)
