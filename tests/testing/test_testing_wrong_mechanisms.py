"""Wrong implementations of one mechanism, each found by a test of the suite; honest twins pass all of them."""

import contextlib
import unittest
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from support import votes, wrong_votes
from support.votes_suite import AnswersSuite, LaplaceSuite, SampledVotesSuite, VotesSuite, suite

from dpspec.testing import Neighbors, decreasing, increasing

TESTS = [name for name in dir(VotesSuite) if name.startswith("test_")]
PAGE = Path(__file__).parents[2] / "docs" / "plugins" / "wrong-mechanisms.md"


class RoundsSuite(VotesSuite):
    monotone: ClassVar = {**VotesSuite.monotone, "mechanism.rounds": increasing(1, 4, 9)}

    def neighbors(self, spec: Any, group_size: int) -> Any:
        return ()


class RareSuite(VotesSuite):
    monotone: ClassVar = {"mechanism.sigma": decreasing(1.0, 2.0, 4.0)}

    def neighbors(self, spec: Any, group_size: int) -> Any:
        (pair,) = super().neighbors(spec, group_size)
        q = votes_q()

        def present(rng: Any, n: int) -> Any:
            rare = rng.random(n) < q
            return np.where(rare[:, None], pair.present(rng, n), pair.absent(rng, n))

        assert pair.log_ratio is not None
        law = pair.log_ratio
        yield Neighbors(
            absent=pair.absent, present=present, log_ratio=lambda y: np.logaddexp(np.log1p(-q), np.log(q) + law(y))
        )


def votes_q() -> float:
    return wrong_votes.RareVotes.q


def failure(made: Any, test: str) -> str:
    """The message of a failed test; empty if it passes or is skipped."""
    try:
        getattr(made, test)()
    except unittest.SkipTest:
        return ""
    except AssertionError as error:
        return str(error)
    return ""


HONEST = [
    (votes.Votes, VotesSuite),
    (votes.Votes, SampledVotesSuite),
    (wrong_votes.SteppedVotes, RoundsSuite),
    (wrong_votes.RareVotes, RareSuite),
    (wrong_votes.FlippedScore, VotesSuite),  # an attack that shows nothing is weak, and no error
    (wrong_votes.RemovedOnly, RareSuite),
    (wrong_votes.ReplacedVotes, VotesSuite),
    (wrong_votes.LaplaceVotes, LaplaceSuite),
    (wrong_votes.Answers, AnswersSuite),
    (wrong_votes.OfTheseRows, VotesSuite),
    (wrong_votes.OfManyRecords, VotesSuite),
]


@pytest.mark.ci
@pytest.mark.parametrize(("audit", "base"), HONEST, ids=lambda item: item.__name__)
def test_honest_twins_pass(audit: Any, base: Any) -> None:
    made = suite(audit, base)
    assert {test: message for test in TESTS if (message := failure(made, test))} == {}


NEIGHBORS = "test_bounds_hold_between_explicit_neighbors"
ROWS = "test_bounds_of_all_data_ignore_the_rows"
SIZE = "test_noise_has_the_size_of_the_neighbors_law"
BITS = "test_much_noise_hides_the_inclusion_bits"
SEED = "test_noise_follows_the_seed"
PROCESS = "test_another_process_repeats_the_run"
AGAIN = "test_trials_are_reproducible_by_seed"
CURVE = "test_a_bound_is_a_curve"
KEYS = "test_trial_inputs_hold_nothing_that_trials_may_not_read"

