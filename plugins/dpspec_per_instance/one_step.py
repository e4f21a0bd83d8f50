"""One step as (epsilon, delta): Thudi et al. 2024, Lemma A.1 and Corollary 3.1, figures 8 to 11.

Formulas: ``docs/explanation/proofs/per-instance.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Floats, checked_orders, gaussian, inside, positive, whole
from dpspec.contract import Printed
from dpspec_per_instance.bounds import Composer
from dpspec_per_instance.theory import checked_exponent, entropic_mean

SOURCE = "Thudi et al. 2024, Corollary 3.1, with the exact profile of the Gaussian mechanism"

#: Status of values that use the classical constant outside its range.
CLASSICAL = Printed(refuted=True, reason="the classical Gaussian constant does not hold at this distance")

#: Log-probability below which a batch size is negligible for every tried p.
_NEVER = -1e4

#: Exponents of the search.
_EXPONENTS = tuple(np.geomspace(1.5, 1e4, 60).tolist())


class OneSided(NamedTuple):
    """P[with in S] <= e^epsilon P[without in S] + delta for every S, without the reverse inequality."""

    epsilon: float
    delta: float


def classical_constant(delta: float, sigma: float) -> float:
    """sqrt(2 ln(1.25 / delta)) / sigma: times the distance, the textbook epsilon."""
    return math.sqrt(2.0 * math.log(1.25 / inside("delta", delta))) / positive("sigma", sigma)


def epsilons(distances: npt.ArrayLike, delta: float, sigma: float) -> Floats:
    """Epsilon of the Gaussian mechanism at ``delta`` for each distance >= 0, by its exact profile."""
    far = np.asarray(distances, dtype=np.float64)
    least = np.zeros(far.shape)
    least[far > 0] = gaussian.epsilon(inside("delta", delta), far[far > 0] / positive("sigma", sigma))
    return least


def log_moment(epsilon: npt.ArrayLike, p: float, log_masses: npt.ArrayLike | None = None) -> float:
    """ln N_p from the epsilon (k,) of each batch and log-probabilities (k,); poor at large p over sampled batches."""
    return float(entropic_mean(epsilon, checked_exponent(p), log_masses))


def lemma(rate: float, log_norm: float, delta: float, p: float, fpr: npt.ArrayLike) -> Floats:
    """The largest true-positive rate at false-positive rates ``fpr`` (Lemma A.1), at most 1; log_norm is ln N_p."""
    at = np.asarray(fpr, dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_drawn = math.log(rate) + log_norm + (1.0 - 1.0 / checked_exponent(p)) * np.log(at)
    drawn = np.exp(np.minimum(log_drawn, 1.0))  # values above 1 are trivial
    return np.asarray(np.minimum(1.0, drawn + rate * delta + (1.0 - rate) * at), dtype=np.float64)


def best_lemma(rate: float, sigma: float, norm: float, delta: float, fpr: npt.ArrayLike) -> Floats:
    """Minimum over exponents of Lemma A.1's rates at ``fpr`` (k,), for a sum that the record changes by ``norm``."""
    inner, _ = split(rate, delta)
    log_norm = float(epsilons(norm, inner, sigma))
    return np.asarray(np.min([lemma(rate, log_norm, inner, p, fpr) for p in _EXPONENTS], axis=0), dtype=np.float64)


def split(rate: float, delta: float, *, whole: bool = False) -> tuple[float, float]:
    """Split ``delta`` into the delta of a batch with the record, below 1, and slack: half each; ``whole``: no slack."""
    inner = min(delta * (1.0 if whole else 0.5) / inside("rate", rate, one=True), 0.5)
    return inner, delta - rate * inner


def corollary(rate: float, log_norm: float, delta: float, slack: float, p: float) -> OneSided:
    """Corollary 3.1 with delta' = ``slack``; ``log_norm`` is ln N_p."""
    q = inside("rate", rate, one=True)
    total = q * inside("delta", delta) + inside("slack", slack)
    if total >= 1.0:
        raise ValueError(f"rate * delta + slack must be below 1, got {total!r}")
    power = checked_exponent(p)
    log_drawn = (power * (math.log(q) + log_norm) - math.log(slack)) / (power - 1.0)
    rest = math.log1p(-q) if q < 1.0 else -math.inf
    return OneSided(max(0.0, float(np.logaddexp(log_drawn, rest))), total)


def amplified(rate: float, epsilon: float, delta: float) -> OneSided:
    """ln(1 + q (e^epsilon - 1)), q delta: the limit of the corollary for p -> inf, and never larger than it."""
    q = inside("rate", rate, one=True)
    rest = math.log1p(-q) if q < 1.0 else -math.inf
    return OneSided(float(np.logaddexp(math.log(q) + epsilon, rest)), q * delta)


def stratified_distances(
    records: int, rate: float, norm: float, clip_norm: float, sampled: Mapping[int, npt.ArrayLike] | None = None
) -> tuple[Floats, Floats]:
    """Distances of the mean rule and their log-probabilities, shape (k,) each, for sizes ~ Binomial(records, rate).

    A size b in ``sampled`` uses distances of sampled batches; others the bound (norm + clip_norm) / (b + 1), the empty
    batch ``norm``. Rare small batches, which dominate for large p, thus never depend on sampling.
    """
    n, given = whole("records", records, 0), dict(sampled or {})
    sizes = np.arange(n + 1)
    log_sizes = binom.logpmf(sizes, n, rate)
    rest = log_sizes > _NEVER
    rest[list(given)] = False
    bounds = np.where(sizes == 0, norm, (norm + clip_norm) / (sizes + 1.0))
    distances, logs = [bounds[rest]], [log_sizes[rest]]
    for size, some in given.items():
        drawn = np.atleast_1d(np.asarray(some, dtype=np.float64))
        distances.append(drawn)
        logs.append(np.full(len(drawn), log_sizes[size] - math.log(len(drawn))))
    return np.concatenate(distances), np.concatenate(logs)


