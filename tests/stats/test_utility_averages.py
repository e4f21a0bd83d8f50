"""An average over training runs, on the same test records: the level holds, however runs and records are spread."""

import math
from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import pytest
from scipy import stats
from support.specs import bare

from dpspec.contract import FrozenMap, Trial
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
    values = np.linspace(0.0, 1.0, 51)
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


@pytest.mark.ci
@pytest.mark.parametrize("shape", [(0.5, 4.5), (4.5, 0.5), (3.0, 3.0)])
def test_the_level_holds_for_losses(shape: tuple[float, float]) -> None:
    """Beta-distributed losses whose mean is exactly the claimed one, with dependence by a shift of each run."""
    rng, times, records = np.random.default_rng(7), 400, 50
    mean = shape[0] / sum(shape)
    rejected = dict.fromkeys(("least", "most", "model-least", "model-most"), 0)
    for _ in range(times):
        tested = rng.beta(*shape, size=records)  # the expected loss of each test record
        runs = [float((rng.random(records) < tested).mean()) if rng.random() < 0.5 else tested.mean() for _ in range(4)]
        shares = [math.floor(1e9 * run) for run in runs]
        rejected["least"] += utility.bounded_average_at_least(shares, records, mean) <= 0.05
        rejected["most"] += utility.bounded_average_at_most(shares, records, mean) <= 0.05
        rejected["model-least"] += utility.bounded_mean_at_least(shares[0], records, mean) <= 0.05
        rejected["model-most"] += utility.bounded_mean_at_most(shares[0], records, mean) <= 0.05
    assert all(stats.binom.sf(count - 1, times, 0.05) > 1e-4 for count in rejected.values()), rejected


def test_losses_that_differ_are_seen() -> None:
    shares = [400_000_000]
    assert utility.bounded_average_at_least(20 * shares, 5000, 0.2) < 0.05
    assert utility.bounded_average_at_least(shares, 5000, 0.39) > 0.05
    assert utility.bounded_average_at_most(20 * shares, 5000, 0.7) < 0.05
    assert utility.bounded_average_at_most(shares, 5000, 0.41) > 0.05
    assert utility.bounded_mean_at_least(10**9, 100, 0.5) == pytest.approx(0.5**100)
    assert utility.bounded_mean_at_most(0, 100, 0.5) == pytest.approx(0.5**100, rel=1e-5)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"mean": 2.0, "records": 5, "largest": 1.0}, "mean must be at most 1"),
        ({"mean": 1.001, "records": 5, "largest": 1.0}, "mean must be at most 1"),
        ({"mean": 0.0, "records": 5, "largest": 0.0}, "largest must be positive"),
        (3, "mapping from splits"),
    ],
)
def test_impossible_losses_are_refused(block: object, message: str) -> None:
    evidence = {"internal": {"loss": block if isinstance(block, int) else {"test": block}}}
    trial = Trial(index=0, evidence=FrozenMap(evidence))
    with pytest.raises(ValueError, match=message):
        list(utility.losses(bare(), [trial]))


def test_accuracies_without_splits_are_refused() -> None:
    evidence = {"internal": {"accuracy": 3}}
    with pytest.raises(ValueError, match="accuracy must be a mapping from splits, got '3'"):
        list(utility.accuracies(bare(), [Trial(index=0, evidence=FrozenMap(evidence))]))
