"""A lower bound on epsilon where all canaries of a run may share luck: independent given what the release tells of it.

Setting. A run has luck L, of any law: a release that works or does not, noise that is larger or smaller for the whole
run. The release tells L. Given L = l canaries are independent, as in
:mod:`dpspec.stats.independence.order_statistics`, and each of them has the Gaussian curve of some mu(l). Runs are
independent, each with luck of its own. No run shows its luck: this bound holds whatever it is.

Bound. Let m_t be the bound on mu of run t at confidence 1 - a, t = 1, ..., n, and m the least of them. Then

    epsilon of the Gaussian curve of m at delta / g,    (g + a)^n = 1 - confidence,

is above the true epsilon at delta with probability at most 1 - confidence.

Proof. Let u be the upper g-quantile of mu(L): P[mu(L) >= u] >= g and P[mu(L) > u] <= g. Luck has the same law with and
without a record, and who sees it can wait for that of u and more before testing, so that delta(epsilon) >=
g delta_u(epsilon) for every epsilon, delta_u the Gaussian curve, which rises with mu: the true epsilon at delta is at
least that of u at delta / g. If the bound is above it, then m > u, and so is every m_t. In one run that takes
mu(L) > u, of probability at most g, or m_t > mu(L), of probability at most a whatever L is. Runs are independent.

The bound on mu of ``order_statistics`` needs no g. By the argument above with g to 0, the mu of the release for all
deltas is the largest of the mu(l); given all luck, right guesses are stochastically at most those for that mu.

Of one run at confidence .95, g = .0375, this is the epsilon at a delta 27 times as large: about .63 of the truth from
1,000 canaries and .75 from 10,000 (epsilon 4), where independence without luck gives .85 and .95. With five runs of
10,000, g = .41, it is .92.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpspec.stats.attacks import gaussian_fit
from dpspec.stats.independence import order_statistics
from dpspec.stats.independence.order_statistics import Guesses

#: So much of what may go wrong in a run is left to its luck, the rest to its bound. Near the best from epsilon 4 on.
LUCKY = 0.75


def epsilon_lower(runs: Sequence[Guesses], correct: Sequence[int], delta: float, confidence: float) -> float:
    """The bound of the module at ``delta``, from each run's right guesses; 0 where nothing is rejected, or no run is.

    Raises ``ValueError`` as :func:`order_statistics.mu_lower` does, and unless delta lies in (0, 1).
    """
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}")
    if len(runs) != len(correct):
        raise ValueError(f"need the right guesses of {len(runs)} runs, got {len(correct)}")
    if not runs:
        return 0.0
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    both = (1.0 - confidence) ** (1.0 / len(runs))
    luck = LUCKY * both
    if delta >= luck:
        return 0.0
    told = zip(runs, correct, strict=True)
    least = min(order_statistics.mu_lower([run], right, 1.0 - (both - luck)) for run, right in told)
    return gaussian_fit.epsilon(least, delta / luck)
