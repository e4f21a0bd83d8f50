"""The scope oracle: no bound is exceeded by the plugin's own code on explicit neighbours in its scope."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support import preprocessing_oracle as oracle
from support.preprocessing_pairs import STEPS, Case, cases, climbed

from dpspec_preprocessing import private

KINDS = (*STEPS, "chain")


@pytest.fixture(autouse=True, scope="module")
def coarse_search(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every order of a composition gives a bound: a coarser search for the least is looser, and no less proved.

    With ``--run-slow`` the search is the plugin's.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not request.config.getoption("--run-slow"):
            patch.setattr(private, "_NODES", 33)
            patch.setattr(private, "_ROUNDS", 4)
        yield


def hold(kind: str, examples: int, *, rounds: int = 0) -> None:
    """Draw cases of a kind, climb from each for some rounds, and compare."""
    claimed = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(kind), st.integers(0, 1000))
    def keeps(case: Case, seed: int) -> None:
        nonlocal claimed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn's on constant or empty features
            worse, found = climbed(case, rounds, seed)
        claimed += found.what != oracle.NOTHING
        assert found.ratio <= 1.0 + oracle.TOLERANCE, (worse.mechanism, worse.records, len(worse.pair.one), found)

    keeps()
    assert claimed > examples // 4, "most cases should have a bound that speaks of them"


@pytest.mark.parametrize("kind", KINDS)
def test_executed_neighbours_keep_every_bound_whose_scope_they_lie_in(kind: str) -> None:
    hold(kind, 36)


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_that_are_made_worse_keep_it_too(kind: str) -> None:
    hold(kind, 3, rounds=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_executed_neighbours_keep_every_bound(kind: str) -> None:
    hold(kind, 1112)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_long_climbs_keep_every_bound(kind: str) -> None:
    hold(kind, 25, rounds=40)
