"""Whether runs differ by more than chance lets them: luck that all canaries of a run share.

Null: canaries are independent in every run, and in each the guesses of
:mod:`dpspec.stats.independence.order_statistics` are right as often as those from N(mu b, 1), one mu for all. With V_t
right guesses in run t of n, means M_t and variances S_t at the mu where the means add up to all that were right, the
sum of (V_t - M_t)^2 / S_t is chi-square of n - 1 degrees in the limit of many canaries. Only large values tell against
it.

One run shows nothing of it, whatever the test: if a release is, with chance g, a Gaussian one of parameter mu, and
nothing otherwise, then a run that had the luck is to the last digit a run of the Gaussian release. So a bound that is
above some value with chance q for the Gaussian release is above it with chance g q at least for the other, whose
epsilon at delta is only that of the Gaussian one at delta / g. (Its mu for all deltas is the same: see ``theory`` of
the plugin ``group``.) In n runs all have the luck with chance g^n.
"""

from __future__ import annotations

from collections.abc import Sequence

from scipy import special

from dpspec.stats.independence.order_statistics import LARGEST_MU, Guesses, moments

#: What this test is called.
TEST = "chi-square test that runs agree"


def runs_agree(runs: Sequence[Guesses], correct: Sequence[int]) -> float | None:
    """The p-value of the null, from each run's right guesses; None for fewer than two runs."""
    if len(runs) != len(correct):
        raise ValueError(f"need the right guesses of {len(runs)} runs, got {len(correct)}")
    if len(runs) < 2:
        return None
    low, high = 0.0, LARGEST_MU
    for _ in range(30):
        middle = 0.5 * (low + high)
        below = sum(moments(run, middle)[0] for run in runs) < sum(correct)
        low, high = (middle, high) if below else (low, middle)
    fitted = [moments(run, low) for run in runs]
    spread = sum((v - mean) ** 2 / max(variance, 1e-12) for v, (mean, variance) in zip(correct, fitted, strict=True))
    return float(special.chdtrc(len(runs) - 1, spread))


def rarest_unseen(runs: int, level: float) -> float:
    """The chance of luck, in each run, above which all of ``runs`` have it with a probability of more than ``level``:
    rarer luck would have shown, mostly, as runs that do not agree.

    >>> round(rarest_unseen(2, 0.05), 2)
    0.22
    """
    return float(level ** (1.0 / runs))
