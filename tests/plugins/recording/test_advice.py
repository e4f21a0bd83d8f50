"""The advice on rejected tests of a recording, and the noise multiplier that fits a claim below its epsilon."""

import dataclasses
import re

import numpy as np
import pytest
from support.checked_runs import checked, run_page
from support.facts_only import run_with
from support.opacus_training import Training

from dpspec.accounting import Mixture, PrivacyLoss
from dpspec.contract import FrozenMap
from dpspec.language.load import from_document
from dpspec.registry.loader import load_catalog
from dpspec.stats.conformance.batch_checks import BatchSums
from dpspec.stats.conformance.sampling import summary
from dpspec_recording.judge.advice import advice_on, retraining_of
from dpspec_recording.judge.bounds import ScheduleBounds
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.judge.reported_checks import reported_checks
from dpspec_recording.observers.judged_run import Array
from dpspec_recording.outcomes.issue import with_tests

GENERAL = (
    "train with a larger noise multiplier, a smaller rate or fewer steps (dpspec epsilon --target finds the noise)"
)


def noise_of(text: str) -> float:
    (number,) = re.findall(r"with a noise multiplier of ([\d.]+) \(now 1.1\)", text)
    return float(number)


@pytest.mark.family
@pytest.mark.parametrize(("epsilon", "group_sizes"), [(1.5, (1,)), (9.0, (4, 1))])
@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
def test_a_claim_below_the_certified_epsilon_names_the_noise_that_fits(recordings, epsilon, group_sizes, adjacency):
    found = checked(recordings["flat"], delta=1e-5, epsilon=epsilon, group_sizes=group_sizes, adjacency=adjacency)
    noise = noise_of(found.audit.recording.retraining)

    def upper(sigma):
        loss = PrivacyLoss.of(Mixture.poisson(group_sizes[0], 0.1, sigma)).compose(40)
        return loss.epsilon(1e-5).upper

    assert upper(noise) <= epsilon < upper(0.999 * noise)
    page = " ".join(run_page(found, 200).split())
    assert f"Train with a noise multiplier of {noise:g} (now 1.1), or with a smaller rate or fewer steps." in page


def test_a_claim_that_is_met_needs_no_other_noise(recordings):
    found = checked(recordings["flat"], delta=1e-5, epsilon=4.0)
    assert found.audit.recording.retraining == GENERAL
    assert "rain with" not in run_page(found, 200)


def test_no_noise_is_named_for_other_claims_than_of_epsilon(recordings):
    found = checked(recordings["flat"], delta=1e-5, epsilon=1.5)
    schedule = ScheduleBounds(found.run)
    (claim,) = from_document(found.audit.document, load_catalog()).claims
    assert retraining_of(schedule, [claim]) == found.audit.recording.retraining
    assert retraining_of(schedule, [claim, dataclasses.replace(claim, kind="gdp")]) == GENERAL
    assert retraining_of(schedule, [dataclasses.replace(claim, expect=("refuted",))]) == GENERAL
    nothing = dataclasses.replace(claim, options=FrozenMap({**claim.options, "epsilon": 0.0}))
    assert retraining_of(schedule, [claim, nothing]) == GENERAL


@pytest.mark.family
@pytest.mark.parametrize("name", ["shuffled", "adaptive"])
def test_no_noise_is_named_where_its_epsilon_is_of_other_batches(recordings, name):
    found = checked(recordings[name], delta=1e-5, epsilon=0.5)
    assert "a larger" in found.audit.recording.retraining
    assert "(now" not in found.audit.recording.retraining


@pytest.mark.ci
def test_a_training_with_the_named_noise_is_proved(recordings, tmp_path):
    found = checked(recordings["flat"], delta=1e-5, epsilon=1.5)
    assert found.verdict == "refuted"
    Training(epochs=4, noise=noise_of(found.audit.recording.retraining)).run(tmp_path / "run")
    assert checked(tmp_path / "run", delta=1e-5, epsilon=1.5).verdict == "proved"


@pytest.mark.parametrize("repeats", [0, 2])
def test_a_record_twice_in_a_batch_has_its_own_advice(repeats: int) -> None:
    """As of micro-batches that a step takes over from the pass before, which only the names of tests said."""
    run = run_with({}, rate=0.1)
    internal = run.internal
    assert internal is not None
    assert internal.sampling is not None
    batches = (BatchSums(steps=100, total=1000, squares=10_000),)
    sampling = dataclasses.replace(internal.sampling, repeats=repeats, batches=batches)
    vars(run)["internal"] = dataclasses.replace(internal, sampling=sampling)
    (test,) = (each for each in reported_checks(run) if each.text == "records drawn twice into one batch")
    assert (test.check.p_value == 0.0) == bool(repeats)
    assert "A batch holds a record twice" in test.fix


