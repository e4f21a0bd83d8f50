"""Auditing with one training run: the number of independent coins that an attack guesses right.

Each of m canaries is inserted by an independent fair coin. An attack guesses r of the coins, and v guesses are right
(Steinke, Nasr & Jagielski 2023). If the release is (epsilon, delta)-DP with respect to each coin, then with
W ~ Bin(r, q), q = 1 / (1 + e^-epsilon), by Theorem 6 of ``docs/explanation/proofs/one-run.md``,

    P[V >= v] <= beta + m delta beta (1 - beta) / (v P[W = v]),    beta = P[W >= v].

*A whole trade-off curve* (f-DP): the null is (epsilon_i, delta_i)-DP for several i, the lines that support the curve
(Mahloujifar, Melis & Chaudhuri 2025, whose recursion over tails this sharpens). Theorem 8 has the linear program (1),
(2) for the weights a_k, b_k, and their choice. A poor choice costs tightness only.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec.accounting import Floats
from dpspec.stats import binomial
from dpspec.stats.attacks import curve_lines

#: Source of evidence and bounds of this kind.
SOURCE = "Steinke, Nasr & Jagielski 2023, Theorem 5.2, with the exact correction for delta > 0"

#: Bound on the relative error of gammaln, added to the log of the correction. SciPy's has 2e-16 at integers up to 1e9.
_GAMMALN_ERROR = 1e-15


@lru_cache(maxsize=1 << 16)  # searches over several guess counts repeat the same arguments
def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """P-value of the null "(epsilon, delta)-DP per canary", rounded up.

    >>> round(p_value(100, 100, 75, math.log(3), 0.0), 3)
    0.553
    """
    curve_lines.require_privacy(epsilon, delta)
    return _of_odds(canaries, guesses, correct, epsilon, delta)


def _of_odds(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The p-value for the logarithm of the odds of a right guess: below 0 if guessing is hard (Theorem 61)."""
    beta = independent(canaries, guesses, correct, epsilon, delta)
    return min(1.0, beta + correction(canaries, guesses, correct, epsilon, delta, beta)) if beta < 1.0 else 1.0


