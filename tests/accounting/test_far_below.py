"""Far below the place for which a composition is tilted nothing is said that its error does not allow."""

from __future__ import annotations

from dpspec.accounting import Mixture, PrivacyLoss


def test_an_enormous_epsilon_is_never_taken_for_zero() -> None:
    """Losses end at about 2e9, so near which epsilon lies; at 0 the error that was charged used to be cut at e^500."""
    loss = PrivacyLoss.of(Mixture.poisson(10**4, 1.0 - 1e-9, 0.3), "absent-first").compose(10**4)
    found = loss.epsilon(1e-12, width=1e-3)
    assert found.upper > 1e9
    assert loss.delta(found.upper, width=1e-2).lower <= 1e-12
