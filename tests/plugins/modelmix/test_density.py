"""What the pair of the bound leaks: at or below the bound."""

from __future__ import annotations

import itertools

import pytest
from support.modelmix_densities import FIGURE, loss_of_pair

from dpspec_modelmix import theory
from dpspec_modelmix.options import Segment


@pytest.mark.parametrize(("ratio", "p", "value"), [(0.075, 25, 13.944933), (0.075, 100, 12.829683), (0.3, 100, 3.932)])
def test_the_truth_of_figure_3_lies_below_the_bound(ratio: float, p: int, value: float) -> None:
    """Epsilon of the pair by inverting transforms at 25 digits (mpmath)."""
    assert value < theory.mixed_epsilon([FIGURE[ratio, p]], 1e-5).epsilon


@pytest.mark.parametrize(
    ("q", "s", "t", "p"),
    [
        *itertools.product((0.02, 0.2, 1.0), (0.4, 1.5), (0.0, 3.0, 40.0), (1,)),
        *((1.0, 1.5, t, 9) for t in (3.0, 40.0)),
    ],
)
def test_the_truth_lies_at_or_below_the_bound_in_many_settings(q: float, s: float, t: float, p: int) -> None:
    segment = Segment(20, q, s, t, p)
    bound, improved = (theory.mixed_epsilon([segment], 1e-5, how).epsilon for how in ("mironov", "improved"))
    assert loss_of_pair(segment).epsilon(1e-5).upper <= improved * (1 + 1e-6)
    assert improved <= bound * (1 + 1e-9)