#: The wrong implementation, the test that finds it, and a part of its message.
WRONG = [
    ("HalvedMu", NEIGHBORS, "attain delta of at least"),
    ("ForgottenRoot", NEIGHBORS, "too small"),
    ("VarianceForDeviation", NEIGHBORS, "too small"),
    ("GroupIgnored", NEIGHBORS, "group size 2 is too small"),
    ("RightAtTheClaimOnly", NEIGHBORS, "too small"),
    ("PureGaussian", NEIGHBORS, "log ratio"),
    ("ReplacedForAdded", NEIGHBORS, "too small"),
    ("SmallerForGroups", CURVE, "a larger group contains a smaller one"),
    ("RisesWithDelta", CURVE, "may not rise with delta"),
    ("Negative", CURVE, "negative"),
    ("GrowsWithNoise", "test_bounds_are_monotone_where_declared", "not decreasing"),
    ("NotANumber", "test_outcomes_are_well_formed", "upper bound"),
    ("RandomBound", "test_result_can_be_verified", "again"),
    ("MutableBound", "test_result_can_be_verified", "again"),
    ("ReadsLabels", ROWS, "reversed labels"),
    ("ReadsFeatures", ROWS, "rows of zeros"),
    ("ReadsDuplicates", ROWS, "rows of zeros"),
    ("ReadsRecords", ROWS, "with 30 records"),
    ("LessNoise", "test_example_runs_as_expected", "deviat"),
    ("HalfNoise", SIZE, "noise of 0.49"),
    ("CappedNoise", SIZE, "noise of 0.5"),
    ("FixedNoise", SIZE, "noise of 0.3"),
    ("OtherNoiseReported", "test_reported_noise_is_in_the_released_values", "correlation"),
    ("TwoTeachers", SIZE, "move by"),
    ("ReadsBits", BITS, "read the bits"),
    ("ReadsBitsWeakly", BITS, "read the bits"),
    ("ReadsHalfOfTheBits", BITS, "read the bits"),
    ("SeedIgnored", SEED, "two seeds"),
    ("SeedOfTrialOnly", SEED, "two seeds"),
    ("SeedOfAuditOnly", SEED, "two trials"),
    ("RepeatedNoise", SEED, "repeats"),
    ("SeedOfHash", PROCESS, "no hash"),
    ("SeedOfTheDay", PROCESS, "no clock"),
    ("SeedOfSetOrder", PROCESS, "trials"),
    ("ConcludesByHash", PROCESS, "evidence"),
    ("Unseeded", AGAIN, "all randomness"),
    ("MutableCounter", AGAIN, "all randomness"),
    ("ReadsFile", AGAIN, "all randomness"),
    ("ClaimsInKey", KEYS, "claims"),
    ("TimeInKey", "test_stored_trials_are_found_again", "trained again"),
    ("ImpureConclude", "test_conclude_is_pure", "global generator"),
    ("CannotTravel", "test_trials_and_audits_can_travel", "pickling its audit"),
    ("TorchForChecks", "test_checking_a_spec_imports_neither_torch_nor_scipy", "torch"),
    ("UnprovenTable", "test_outcomes_are_well_formed", "no finding"),
    ("FallsWithRounds", "test_bounds_are_monotone_where_declared", "not increasing"),
    ("AbsentFirst", NEIGHBORS, "(remove)"),
    ("SwappedDirection", NEIGHBORS, "(remove)"),
    ("OneCountOfLaplace", NEIGHBORS, "log ratio of 1 at epsilon = 0.5"),
    ("AnswersOfOne", NEIGHBORS, "group size 2 is too small"),
    ("AnswersByOdds", NEIGHBORS, "log ratio of 1.099"),
    ("FlippedScoreWithControl", "test_example_runs_as_expected", "control is"),
    ("TorchAtImport", "test_importing_the_descriptor_is_light", "torch"),
]

SUITES: dict[str, Any] = {"FallsWithRounds": RoundsSuite, "AbsentFirst": RareSuite, "SwappedDirection": RareSuite}
SUITES |= {"OneCountOfLaplace": LaplaceSuite, "AnswersOfOne": AnswersSuite, "AnswersByOdds": AnswersSuite}

#: They start another process.
SLOW = (
    PROCESS,
    "test_checking_a_spec_imports_neither_torch_nor_scipy",
    "test_importing_the_descriptor_is_light",
)

#: The first wrong implementation for each fast test of the suite, without those that take longest.
FIRST = {test: name for name, test, _ in reversed(WRONG) if test not in SLOW}
DEAR = {"LessNoise", "RandomBound", "ReadsBits", "TimeInKey", "Unseeded"}


@pytest.mark.parametrize(
    ("name", "test", "says"),
    [
        pytest.param(*row, id=row[0], marks=[pytest.mark.ci] * (FIRST.get(row[1]) != row[0] or row[0] in DEAR))
        for row in WRONG
    ],
)
def test_wrong_implementations_are_found(name: str, test: str, says: str) -> None:
    overrides = ["audit.releases=20000"] if name == "LessNoise" else []
    made = suite(getattr(wrong_votes, name), SUITES.get(name, VotesSuite), overrides=overrides)
    assert says in failure(made, test)


def test_the_page_lists_each_wrong_implementation_with_its_check() -> None:
    """``docs/plugins/wrong-mechanisms.md`` has a row for each; its rows are printed by the message of a failure."""
    rows = [f"| {getattr(wrong_votes, name).__doc__.replace('``', '`')} | `{test}` |" for name, test, _ in WRONG]
    missing = [row for row in rows if row not in PAGE.read_text(encoding="utf-8").splitlines()]
    assert missing == []


@pytest.mark.family
@pytest.mark.parametrize("name", ["HalvedMu", "ForgottenRoot"])
def test_samplers_without_densities_find_wrong_bounds(name: str) -> None:
    assert "too small" in failure(suite(getattr(wrong_votes, name), SampledVotesSuite), NEIGHBORS)


@pytest.mark.parametrize("test", ["test_noise_follows_the_seed", "test_reported_noise_is_in_the_released_values"])
def test_releases_that_are_trainings_are_few(test: str) -> None:
    """A mechanism without ``values``, such as a training, makes at most 20 releases for a question."""
    counts = wrong_votes.WithoutValues.counts
    made = suite(wrong_votes.WithoutValues, VotesSuite)
    made.first(trials=True)
    counts.clear()
    with contextlib.suppress(unittest.SkipTest):
        getattr(made, test)()
    assert counts
    assert max(counts) <= 20
