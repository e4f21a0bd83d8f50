"""Intervals of the executed run have their coverage, and follow changes of the run."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.phases import phase_of

from dpspec.contract import FrozenMap, Json, freeze
from dpspec.stats import as_run
from dpspec.stats.conformance.batch_checks import BatchSums, SamplingSums
from dpspec.stats.conformance.canary_contributions import GroupSums, PlantedSums
from dpspec.stats.conformance.evidence import LagProducts, NoiseSums, NormSums, OutsideNoise, RunEvidence, write_run

STEPS, RATE, RECORDS, GROUPS, OUTSIDE, SIGMA = 20, 0.3, 100, 400, 50, 2.0
PHASE = phase_of("poisson", STEPS, SIGMA, rate=RATE)


def outside_noise(rng: np.random.Generator, noise: float) -> OutsideNoise:
    degrees = STEPS * OUTSIDE
    return OutsideNoise(statistic=float(noise**2 * rng.chisquare(degrees)), degrees=degrees)


def planted(rng: np.random.Generator, noise: float, clip: float, rate: float) -> PlantedSums:
    moments = []
    for coin in (0, 1):
        sums = SIGMA * noise * math.sqrt(STEPS) * rng.standard_normal(GROUPS)
        sums = sums + coin * clip * rng.binomial(STEPS, rate, GROUPS)
        moments.append(GroupSums(1, coin, GROUPS, float(sums.sum()), float((sums**2).sum())))
    return PlantedSums(
        draws=STEPS * RATE,
        moments=tuple(moments),
        outside=STEPS * SIGMA**2,
        inclusion=STEPS * RATE * (1 - RATE),
        rounding=0.0,
    )


def noise_log(rng: np.random.Generator, noise: float, width: int = 200) -> NoiseSums:
    return NoiseSums(
        statistic=float(noise**2 * rng.chisquare(STEPS * width)),
        degrees=STEPS * width,
        steps=STEPS,
        width=width,
        lag=LagProducts(lag=1, products=0.0),
        pair=0.0,
    )


def sampling_log(rng: np.random.Generator, rate: float) -> SamplingSums:
    sizes = rng.binomial(RECORDS, rate, STEPS)
    batch = BatchSums(steps=STEPS, total=int(sizes.sum()), squares=int((sizes**2).sum()))
    return SamplingSums(records=RECORDS, batches=(batch,))


def evidence(
    rng: np.random.Generator, noise: float = 1.0, clip: float = 1.0, rate: float = RATE, without: str = ""
) -> FrozenMap:
    run = RunEvidence(
        noise=None if without == "noise" else outside_noise(rng, noise),
        signal=None if without == "signal" else planted(rng, noise, clip, rate),
        noise_log=None if without == "noise_log" else noise_log(rng, noise),
        norm_log=None if without == "norm_log" else NormSums(largest=clip),
        sampling_log=None if without == "sampling_log" else sampling_log(rng, rate),
    )
    found: Json = write_run(run)
    return FrozenMap(found)


def holds(found: as_run.Ran, noise: float, clip: float, rate: float) -> bool:
    within = [(found.noise, noise), (found.contribution, clip), (found.rates[0], rate)]
    return all(low <= truth <= high for (low, high), truth in within)


@pytest.mark.family
@pytest.mark.parametrize(("noise", "clip", "rate"), [(1.0, 1.0, RATE), (0.9, 1.0, RATE), (1.0, 1.5, 0.2)])
def test_all_intervals_hold_together_as_often_as_they_say(noise: float, clip: float, rate: float) -> None:
    """By chance one of these tests fails once in a thousand times, had the intervals no room."""
    rng = np.random.default_rng(3)
    pairs = [as_run.ran([PHASE], [evidence(rng, noise, clip, rate)], 0.8) for _ in range(400)]
    for reading in (0, 1):
        missed = sum(not holds(pair[reading], noise, clip, rate) for pair in pairs)
        assert missed <= stats.binom.ppf(0.999, 400, 0.2)


def test_each_interval_misses_with_its_share() -> None:
    rng = np.random.default_rng(4)
    kept = evidence(rng)
    measured, reported = as_run.ran([PHASE], [kept], 0.9)
    assert sum(as_run.SHARES.values()) == pytest.approx(1.0)
    error = 0.05 * as_run.SHARES["noise"]
    log, seen = kept["noise_log"], kept["internal"]["noise"]
    assert stats.chi2.cdf(seen["statistic"] / measured.noise[1] ** 2, seen["degrees"]) == pytest.approx(error)
    assert stats.chi2.sf(log["statistic"] / reported.noise[0] ** 2, log["degrees"]) == pytest.approx(error)
    assert stats.chi2.cdf(log["statistic"] / reported.noise[1] ** 2, log["degrees"]) == pytest.approx(error)
    drawn, chances = kept["sampling_log"]["batches"][0]["total"], STEPS * RECORDS
    low, high = reported.rates[0]
    assert stats.binom.sf(drawn - 1, chances, low) == pytest.approx(0.05 * as_run.SHARES["rate"], rel=1e-6)
    assert stats.binom.cdf(drawn, chances, high) == pytest.approx(0.05 * as_run.SHARES["rate"], rel=1e-6)


def test_what_was_not_measured_is_named() -> None:
    rng = np.random.default_rng(6)
    named = {
        "noise": ("noise (no released model", ""),
        "signal": ("contribution (too few", ""),
        "noise_log": ("", "noise (the backend"),
        "norm_log": ("", "contribution (the backend"),
        "sampling_log": ("rate (the backend", "rate (the backend"),
    }
    for without, expected in named.items():
        found = as_run.ran([PHASE], [evidence(rng, without=without)], 0.95)
        for one, text in zip(found, expected, strict=True):
            assert one.missing[0].startswith(text) if text else not one.missing
            if text:
                assert one.least([PHASE]) is one.most([PHASE]) is None


def test_without_a_noise_log_there_is_no_upper_end() -> None:
    measured, _ = as_run.ran([PHASE], [evidence(np.random.default_rng(7), without="noise_log")], 0.95)
    assert measured.noise[0] == 0.0
    assert measured.most([PHASE]) is None
    assert measured.least([PHASE]) is not None


def test_a_log_of_too_much_noise_is_not_used() -> None:
    """The models contain 10% less noise than the log: the upper end from the log is dropped."""
    rng = np.random.default_rng(8)
    run = RunEvidence(
        noise=outside_noise(rng, 0.8),
        signal=planted(rng, 0.8, 1.0, RATE),
        noise_log=noise_log(rng, 1.0),
        norm_log=NormSums(largest=1.0),
        sampling_log=sampling_log(rng, RATE),
    )
    measured, reported = as_run.ran([PHASE], [FrozenMap(write_run(run))], 0.95)
    assert measured.noise[1] < reported.noise[0]
    assert measured.most([PHASE]) is None


def test_batches_that_are_no_poisson_samples_have_no_rate() -> None:
    fixed = PHASE.replace(sampling={"scheme": "fixed", "batch_size": 30})
    for found in as_run.ran([fixed], [evidence(np.random.default_rng(9))], 0.95):
        assert any("fixed batches are not Poisson samples" in text for text in found.missing)


def test_full_batches_are_of_all_records() -> None:
    full = PHASE.replace(sampling={"scheme": "full"})
    _, reported = as_run.ran([full], [evidence(np.random.default_rng(10), rate=1.0)], 0.95)
    assert reported.rates == ((1.0, 1.0),)
    assert reported.least([full])[0].sampling.scheme == "full"


@given(
    noise=st.tuples(st.floats(0.2, 3.0), st.floats(0.2, 3.0)).map(sorted),
    contribution=st.tuples(st.floats(0.2, 3.0), st.floats(0.2, 3.0)).map(sorted),
    rate=st.tuples(st.floats(1e-3, 1.0), st.floats(1e-3, 1.0)).map(sorted),
)
def test_the_ends_are_the_ends(noise: list[float], contribution: list[float], rate: list[float]) -> None:
    """The upper end covers all values within the intervals of noise, contributions and rates."""
    found = as_run.Ran(
        reading="reported",
        noise=(noise[0], noise[1]),
        contribution=(contribution[0], contribution[1]),
        rates=((rate[0], rate[1]),),
    )
    least, most = found.least([PHASE]), found.most([PHASE])
    assert least is not None
    assert most is not None
    assert most[0].noise_multiplier == pytest.approx(SIGMA * noise[0] / contribution[1])
    assert least[0].noise_multiplier == pytest.approx(SIGMA * noise[1] / contribution[0])
    assert most[0].noise_multiplier <= least[0].noise_multiplier
    assert (least[0].rate(), most[0].rate()) == (rate[0], rate[1])
    assert freeze(dict(least[0]))["steps"] == STEPS


def test_far_from_what_is_declared_an_end_is_the_farthest_or_none() -> None:
    """A hundredth of the noise leaks at least as much as a thirtieth, without an upper end; and the converse."""
    little = as_run.Ran(reading="reported", noise=(0.01, 0.01), contribution=(1.0, 1.0), rates=((RATE, RATE),))
    much = as_run.Ran(reading="reported", noise=(100.0, 100.0), contribution=(1.0, 1.0), rates=((RATE, RATE),))
    (least,), (most,) = little.least([PHASE]) or (), much.most([PHASE]) or ()
    assert least.noise_multiplier == pytest.approx(SIGMA / as_run.FARTHEST)
    assert most.noise_multiplier == pytest.approx(SIGMA * as_run.FARTHEST)
    assert little.most([PHASE]) is much.least([PHASE]) is None
