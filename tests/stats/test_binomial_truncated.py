"""Tests of truncated batches: their law by enumeration, how often they err, and what they see. Fixed seeds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom

from dpspec.contract import FrozenMap, Phase
from dpspec.stats.binomial import TruncatedSize
from dpspec.stats.conformance import sampling, step_tests, table
from dpspec.stats.conformance.batch_checks import BatchSums, SamplingSums
from dpspec.stats.conformance.evidence import RunEvidence

RECORDS, RATE, CAP, STEPS = 400, 0.1, 44, 300

PHASE = FrozenMap(
    {
        "steps": STEPS,
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "sampling": {"scheme": "truncated-poisson", "rate": RATE, "max_batch": CAP},
    }
)

Sizes = npt.NDArray[np.int64]


def least(sizes: Sizes) -> float:
    """The smallest p-value of all checks of a run that drew batches of these sizes."""
    sums = BatchSums(
        steps=len(sizes),
        total=int(sizes.sum()),
        squares=int((sizes**2).sum()),
        sizes=step_tests.summary(sizes.astype(float)),
    )
    run = RunEvidence(sampling_log=SamplingSums(records=RECORDS, batches=(sums,)))
    checks = [c for c in table.of_runs([Phase.of(PHASE)], [run]) if c.assumption == "sampling"]
    assert len(checks) >= 5
    return min(check.p_value for check in checks)


def drawn(rng: np.random.Generator, steps: int = STEPS, rate: float = RATE) -> Sizes:
    return rng.binomial(RECORDS, rate, steps)


def test_moments_and_tails_are_those_of_the_law() -> None:
    law = TruncatedSize(30, 0.4, 13)
    sizes = np.minimum(np.arange(31), 13)
    chances = binom.pmf(np.arange(31), 30, 0.4)
    mean = float(chances @ sizes)
    assert law.mean == pytest.approx(mean, rel=1e-12)
    assert law.variance == pytest.approx(float(chances @ (sizes - mean) ** 2), rel=1e-10)
    assert law.below(12, 1) == pytest.approx(binom.cdf(12, 30, 0.4))
    assert (law.below(13, 1), law.above(14, 1)) == (1.0, 0.0)
    never = TruncatedSize(30, 0.4, 99)
    assert (never.below(31, 1), never.above(31, 1), never.above(31 * 5, 5)) == (1.0, 0.0, 0.0)
    assert law.above(13, 1) == pytest.approx(binom.sf(12, 30, 0.4))
    three = np.convolve(np.convolve(*[np.bincount(sizes, chances)] * 2), np.bincount(sizes, chances))
    for total in (20, 30, 35, 39):
        assert law.below(total, 3) >= three[: total + 1].sum() * (1 - 1e-9)
        assert law.above(total, 3) >= three[total:].sum() * (1 - 1e-9)


@pytest.mark.ci
def test_runs_as_declared_are_hardly_ever_surprising() -> None:
    rng = np.random.default_rng(1)
    found = np.array([least(np.minimum(drawn(rng), CAP)) for _ in range(20)])
    assert np.sum(found <= 0.01) <= 6  # of 20 runs, with seven tests each: more has a chance below 1e-3
    assert found.min() > 1e-6


FAULTS: dict[str, Callable[[np.random.Generator], Sizes]] = {
    "the cap is left out": drawn,
    "another cap": lambda rng: np.minimum(drawn(rng), CAP - 4),
    "another rate": lambda rng: np.minimum(drawn(rng, rate=0.12), CAP),
    "batches of one size": lambda rng: np.full(STEPS, 39),
    "one batch over the cap": lambda rng: np.append(np.minimum(drawn(rng, STEPS - 1), CAP), CAP + 1),
    "one batch of nobody": lambda rng: np.append(np.minimum(drawn(rng, STEPS - 1), CAP), 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_as_declared_is_seen(fault: str) -> None:
    rng = np.random.default_rng(2)
    assert max(least(FAULTS[fault](rng)) for _ in range(2)) < 1e-6


def test_what_is_said_to_be_detectable_is_detected() -> None:
    law = TruncatedSize(RECORDS, RATE, CAP)
    rng = np.random.default_rng(3)
    total = int(np.minimum(drawn(rng), CAP).sum())
    promised = sampling.mean_size(STEPS, total, law).detectable
    assert promised is not None
    assert 0.0 < promised < 0.2
    lower = 0.1 * (1.0 - 1.5 * promised)
    rejected = 0
    for _ in range(50):
        sizes = np.minimum(drawn(rng, rate=lower), CAP)
        assert sizes.mean() < law.mean
        rejected += sampling.mean_size(STEPS, int(sizes.sum()), law).p_value <= 1e-6
    assert rejected >= 48


def test_always_full_batches_say_nothing_of_higher_rates() -> None:
    law = TruncatedSize(400, 0.5, 20)
    assert law.detectable(0.0, 1e-6, 100) is None
    assert sampling.mean_size(100, 2000, law).p_value == 1.0


def test_too_many_in_common_are_surprising_and_too_few_are_not() -> None:
    assert sampling.overlap(1, 300, 1000, 0.1, fewer=False).p_value < 1e-6
    assert sampling.overlap(1, 0, 1000, 0.1, fewer=False).p_value == 1.0
    assert sampling.overlap(1, 0, 1000, 0.1).p_value < 1e-6
