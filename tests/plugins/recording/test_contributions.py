"""The lengths of the sums of a step, and the rows that a custom loop reports for it."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.facts_only import run_with

from dpspec_recording.observers.sensitivity.contributions import ContributionFacts, Contributions
from dpspec_recording.outcomes.conditions import PER_RECORD_CLIPPING
from dpspec_recording.outcomes.issue import Issue, Statement, with_tests
from dpspec_recording.pending_step import PendingStep


def doubts(outcomes: Iterable[Statement]) -> list[str]:
    """The levels of issues without a test about the clipping of each record."""
    issues = (outcome for outcome in outcomes if isinstance(outcome, Issue))
    return [issue.level for issue in issues if issue.condition == PER_RECORD_CLIPPING and issue.test is None]


@pytest.mark.parametrize(
    ("length", "rows", "reported", "steps", "is_found"),
    [
        (1.0, 10.0, 10.0, 100, True),  # clip(sum(gradients)), with norms of single ones
        (1.0 + 3e-6, 10.0, 10.0, 100, True),
        (1.01, 10.0, 10.0, 100, False),
        (1.0, 1.0, 1.0, 100, False),  # one record in each batch
        (1.0, 10.0, 1.0, 100, False),  # all others have no gradient
        (1.0, 10.0, 10.0, 15, False),
    ],
)
def test_a_sum_that_was_clipped_as_one(length: float, rows: float, reported: float, steps: int, is_found: bool) -> None:
    run = run_with({}, steps=steps, columns={"rows": rows, "drawn": rows})
    ones = np.ones(steps)
    assert run.internal is not None
    vars(run)["internal"] = replace(run.internal, sum_norm=length * ones, reported=reported * ones)
    facts = ContributionFacts(norm_type="", sum_type="")
    outcomes = list(Contributions.judge(facts, run))
    assert all(test.check.p_value == 1.0 for test in with_tests(outcomes))  # a loop may clip each record too
    assert doubts(outcomes) == ["open"] * is_found


def test_few_sums_at_the_clip_norm_are_no_fault() -> None:
    run = run_with({}, columns={"rows": 10.0, "drawn": 10.0})
    assert run.internal is not None
    lengths = np.where(np.arange(100) < 80, 1.0, 1.7)
    vars(run)["internal"] = replace(run.internal, sum_norm=lengths)
    facts = ContributionFacts(norm_type="", sum_type="")
    assert doubts(Contributions.judge(facts, run)) == []


@pytest.mark.parametrize(
    ("norms", "drawn", "kept"),
    [
        ([0.5, 1.0, 0.0, 0.0], 2, [0.5, 1.0]),  # filled to a fixed size
        ([0.0, 1.0, 0.0, 0.0], 2, [0.0, 1.0]),  # one of the records has no gradient
        ([0.0, 0.5, 0.0, 1.0], 2, [0.5, 1.0]),  # filled between the records
        ([0.5, 1.0, 0.3, 0.0], 2, [0.5, 1.0, 0.3, 0.0]),  # a row too many
        ([0.5, 1.0], 2, [0.5, 1.0]),
        ([0.5, 0.0], 3, [0.5, 0.0]),
        ([0.0, 0.0], 0, []),
    ],
)
def test_places_that_fill_a_batch_are_no_contributions(norms: list[float], drawn: int, kept: list[float]) -> None:
    step = PendingStep(members=[np.arange(drawn)], norms=[torch.tensor(norms, dtype=torch.float64)])
    step.add_rows(len(norms))
    step.omit_padding()
    assert step.rows == len(kept)
    assert step.reported_norms().tolist() == kept


def test_a_step_without_drawn_records_keeps_its_rows() -> None:
    step = PendingStep(norms=[torch.zeros(3, dtype=torch.float64)], rows=3)
    step.omit_padding()
    assert step.rows == 3
