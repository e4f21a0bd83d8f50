"""Outcomes that miss the nodes of a finer grid: where they lie well on a coarser one's, its interval counts too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest

from dpspec.accounting import Mixture, PrivacyLoss
from dpspec.accounting.profiles import Question
from dpspec.accounting.solver import solve


@pytest.mark.parametrize(
    ("present", "absent", "steps", "epsilon"),
    [([37, 55, 52, 49], [5, 17, 8, 32], 40, 0.2), ([28, 31, 37, 1], [14, 30, 53, 32], 40, 1.0)],
)
def test_few_outcomes_are_known_as_well_as_asked(
    present: Sequence[int], absent: Sequence[int], steps: int, epsilon: float
) -> None:
    """Oracle: the sum over all numbers of each outcome. The lower ends were 0.57 and 0.22 of the upper ones too low."""
    first, second = ([one / sum(law) for one in law] for law in (present, absent))
    found = PrivacyLoss.discrete(first, second, "present-first").compose(steps).delta(epsilon, width=1e-2)
    true = math.fsum(
        max(0.0, ways * (_chance(first, counts) - math.exp(epsilon) * _chance(second, counts)))
        for ways, counts in _counts(steps, len(first))
    )
    assert found.lower * (1.0 - 1e-12) <= true <= found.upper * (1.0 + 1e-12)
    assert found.relative_width <= 1e-2


def test_answers_that_share_a_composition_are_each_known_as_well_as_asked() -> None:
    """Oracle: the step's exact profile, to which the other step of rate 1e-40 adds nothing that a width shows."""
    step, deltas = Mixture.poisson(16, 1.28552e-4, 0.81783), [1.2e-26, 4.4e-17, 5.5e-30]
    phases = ((step, 1), (Mixture.poisson(1, 1e-40, 1.0), 1))
    questions = [*(Question("epsilon", math.log(delta)) for delta in deltas), Question("delta", 16.330572194351348)]
    answers = solve(phases, ("present-first",), questions, [1e-2] * len(questions))[: len(deltas)]
    for found, true in zip(answers, PrivacyLoss.of(step, "present-first").epsilons(deltas), strict=True):
        assert found.lower <= true.upper * (1.0 + 1e-9)
        assert true.lower <= found.upper * (1.0 + 1e-9)
        assert found.relative_width <= 1e-2


def _chance(law: Sequence[float], counts: Sequence[int]) -> float:
    return math.prod(one**count for one, count in zip(law, counts, strict=True))


def _counts(total: int, kinds: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """All ways to share ``total`` steps among outcomes, with the number of their orders."""
    if kinds == 1:
        yield 1, (total,)
        return
    for here in range(total + 1):
        for ways, rest in _counts(total - here, kinds - 1):
            yield math.comb(total, here) * ways, (here, *rest)