def independent(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The first term of the bound, beta = P[W >= correct]."""
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"need 0 <= correct <= guesses <= canaries, got {correct}, {guesses}, {canaries}")
    if math.isnan(epsilon) or not 0.0 <= delta <= 1.0:
        raise ValueError(f"need a number epsilon and 0 <= delta <= 1, got {epsilon}, {delta}")
    if correct == 0:
        return 1.0
    if epsilon < 0.0:  # q keeps its precision if it is small
        return float(special.betainc(correct, guesses - correct + 1, special.expit(epsilon)))
    # The probability of a wrong guess keeps its precision if q rounds to 1.
    return float(special.betaincc(guesses - correct + 1, correct, special.expit(-epsilon)))


def correction(canaries: int, guesses: int, correct: int, epsilon: float, delta: float, beta: float) -> float:
    """The second term of the bound, m delta beta (1 - beta) / (v P[W = v]), at most 1."""
    if delta == 0.0 or correct == 0:
        return 0.0
    tail = float(special.betainc(guesses - correct + 1, correct, special.expit(-epsilon)))
    if tail == 0.0:
        return 0.0
    if beta > 1e-280:
        choose = special.gammaln(guesses + 1) - special.gammaln(correct + 1) - special.gammaln(guesses - correct + 1)
        log_mass = choose + correct * special.log_expit(epsilon) + (guesses - correct) * special.log_expit(-epsilon)
        size = guesses * (1.0 + math.log(guesses + 1.0) + abs(epsilon))
        log_ratio = math.log(beta) - float(log_mass) + _GAMMALN_ERROR * size
    else:  # beta underflows: with the ratio rho of the first two terms of the tail, 1 / (1 - rho) is an upper bound
        log_ratio = -math.log1p(-(guesses - correct) / (correct + 1.0) * math.exp(epsilon))
    return math.exp(min(0.0, math.log(canaries * delta / correct) + math.log(tail) + log_ratio))


def epsilon_lower(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    return binomial.largest_rejected(
        lambda epsilon: p_value(canaries, guesses, correct, epsilon, delta), 1.0 - confidence, relative=1e-10
    )


#: Source of evidence and bounds of this kind.
CURVE_SOURCE = "Mahloujifar, Melis & Chaudhuri 2025, by linear programming duality"

#: Smaller p-values are those of the best single line: they are far below any level, and (2) would overflow.
_TINY = 1e-200

#: First and last step of the search over the logarithm of the factor; the power moves half as far.
_FIRST_STEP, _LAST_STEP, _POWER_STEP = math.log(2.0), 0.1, 0.5

#: The factors' logarithms at which it may start. The bound is constant over ranges of factors, and a search that starts
#: within one sees no smaller bound.
_STARTS = tuple(k * math.log(2.0) for k in range(-4, 3))

#: Larger p-values are those of the best single line too: no test needs them.
_LARGE = 0.25

#: Largest mu of the search.
_LARGEST_MU = 100.0

#: Start of the recursion from above, in square roots of r above v.
_FAR = 6.0

#: Relative rounding error of the recursions, more than that of a million steps.
_ROUNDING = 1e-9


def support(points: Sequence[curve_lines.Point]) -> tuple[curve_lines.Point, ...]:
    return _Lines.of(points, 1).points


def mu_lower(canaries: int, guesses: int, correct: int, confidence: float) -> float:
    """Lower bound on the smallest mu for which the release is mu-GDP per canary, within 1e-4; at most 100.

    Valid for all mechanisms. It implies no epsilon at a single delta, which may be smaller without a Gaussian curve.
    """

    def of_mu(mu: float) -> float:
        return curve_p_value(canaries, guesses, correct, curve_lines.gaussian(mu))

    return binomial.largest_rejected(of_mu, 1.0 - confidence, relative=1e-4, most=_LARGEST_MU)


@lru_cache(maxsize=4096)
def curve_p_value(canaries: int, guesses: int, correct: int, points: tuple[curve_lines.Point, ...]) -> float:
    """At most the p-value of any single point: all bound the probability of the same event; 1 without points.

    An epsilon may be any logarithm of the odds of a right guess.
    """
    lines = _Lines.of(points, canaries)
    singles = [_of_odds(canaries, guesses, correct, *point) for point in lines.points]
    best = min(singles, default=1.0)
    if len(singles) < 2 or not _TINY < best < _LARGE:
        return best
    search = _Search(guesses, correct, lines, singles.index(best), best)
    return min(best, search.run() * (1.0 + _ROUNDING))


@dataclass(frozen=True, eq=False)
class _Lines:
    """The lines of F(x) = min_i (offsets_i + slopes_i x), x >= 0, with rising slopes and falling offsets, (n,)."""

    points: tuple[curve_lines.Point, ...]
    slopes: Floats
    offsets: Floats

    @classmethod
    def of(cls, points: Sequence[curve_lines.Point], canaries: int) -> "_Lines":
        """Lower envelope of lines with slope e^epsilon, epsilon <= 700."""
        lines: list[tuple[float, float, curve_lines.Point]] = []
        for epsilon, delta in sorted(points):
            slope, offset = math.exp(min(epsilon, 700.0)), canaries * delta
            if epsilon > 700.0 or (lines and offset >= lines[-1][1]):
                continue
            while lines and slope <= lines[-1][0] * (1.0 + _ROUNDING):  # the same slope and lower: omitting is valid
                lines.pop()
            while len(lines) > 1:
                (before, above, _), (last, low, _) = lines[-2:]
                if (low - offset) * (last - before) < (above - low) * (slope - last):
                    break
                lines.pop()
            lines.append((slope, offset, (epsilon, delta)))
        return cls(
            points=tuple(point for *_, point in lines),
            slopes=np.array([slope for slope, *_ in lines]),
            offsets=np.array([offset for _, offset, _ in lines]),
        )

    @cached_property
    def _starts(self) -> Floats:
        """The x from which each line except the steepest is the lowest, ascending."""
        return np.asarray((-np.diff(self.offsets) / np.diff(self.slopes))[::-1], dtype=np.float64)

    def at(self, x: Floats) -> npt.NDArray[np.intp]:
        return len(self.slopes) - 1 - np.searchsorted(self._starts, x, side="left")


class _Search:
    """Search for slopes with a small bound, starting from those of the best single line."""

    def __init__(self, guesses: int, correct: int, lines: _Lines, line: int, p_value: float) -> None:
        self._r, self._v, self._lines = guesses, correct, lines
        self._single, self._start = p_value, 1.0 / p_value - 1.0
        self._log_x = self._first(line)

    def run(self) -> float:
        tried = [(factor, 1.0) for factor in _STARTS]
        bounds = [self._bound(*arguments) for arguments in tried]
        best = min(bounds)
        if best > self._single:  # several lines do not help here
            return best
        (factor, power), step = tried[bounds.index(best)], _FIRST_STEP
        while step > _LAST_STEP:
            tried = [(factor + step, power), (factor - step, power)]
            tried += [(factor, power + _POWER_STEP * step), (factor, power - _POWER_STEP * step)]
            bounds = [self._bound(f, p) for f, p in tried]
            least = min(bounds)
            if least < best:
                best, (factor, power) = least, tried[bounds.index(least)]
            else:
                step *= 0.5
        return best

    def _first(self, line: int) -> Floats:
        """ln x for k = 1, ..., v, from the p and a of the single line: two pieces of a binomial distribution."""
        r, v = self._r, self._v
        slope, offset = float(self._lines.slopes[line]), float(self._lines.offsets[line])
        k = np.arange(r + 1)
        log_mass = special.gammaln(r + 1) - special.gammaln(k + 1) - special.gammaln(r - k + 1)
        log_mass = log_mass + k * math.log(slope / (1.0 + slope)) - (r - k) * math.log1p(slope)
        mass = np.exp(log_mass)
        above = float(mass[v:].sum())
        extra = offset * math.exp(-float(log_mass[v]) - math.log(v)) if log_mass[v] > -700.0 else math.inf
        low = max(0.0, 1.0 - extra * above) if math.isfinite(extra) else 1.0
        p = np.where(k < v, low, 0.0) * mass
        if above > 0.0:
            p[v:] = (1.0 - float(p[:v].sum())) * mass[v:] / above
        weight = (r - k[1:] + 1) * p[:-1]
        solution = _meet(r, v, [slope] * v, self._start)
        if solution is None:
            order = np.argsort(np.abs(k[1:] - v), kind="stable")
        else:
            order = np.argsort(-np.array(solution[1]), kind="stable")
        x = np.empty(r)
        x[order] = np.cumsum(weight[order])
        return np.asarray(np.log(np.maximum(x[:v], 1e-290)), dtype=np.float64)

    def _bound(self, log_factor: float, power: float) -> float:
        x = np.exp(np.minimum(log_factor + power * self._log_x, 600.0))
        # x falls and the slopes rise with k, except for rounding of equal weights.
        line = np.maximum.accumulate(self._lines.at(x))
        solution = _meet(self._r, self._v, self._lines.slopes[line].tolist(), self._start)
        if solution is None:
            return math.inf
        z, weights = solution
        self._start = 1.0 / z - 1.0
        steps = np.diff(np.array([0.0, *weights[: self._v]]))
        return float((1.0 + steps @ self._lines.offsets[line]) * z)


def _meet(guesses: int, correct: int, slopes: list[float], start: float) -> tuple[float, list[float]] | None:
    """The solution of (2) with the smallest z: z, and a_k / z for k = 1, ..., r; None on overflow.

    ``start`` is a guess of the complement ratio (1 - z) / z. The recursion from above is convex and piecewise linear in
    it, so bracketed Newton steps find the root. Far above v the starting point does not matter, and the recursion
    starts from a_v.
    """
    r, v = guesses, correct
    far = min(r, v + 40 + int(_FAR * math.sqrt(r)))
    a, b = [0.0], [0.0]
    for d in range(v):
        b.append((1.0 + d * a[d]) / (r - d))
        a.append(a[d] + (b[d + 1] - b[d]) / slopes[d])
    top = a[v]

    def from_above(complement_ratio: float, a_from_above: list[float] | None = None) -> tuple[float, float]:
        """a_v and its derivative; B continues with its last slope."""
        if far < r and far * top - (r - far) * b[v] >= complement_ratio:
            first, x, rise = far, top, 0.0
        else:
            first, x, rise = r, complement_ratio / r, 1.0 / r
        if a_from_above is not None:
            a_from_above.extend([x] * (r - first))
        for d in range(first - 1, v - 1, -1):
            if a_from_above is not None:
                a_from_above.append(x)
            if x > 1e6 * top:
                return math.inf, 1.0
            i = min(bisect_right(a, x), v)
            slope = slopes[i - 1]
            rise = (1.0 + (r - d) * slope * rise) / d
            x = (complement_ratio + (r - d) * (b[i - 1] + slope * (x - a[i - 1]))) / d
        return x, rise

    low, high, complement_ratio = 0.0, math.inf, start
    for _ in range(60):
        x, rise = from_above(complement_ratio)
        low, high = (complement_ratio, high) if x <= top else (low, complement_ratio)
        if low > 0.0 and (high - low <= 1e-9 * low or 0.0 <= top - x <= 1e-9 * top):
            break
        step = (complement_ratio + (top - x) / rise) * (1.0 - 1e-10) if math.isfinite(x) else math.inf
        if low < step < high:
            complement_ratio = step
        elif high < math.inf:
            complement_ratio = math.sqrt(low * high) if low > 0.0 else 0.1 * high
        else:
            complement_ratio = 10.0 * low
        if not 1e-300 < complement_ratio < 1e300:
            return None
    if low == 0.0 or not math.isfinite(top):
        return None
    above: list[float] = []
    from_above(low, above)
    return 1.0 / (1.0 + low), [*a[1:], *reversed(above)]
