"""An average over training runs, on the same test records: the level holds, however runs and records are spread."""

import math
from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import pytest
from scipy import stats

from dpspec.stats import utility

RNG = np.random.Generator

#: The probability that training gets each test record right, (records,), and the outcomes of each run, (records,).
Design = tuple[Callable[[RNG, int], np.ndarray], Callable[[RNG, np.ndarray], np.ndarray]]


def _records_alike(rng: RNG, records: int) -> np.ndarray:
    return np.full(records, 0.8)


def _records_apart(rng: RNG, records: int) -> np.ndarray:
    """If training is deterministic per record, all runs have the same accuracy."""
    return (rng.random(records) < 0.8).astype(float)


def _runs_alike(rng: RNG, chance: np.ndarray) -> np.ndarray:
    return (rng.random(len(chance)) < chance).astype(float)


def _runs_apart(rng: RNG, chance: np.ndarray) -> np.ndarray:
    return (rng.random() < chance).astype(float)


DESIGNS: dict[str, Design] = {
    f"{r.__name__}{t.__name__}": (r, t)
    for r, t in product((_records_alike, _records_apart), (_runs_alike, _runs_apart))
}


def drawn(design: Design, rng: RNG, runs: int, records: int) -> list[int]:
    chance = design[0](rng, records)
    return [int(design[1](rng, chance).sum()) for _ in range(runs)]


@pytest.mark.family
@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize(("runs", "records"), [(2, 20), (8, 60)])
def test_the_level_holds_for_the_pipeline_on_fresh_records(name: str, runs: int, records: int) -> None:
    """The claim is exactly true, 0.8, on average over training and over test records; no more than 5% reject it."""
    rng, times = np.random.default_rng(runs * records), 400
    every = [drawn(DESIGNS[name], rng, runs, records) for _ in range(times)]
    for test in (utility.average_at_least, utility.average_at_most):
        rejected = sum(test(counts, records, 0.8) <= 0.05 for counts in every)
        assert stats.binom.sf(rejected - 1, times, 0.05) > 1e-4


def test_by_all_outcomes_of_a_small_design() -> None:
    """Three runs on two records with independent outcomes: p <= alpha has at most probability alpha."""
    for value in (0.1, 0.5, 0.9):
        chance: dict[float, float] = {}
        for counts in product(range(3), repeat=3):
            p = utility.average_at_least(counts, 2, value)
            chance[p] = chance.get(p, 0.0) + math.prod(stats.binom.pmf(c, 2, value) for c in counts)
        total = 0.0
        for p in sorted(chance):
            total += chance[p]
            assert total <= p + 1e-12


def test_what_differs_is_seen() -> None:
    """Runs at 0.75 +- 0.01 reject a claim of 0.9 with 8 runs, and not with 2."""
    assert utility.average_at_most([7500, 7600, 7400, 7550, 7450, 7500, 7520, 7480], 10_000, 0.9) < 0.01
    assert utility.average_at_most([7500, 7600], 10_000, 0.9) > 0.05
    assert utility.average_at_most([10] * 20, 10_000, 0.9) < 1e-12
    assert utility.average_at_least([10_000] * 20, 10_000, 0.5) < 1e-3


def test_p_values_fall_as_the_claim_departs_from_the_runs() -> None:
    counts = [700, 720, 690, 710, 705, 695, 700, 702]
    values = np.linspace(0.0, 1.0, 101)
    below = [utility.average_at_least(counts, 1000, v) for v in values]
    above = [utility.average_at_most(counts, 1000, v) for v in values]
    assert all(a <= b + 1e-9 for a, b in pairwise(below))
    assert all(a >= b - 1e-9 for a, b in pairwise(above))
    assert below[0] == above[-1] == 0.0
    assert utility.average_at_least(counts, 1000, 0.7) == utility.average_at_most(counts, 1000, 0.71) == 1.0
    assert utility.average_at_least([], 1000, 0.1) == utility.average_at_least([0, 0], 1000, 0.0) == 1.0
    # The order of runs does not matter.
    assert utility.average_at_most(counts[::-1], 1000, 0.9) == pytest.approx(utility.average_at_most(counts, 1000, 0.9))


def test_the_level_holds_at_whatever_run_one_stops() -> None:
    """Test after every fourth of 40 runs that are all right or all wrong, and stop at the smallest p-value."""
    rng, times, rejected = np.random.default_rng(1), 100, 0
    for _ in range(times):
        counts = [100_000 * int(rng.random() < 0.5) for _ in range(40)]
        rejected += any(utility.average_at_least(counts[:n], 100_000, 0.5) <= 0.05 for n in range(4, 41, 4))
    assert stats.binom.sf(rejected - 1, times, 0.05) > 1e-4
