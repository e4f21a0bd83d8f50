"""Composed releases by enumeration, quadrature and closed forms in mpmath, without code of dpspec."""

import itertools
import math
from collections.abc import Callable, Iterator

import mpmath
import numpy as np

from dpspec_composition.options import Release

#: Probabilities with and without the record, one entry per outcome.
Outcomes = tuple[np.ndarray, np.ndarray]


def outcomes_of(release: Release) -> Outcomes:
    """The worst pair of one run of a release with finitely many outcomes."""
    if release.kind == "randomized-response":
        weights = np.ones(min(release.answers, 3))
        if release.answers > 3:
            weights[2] = release.answers - 2.0
        right, other = weights.copy(), weights.copy()
        right[0] *= math.exp(release.epsilon)
        other[1] *= math.exp(release.epsilon)
        return right / right.sum(), other / other.sum()
    if release.kind == "approx-dp":
        high = (1.0 - release.delta) / (1.0 + math.exp(-release.epsilon))
        low = (1.0 - release.delta) / (1.0 + math.exp(release.epsilon))
        return np.array([release.delta, high, low, 0.0]), np.array([0.0, low, high, release.delta])
    assert release.kind == "discrete-gaussian"
    shift, reach = round(release.sensitivity), math.ceil(12.0 * release.sigma)
    x = np.arange(-reach, shift + reach + 1.0)
    present = np.exp(-0.5 * ((x - shift) / release.sigma) ** 2)
    absent = np.exp(-0.5 * (x / release.sigma) ** 2)
    return present / present.sum(), absent / absent.sum()


def composed_delta(releases: list[Release], epsilon: float) -> float:
    """delta of a composition by enumeration of all combinations of outcomes."""
    present, absent = product(releases)
    return math.fsum(np.maximum(present - math.exp(epsilon) * absent, 0.0))


def divergence_of(release: Release, order: float) -> float:
    """The Renyi divergence of one run with finitely many outcomes."""
    if release.kind != "discrete-gaussian":
        return divergence(outcomes_of(release), order)
    with mpmath.workdps(40):
        a, sd, shift = mpmath.mpf(order), mpmath.mpf(release.sigma), round(release.sensitivity)
        middle, reach = round(order * shift), math.ceil(14.0 * release.sigma) + 1
        x = range(middle - reach, middle + reach + 1)
        moment = mpmath.fsum(mpmath.exp(-(a * (i - shift) ** 2 + (1 - a) * i * i) / (2 * sd * sd)) for i in x)
        total = mpmath.fsum(mpmath.exp(-(i * i) / (2 * sd * sd)) for i in range(-reach, reach + 1))
        return float(mpmath.log(moment / total) / (a - 1))


def divergence(outcomes: Outcomes, order: float) -> float:
    """The Renyi divergence in mpmath."""
    with mpmath.workdps(40):
        pairs = [
            (mpmath.mpf(float(p)), mpmath.mpf(float(q))) for p, q in zip(*outcomes, strict=True) if p > 0 and q > 0
        ]
        total, other = mpmath.fsum(p for p, _ in pairs), mpmath.fsum(q for _, q in pairs)
        a = mpmath.mpf(order)
        return float(mpmath.log(mpmath.fsum((p / total) ** a * (q / other) ** (1 - a) for p, q in pairs)) / (a - 1))


def gaussian_delta(mu: float, epsilon: float) -> float:
    with mpmath.workdps(40):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))


def laplace_delta(edge: float, epsilon: float) -> float:
    return -math.expm1(0.5 * (epsilon - edge)) if epsilon < edge else 0.0


def sampled_gaussian_delta(rate: float, sigma: float, epsilon: float) -> float:
    """The larger delta of one step in either direction, by its two threshold tests."""
    with mpmath.workdps(40):
        q, s, e = mpmath.mpf(rate), mpmath.mpf(sigma), mpmath.mpf(epsilon)
        deltas = [mpmath.mpf(0)]
        ratio = (mpmath.exp(e) - (1 - q)) / q
        t = s * s * mpmath.log(ratio) + mpmath.mpf(1) / 2  # outcomes above t
        mixed = (1 - q) * mpmath.ncdf(-t / s) + q * mpmath.ncdf((1 - t) / s)
        deltas.append(mixed - mpmath.exp(e) * mpmath.ncdf(-t / s))
        ratio = (mpmath.exp(-e) - (1 - q)) / q
        if ratio > 0:
            t = s * s * mpmath.log(ratio) + mpmath.mpf(1) / 2  # outcomes below t
            mixed = (1 - q) * mpmath.ncdf(t / s) + q * mpmath.ncdf((t - 1) / s)
            deltas.append(mpmath.ncdf(t / s) - mpmath.exp(e) * mixed)
        return float(max(deltas))


def concentrated_delta(rho: float, epsilon: float) -> float:
    """The conversion of rho-zCDP at the best order: minimum of e^((a - 1) (a rho - epsilon)) / a (1 - 1/a)^(a - 1)."""
    with mpmath.workdps(30):
        r, e = mpmath.mpf(rho), mpmath.mpf(epsilon)

        def log_delta(b: mpmath.mpf) -> mpmath.mpf:
            a = b + 1
            return b * (a * r - e) + b * mpmath.log(b / a) - mpmath.log(a)

        low, high = mpmath.mpf(-30), mpmath.mpf(40)  # golden section of ln(a - 1)
        share = (mpmath.sqrt(5) - 1) / 2
        for _ in range(160):
            first, second = high - share * (high - low), low + share * (high - low)
            if log_delta(mpmath.exp(first)) < log_delta(mpmath.exp(second)):
                high = second
            else:
                low = first
        return float(mpmath.exp(log_delta(mpmath.exp(low))))


