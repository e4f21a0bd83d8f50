"""Of two directions the larger answer is asked for, and the other is narrowed no further than that takes."""

from __future__ import annotations

import dataclasses

import pytest

from dpspec.accounting import DIRECTIONS, Discrete, Laplace, Mixture, PrivacyLoss
from dpspec.accounting.grid import Pair


@pytest.mark.parametrize("question", ["epsilon", "delta"])
@pytest.mark.parametrize("width", [1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize(
    "pair",
    [
        Mixture.poisson(1, 0.02, 0.9),
        Mixture.poisson(4, 0.02, 1.5),
        Laplace(2.0, 1.0, 0.3),
        Discrete([0.05, 0.9, 0.05], [0.1, 0.85, 0.05]),
        Discrete([0.1, 0.85, 0.05], [0.05, 0.9, 0.05]),
    ],
    ids=["record", "group", "laplace", "absent-first is worse", "present-first is worse"],
)
def test_of_both_directions_the_worse_counts(pair: Pair, width: float, question: str) -> None:
    """The smaller one is not narrowed to the end: that moves neither end of the larger one beyond its width."""
    both = PrivacyLoss.of(pair).compose(50)
    sides = [dataclasses.replace(both, direction=side) for side in DIRECTIONS]
    found, first, second = (
        one.epsilon(1e-5, width=width) if question == "epsilon" else one.delta(0.5, width=width)
        for one in (both, *sides)
    )
    worse = first.worse(second)
    assert found.relative_width <= width
    assert found.lower <= worse.upper
    assert worse.lower <= found.upper
