"""Far below the place for which a composition is tilted nothing is said that its error does not allow."""

from __future__ import annotations

import pytest

from dpspec.accounting import Directions, Mixture, PrivacyLoss, refinement

_SIDES: tuple[Directions, ...] = ("present-first", "absent-first", "both")


@pytest.fixture(autouse=True)
def short_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both losses are beyond grids of any length: what is said does not rest on how long they are, and takes less."""
    monkeypatch.setattr(refinement, "NODES", 1 << 18)
    monkeypatch.setattr(refinement, "CELLS", 1 << 15)


def test_an_enormous_epsilon_is_never_taken_for_zero() -> None:
    """Losses end at about 2e9, so near which epsilon lies; at 0 the error that was charged used to be cut at e^500."""
    loss = PrivacyLoss.of(Mixture.poisson(10**4, 1.0 - 1e-9, 0.3), "absent-first").compose(10**4)
    found = loss.epsilon(1e-12, width=1e-2)
    assert found.upper > 1e9
    assert loss.delta(found.upper, width=1e-2).lower <= 1e-12


def test_where_one_direction_is_beyond_grids_the_other_still_bounds_from_below() -> None:
    """Of groups in the thousands with little noise the worse direction's losses are; the other's epsilon is known."""
    phases = ((Mixture.poisson(1000, 0.5, 0.1), 1000),)
    one, other, both = (PrivacyLoss(phases, side).epsilon(1e-12, width=1e-2) for side in _SIDES)
    assert one.lower < other.lower
    assert (both.lower, both.upper) == (other.lower, one.upper)
