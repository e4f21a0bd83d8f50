"""The campaign over extreme compositions finds what is wrong; by hand: ``python tests/campaigns/extremes.py``."""

import math
import warnings

from campaigns import extremes

from dpspec.accounting import Interval, PrivacyLoss


def test_a_case_is_repeated_by_its_seed_and_number() -> None:
    tallies = [extremes.Tally(), extremes.Tally()]
    for tally in tallies:
        extremes.run_batch(1, tally, math.inf, only=2)
    first, second = ([case for _, case in tally.slow] for tally in tallies)
    assert first == second
    assert "--seed 1 --only 2" in first[0]
    assert not tallies[0].findings


def test_wrong_answers_exceptions_and_warnings_are_findings() -> None:
    loss, tally = PrivacyLoss.gaussian(1.0), extremes.Tally()

    def warn(loss: PrivacyLoss) -> Interval:
        warnings.warn("overflow", RuntimeWarning, stacklevel=1)
        return Interval(0.0, 0.0)

    for ask in (lambda _: Interval(0.5, 2.0), lambda _: Interval(1.0 / 0.0, 1.0), warn, lambda _: Interval(0.1, 0.2)):
        tally.run("case", extremes.check_question, loss, ("advantage()", ask, 0.0, 1.0))
    assert len(tally.findings) == 3
    assert extremes.check_epsilon(loss, 1e-6, Interval(3.0, 3.1))
    assert extremes.check_epsilon(loss, 1e-6, Interval(9.0, 9.1))
    assert extremes.check_delta(PrivacyLoss.gaussian(1.0, rate=0.5, direction="both"), 0.0, Interval(0.9, 0.9))
