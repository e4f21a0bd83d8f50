"""Upper bounds against the output laws of explicit neighbors: a bound may not be below the attained privacy loss.

The lower ends are Monte Carlo estimates at level 1e-6, so that a correct bound fails once in a million suites.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]
    Sampler: TypeAlias = Callable[[np.random.Generator, int], Array]

#: Error probability of all lower ends of one pair of neighbors.
LEVEL = 1e-6

#: Number of outputs that are drawn of each neighbor. A bound's delta of 1e-4 is about the smallest that they test.
DRAWS = 400_000

#: Relative excess of a log ratio over a pure bound that is rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class Neighbors:
    """Two neighboring datasets by the laws of their outputs, for :meth:`MechanismSuite.neighbors`.

    The author writes the laws down from the definition of the mechanism, not from the plugin's code.

    Attributes:
        absent: Draws outputs (n, ...) of the smaller dataset, or of the original one: ``absent(generator, n)``.
        present: Draws outputs of the larger dataset, or of the changed one.
        log_ratio: ln of the density of an output in ``present`` over that in ``absent``, (n, ...) to (n,). Without it
            dpspec learns a threshold from half of the outputs, which shows less.
        tails: Further possible outputs (n, ...) far from the usual ones, at which ``log_ratio`` may not exceed a pure
            bound either. Draws alone show no log ratio of a chance below 1e-5.
        name: What changes, for messages.
    """

    absent: Sampler
    present: Sampler
    log_ratio: Callable[[Array], Array] | None = None
    tails: Array | None = None
    name: str = ""


@dataclass(frozen=True)
class Exceeded:
    """A point of a bound with the attained delta.

    The direction ``remove`` compares ``present`` with ``absent``, ``add`` is the reverse.
    """

    direction: str
    epsilon: float
    delta: float
    attained: float

    def __str__(self) -> str:
        shown = "unbounded" if math.isinf(self.attained) else f"{self.attained:.4g}"
        pure = f"a log ratio of {shown}" if self.delta == 0.0 else f"delta of at least {shown}"
        return f"the neighbors attain {pure} at epsilon = {self.epsilon:.6g}, delta = {self.delta:g} ({self.direction})"


def exceeded(
    neighbors: Neighbors, points: Sequence[tuple[float, float]], directions: Iterable[str], seed: int = 1
) -> Iterator[Exceeded]:
    """The points of a proved curve that explicit neighbors exceed, the worst of each direction."""
    import numpy as np

    finite = sorted({(epsilon, delta) for epsilon, delta in points if math.isfinite(epsilon) and delta < 1.0})
    if not finite:
        return
    outputs = {
        "remove": np.asarray(neighbors.present(np.random.default_rng([seed, 1]), DRAWS), dtype=np.float64),
        "add": np.asarray(neighbors.absent(np.random.default_rng([seed, 0]), DRAWS), dtype=np.float64),
    }
    for direction in directions:
        opposite = {"add": "remove", "remove": "add"}[direction]
        of_other = None if neighbors.log_ratio is not None else outputs[opposite]
        sign = 1.0 if direction == "remove" else -1.0
        worst: tuple[float, Exceeded] | None = None
        level = LEVEL / (2 * len(finite))
        ratios = None if neighbors.log_ratio is None else sign * np.asarray(neighbors.log_ratio(outputs[direction]))
        largest = -math.inf if ratios is None else float(ratios.max())
        if neighbors.log_ratio is not None and neighbors.tails is not None:
            largest = max(largest, float((sign * np.asarray(neighbors.log_ratio(neighbors.tails))).max()))
        for epsilon, delta in finite:
            if ratios is not None:
                if delta == 0.0 and largest > epsilon * (1.0 + _ROUNDING) + _ROUNDING:
                    attained = largest
                else:
                    attained = _mean_lower(-np.expm1(np.minimum(0.0, epsilon - ratios)), level)
            else:
                assert of_other is not None
                attained = _event_lower(outputs[direction], of_other, epsilon, level)
            ratio = math.inf if delta == 0.0 else attained / delta
            if attained > delta and (worst is None or ratio > worst[0]):
                worst = ratio, Exceeded(direction, epsilon, delta, attained)
        if worst is not None:
            yield worst[1]


def _mean_lower(values: Array, level: float) -> float:
    """Lower end of the mean of independent ``values`` in [0, 1]: empirical Bernstein, Maurer and Pontil 2009."""
    logs = math.log(2.0 / level)
    spread = math.sqrt(2.0 * float(values.var(ddof=1)) * logs / len(values))
    return float(values.mean()) - spread - 7.0 * logs / (3.0 * (len(values) - 1))


def _event_lower(inside: Array, outside: Array, epsilon: float, level: float) -> float:
    """Lower end of P(E) - e^epsilon Q(E) for an event that one half of the outputs selects and the other half tests."""
    import numpy as np
    from scipy import stats

    half = len(inside) // 2
    first, second = inside.reshape(len(inside), -1), outside.reshape(len(outside), -1)
    scores_in, scores_out = _discriminant(first[:half], second[:half], first, second)
    ordered = np.sort(scores_in[:half])[:: max(1, half // 400)]
    share_in = 1.0 - np.searchsorted(np.sort(scores_in[:half]), ordered) / half
    share_out = 1.0 - np.searchsorted(np.sort(scores_out[:half]), ordered) / half
    chosen = float(ordered[int(np.argmax(share_in - math.exp(min(epsilon, 700.0)) * share_out))])
    counts = [int((scores[half:] >= chosen).sum()) for scores in (scores_in, scores_out)]
    sizes = [len(scores) - half for scores in (scores_in, scores_out)]
    least = float(stats.beta.ppf(level / 2.0, counts[0], sizes[0] - counts[0] + 1)) if counts[0] else 0.0
    most = float(stats.beta.isf(level / 2.0, counts[1] + 1, sizes[1] - counts[1])) if counts[1] < sizes[1] else 1.0
    return least - math.exp(min(epsilon, 700.0)) * most


def _discriminant(train_in: Array, train_out: Array, inside: Array, outside: Array) -> tuple[Array, Array]:
    """Scores along the linear discriminant of the training halves (Fisher 1936)."""
    import numpy as np

    spread = np.atleast_2d(np.cov(train_in.T) + np.cov(train_out.T))
    direction = np.linalg.pinv(spread) @ (train_in.mean(axis=0) - train_out.mean(axis=0))
    return inside @ direction, outside @ direction
