"""The cache of answers: it holds the computed ones, each for the same question alone."""

from collections.abc import Callable

import pytest

from dpspec.accounting import Interval, Mixture, PrivacyLoss, refinement
from dpspec.accounting.privacy_loss import _cached_answers


@pytest.fixture
def refined(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The grids that were computed since the start of the test."""
    _cached_answers.cache_clear()
    grids: list[object] = []
    begin = refinement.GridRefinement.begin
    monkeypatch.setattr(refinement.GridRefinement, "begin", lambda self: grids.append(self) or begin(self))
    return grids


def loss(noise: float = 1.0, steps: int = 20) -> PrivacyLoss:
    return PrivacyLoss.of(Mixture.poisson(1, 0.05, noise), "present-first").compose(steps)


def test_the_same_question_is_computed_once(refined: list[object]) -> None:
    first = loss().epsilons([1e-5, 1e-6])
    computed = len(refined)
    first.clear()  # the caller's own list
    again = loss().epsilons([1e-5, 1e-6])
    assert computed > 0
    assert len(refined) == computed
    assert len(again) == 2
    assert all(one.method and one.lower_method for one in again)


@pytest.mark.family
@pytest.mark.parametrize(
    "other",
    [
        lambda: loss(noise=1.001).epsilon(1e-5),
        lambda: loss(steps=21).epsilon(1e-5),
        lambda: loss().epsilon(1.001e-5),
        lambda: loss().epsilon(1e-5, width=1e-5),
        lambda: loss().delta(1.0),
        lambda: loss().level(0.5),
        lambda: loss().rero(0.5),
        lambda: PrivacyLoss(loss().phases, "absent-first").epsilon(1e-5),
        lambda: PrivacyLoss(loss().phases, "both").epsilon(1e-5),
    ],
    ids=["noise", "steps", "delta", "width", "kind", "level", "power", "absent-first", "both"],
)
def test_another_question_has_the_answer_of_an_empty_cache(
    refined: list[object], other: Callable[[], Interval]
) -> None:
    alone = other()
    _cached_answers.cache_clear()
    kept = loss().epsilon(1e-5)
    found = other()
    assert (found.lower, found.upper, found.method) == (alone.lower, alone.upper, alone.method)
    assert loss().epsilon(1e-5) == kept


def test_the_other_direction_belongs_to_the_question(refined: list[object]) -> None:
    """An epsilon that is certainly smaller than the other direction's is not refined, and one without it is."""
    (rough,) = loss().epsilons([1e-5], other_direction=[Interval(50.0, 50.0)])
    (fine,) = loss().epsilons([1e-5])
    assert rough.upper > 2.0 * fine.upper
    assert fine.relative_width <= 1e-4