def choices(release: Release, rng: np.random.Generator) -> Iterator[Outcomes]:
    """Exponential mechanisms over random scores of sensitivity 1, on two neighbors, one per run."""
    for _ in range(release.times):
        count = int(rng.integers(2, 6))
        scores, changes = rng.normal(0.0, 3.0, count), rng.uniform(-1.0, 1.0, count)
        if rng.random() < 0.5:
            changes = np.sign(changes)
        pair = []
        for values in (scores + changes, scores):
            weights = np.exp(0.5 * release.epsilon * (values - values.max()))
            pair.append(weights / weights.sum())
        yield pair[0], pair[1]


def product_delta(pairs: list[Outcomes], epsilon: float) -> float:
    present, absent = np.ones(1), np.ones(1)
    for first, second in pairs:
        present, absent = np.outer(present, first).ravel(), np.outer(absent, second).ravel()
    return math.fsum(np.maximum(present - math.exp(epsilon) * absent, 0.0))


def bounded_range_delta(epsilon: float, at: float, count: int = 4001) -> float:
    """The largest delta of the pairs with losses t and t - epsilon, over a table of t."""
    t = np.linspace(0.0, epsilon, count)[1:-1]
    absent = (np.exp(-t) - math.exp(-epsilon)) / -math.expm1(-epsilon)
    present = absent * np.exp(t)
    first = np.maximum(present - math.exp(at) * absent, 0.0)
    return float(np.max(first + np.maximum(1.0 - present - math.exp(at) * (1.0 - absent), 0.0)))


def bounded_range_divergence(epsilon: float, order: float) -> float:
    with mpmath.workdps(40):
        e, a = mpmath.mpf(epsilon), mpmath.mpf(order)

        def value(t: mpmath.mpf) -> mpmath.mpf:
            absent = (mpmath.exp(-t) - mpmath.exp(-e)) / -mpmath.expm1(-e)
            return mpmath.log(absent * mpmath.exp(a * t) + (1 - absent) * mpmath.exp(a * (t - e))) / (a - 1)

        low, high, share = mpmath.mpf(0), e, (mpmath.sqrt(5) - 1) / 2
        for _ in range(120):
            first, second = high - share * (high - low), low + share * (high - low)
            low, high = (low, second) if value(first) > value(second) else (first, high)
        return float(value(low))


def largest_ratio(divergence_at: Callable[[float], float]) -> float:
    """The largest D(a) / a over a table of orders, from below."""
    offsets = np.geomspace(1e-5, 1e4, 61)
    for _ in range(2):
        ratios = [divergence_at(1.0 + b) / (1.0 + b) for b in offsets]
        best = offsets[int(np.argmax(ratios))]
        offsets = np.geomspace(best / 1.5, best * 1.5, 41)
    return max(ratios)


def shared_sample_delta(
    rate: float, noise: tuple[float, float], epsilon: float, group: int = 1, count: int = 1601
) -> float:
    """The larger delta of two queries with Gaussian noise on one Poisson sample, by quadrature over both outputs.

    Each drawn member of the group moves each query by 1.
    """
    grids = [np.linspace(-9.0 * sigma, group + 9.0 * sigma, count) for sigma in noise]
    densities = [
        [np.exp(-0.5 * ((grid - j) / sigma) ** 2) / (sigma * math.sqrt(2.0 * math.pi)) for j in range(group + 1)]
        for grid, sigma in zip(grids, noise, strict=True)
    ]
    absent = np.outer(densities[0][0], densities[1][0])
    weights = [math.comb(group, j) * rate**j * (1.0 - rate) ** (group - j) for j in range(group + 1)]
    present = sum(w * np.outer(densities[0][j], densities[1][j]) for j, w in enumerate(weights))
    pairs = ((present, absent), (absent, present))
    excess = [np.maximum(first - math.exp(epsilon) * second, 0.0) for first, second in pairs]
    return max(float(np.trapezoid(np.trapezoid(e, grids[1], axis=1), grids[0])) for e in excess)


def sampled_delta(outcomes: Outcomes, rate: float, epsilon: float) -> float:
    """The larger delta of a mechanism on a Poisson sample that contains the record with probability ``rate``."""
    present, absent = outcomes
    mixed = rate * present + (1.0 - rate) * absent
    pairs = ((mixed, absent), (absent, mixed))
    return max(math.fsum(np.maximum(first - math.exp(epsilon) * second, 0.0)) for first, second in pairs)


def product(releases: list[Release]) -> Outcomes:
    """The worst pair of all runs of releases with finitely many outcomes."""
    present, absent = np.ones(1), np.ones(1)
    for release in releases:
        for _ in range(release.times):
            first, second = outcomes_of(release)
            present, absent = np.outer(present, first).ravel(), np.outer(absent, second).ravel()
    return present, absent


def replaced_delta(scores: list[int], changed: list[int], size: int, epsilon: float, at: float) -> float:
    """The larger delta of a randomized response about one of ``size`` drawn records, by enumeration of samples.

    The answer is whether a drawn record has a score of 1, right with probability e^epsilon / (1 + e^epsilon).
    """
    right = 1.0 / (1.0 + math.exp(-epsilon))
    answers = []
    for records in (scores, changed):
        found = [float(any(sample)) for sample in itertools.combinations(records, size)]
        yes = math.fsum(found) / len(found)
        answers.append((yes * right + (1.0 - yes) * (1.0 - right), yes * (1.0 - right) + (1.0 - yes) * right))
    pairs = (answers, answers[::-1])
    return max(math.fsum(max(p - math.exp(at) * q, 0.0) for p, q in zip(*pair, strict=True)) for pair in pairs)