def best_corollary(
    rate: float,
    epsilon: npt.ArrayLike,
    log_masses: npt.ArrayLike,
    delta: float,
    slack: float,
    ps: npt.ArrayLike = _EXPONENTS,
) -> tuple[OneSided, float]:
    """Minimum epsilon' over exponents and its exponent; arguments as for ``log_moment``."""
    bounds = [
        (corollary(rate, log_moment(epsilon, p, log_masses), delta, slack, p), p) for p in np.asarray(ps).tolist()
    ]
    return min(bounds, key=lambda pair: pair[0].epsilon)


#: Clipped norms, in clip norms, in the table of one step.
NORMS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)

#: False-positive rates of attacks.
RATES = (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.5)

#: Status of values that use the classical constant in its range.
_HOLDS = dps.Printed(refuted=False, reason="with the classical Gaussian constant, which holds at this distance")


class OneStep(NamedTuple):
    """Present-first epsilon of one step. ``amplified``: the limit for large p. ``printed``: by the paper's constant."""

    corollary: float
    amplified: float
    printed: float
    holds: bool


def one_step(rate: float, sigma: float, norm: float, delta: float) -> OneStep:
    """One step of a sum of clipped gradients; ``norm`` of the record and noise ``sigma`` are in clip norms."""
    inner, slack = split(rate, delta)
    whole, _ = split(rate, delta, whole=True)
    exact, classical = float(epsilons(norm, inner, sigma)), classical_constant(inner, sigma) * norm
    repaired, printed = (best_corollary(rate, [e], [0.0], inner, slack)[0].epsilon for e in (exact, classical))
    return OneStep(
        corollary=repaired,
        amplified=amplified(rate, float(epsilons(norm, whole, sigma)), whole).epsilon,
        printed=printed,
        holds=norm == 0.0 or float(gaussian.delta(classical, norm / sigma)) <= inner,
    )


def step_statements(
    spec: dps.Spec, steps: Sequence[tuple[float, float]], delta: float
) -> Iterator[dps.Finding | dps.Series]:
    """The worst of ``steps`` (rate, noise) for a saturated record, by clipped norm, and the power of attacks."""
    by_norm = {
        norm: max((one_step(*step, norm, delta) for step in steps), key=lambda one: one.corollary) for norm in NORMS
    }
    worst = by_norm[1.0]
    paper, status = "Thudi et al. 2024, Corollary 3.1", _HOLDS if worst.holds else CLASSICAL
    forms = [
        (worst.corollary, SOURCE, "one step of a saturated record", None),
        (worst.amplified, f"{SOURCE}, for p to infinity", "one step of a saturated record, amplified", None),
        (worst.printed, paper, "one step of a saturated record", status),
    ]
    for value, source, method, printed in forms:
        yield kit.theorem_upper(
            "step_epsilon",
            value,
            at={"delta": delta},
            scope=dps.Scope(direction="remove"),
            method=method,
            source=source,
            assumptions=kit.ASSUMPTIONS,
            printed=printed,
        )
    rows = [(norm, *one[:3], "yes" if one.holds else "no") for norm, one in by_norm.items()]
    yield kit.series(
        "one-step",
        f"Epsilon of one step at delta {delta:g}, present-first, by the record's clipped norm".replace("e-0", "e-"),
        kit.columns_of(("norm", "corollary", "amplified", "printed", "printed_holds"), rows),
        upper=("corollary", "amplified"),
        rigor="theorem",
        source=SOURCE,
        x="norm",
        y=["corollary", "amplified"],
        log=["x", "y"],
    )
    composer, fpr = Composer(spec.mechanism.options, "present-first"), np.array(RATES)
    single = np.max([best_lemma(*step, 1.0, delta, fpr) for step in steps], axis=0)
    whole = np.min([true_positive_rate(fpr, a, composer.baseline(a)) for a in composer.orders], axis=0)
    yield kit.series(
        "attack-limits",
        "Maximum true-positive rate of attacks on one record, in one step and in the run",
        kit.columns_of(("fpr", "one_step", "run"), zip(RATES, single.tolist(), whole.tolist(), strict=True)),
        upper=("one_step", "run"),
        rigor="theorem",
        source="Thudi et al. 2024, Lemma A.1, with the exact profile of the Gaussian mechanism, and Theorem 3.2",
        x="fpr",
        y=["one_step", "run"],
        log=["x", "y"],
        identity=True,
    )


def true_positive_rate(fpr: npt.ArrayLike, order: npt.ArrayLike, divergence: npt.ArrayLike) -> Floats:
    """Maximum true-positive rate (e^d fpr)^((a - 1) / a), at most 1; arrays broadcast.

    D_a(P || Q) <= d gives P(S) <= (e^d Q(S))^((a - 1) / a) for every S.
    """
    a = checked_orders(order)
    with np.errstate(divide="ignore"):
        log_rate = (a - 1.0) / a * (np.log(np.asarray(fpr, dtype=np.float64)) + np.asarray(divergence))
    return np.asarray(np.exp(np.minimum(log_rate, 0.0)), dtype=np.float64)