def advice_of(run: RecordedRun, batches: BatchSums, repeats: int = 0) -> str:
    """Return the advice on a run with these reported batches."""
    internal = run.internal
    assert internal is not None
    assert internal.sampling is not None
    sampling = dataclasses.replace(internal.sampling, repeats=repeats, batches=(batches,))
    vars(run)["internal"] = dataclasses.replace(internal, sampling=sampling)
    tests = (*reported_checks(run), *with_tests(run.all_statements))
    bad = [test for test in tests if test.check.p_value < 1e-6]
    return " ".join(advice_on(bad, bad))


@pytest.mark.parametrize("size", [10, 12])
def test_batches_of_one_size_are_not_called_filled(size: int) -> None:
    columns = {"drawn": size, "rows": size, "rate": 0.1 * (1.0 + 1e-15)}
    run = run_with({}, steps=400, columns=columns, source="own-loop", scheme="none")
    sizes = BatchSums(steps=400, total=400 * size, squares=400 * size**2, sizes=summary(np.full(400, size)))
    advice = advice_of(run, sizes)
    assert "All batches have the same size" in advice
    assert "filled" not in advice


def sums_of(sizes: Array) -> BatchSums:
    total, squares = int(sizes.sum()), int(np.square(sizes).sum())
    return BatchSums(steps=len(sizes), total=total, squares=squares, sizes=summary(sizes))


@pytest.mark.parametrize(("rate", "word"), [(0.3, "are filled"), (0.03, "are cut")])
def test_batches_of_another_rate_are_not_called_cut_or_filled(rate: float, word: str) -> None:
    """As of users whose records are drawn, and who enter with any of them."""
    sizes = np.random.default_rng(5).binomial(100, rate, 400)
    run = run_with(
        {}, steps=400, columns={"drawn": sizes, "rows": sizes, "rate": 0.1}, source="own-loop", scheme="none"
    )
    advice = advice_of(run, sums_of(sizes))
    assert "drawn at another rate than declared" in advice
    assert word not in advice


@pytest.mark.parametrize(("low", "high", "word"), [(0, 10, "cut to a maximum"), (10, 100, "filled or drawn again")])
def test_cut_and_filled_batches_are_named_also_if_their_mean_differs(low: int, high: int, word: str) -> None:
    sizes = np.clip(np.random.default_rng(5).binomial(100, 0.1, 400), low, high)
    run = run_with(
        {}, steps=400, columns={"drawn": sizes, "rows": sizes, "rate": 0.1}, source="own-loop", scheme="none"
    )
    assert word in advice_of(run, sums_of(sizes))


def test_a_loop_that_never_ends_a_step_gets_no_other_advice() -> None:
    columns = {"drawn": 43, "rows": 43, "updates": 3}
    run = run_with({}, steps=1, columns=columns, source="own-loop", scheme="none")
    advice = advice_of(run, BatchSums(steps=1, total=43, squares=43**2, sizes=summary(np.full(1, 43))), repeats=5)
    assert "A plain loop calls run.stepped() after each" in advice
    assert "twice" not in advice
    assert "filled" not in advice


def test_skipped_batches_hold_no_record_twice() -> None:
    several = np.arange(100) % 5 == 0
    columns = {"drawn": np.where(several, 20.0, 10.0), "batches": np.where(several, 2.0, 1.0)}
    run = run_with({}, columns=columns, rate=0.1)
    sizes = BatchSums(steps=100, total=1200, squares=80 * 100 + 20 * 400)
    skipped = advice_of(run, sizes, repeats=9)
    assert "Skipping drawn batches" in skipped
    assert "twice" not in skipped
    joined = run_with({}, columns={**columns, "rows": columns["drawn"]}, rate=0.1)
    assert "A batch holds a record twice" in advice_of(joined, sizes, repeats=9)


def test_an_unreported_batch_of_a_custom_loop_points_to_no_loader() -> None:
    drawn = np.where(np.arange(100) == 99, np.nan, 10.0)
    run = run_with({}, columns={"drawn": drawn}, source="own-loop", scheme="none", no_loader=True)
    advice = " ".join(test.fix for test in with_tests(run.all_statements) if test.check.p_value < 1e-6)
    assert "Report the batch of each step by run.sampled" in advice
    assert "make_private" not in advice
