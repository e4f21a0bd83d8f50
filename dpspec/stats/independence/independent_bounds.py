"""Lower bounds from one-run attacks that hold if canaries are independent. They decide no claim.

``independent-canaries``: given the run-level information of the release, each canary has one part, which depends on
that canary's coin and separate randomness only. DP-SGD with orthogonal gradient canaries is close to it; a model that
all canaries change need not be. Dependence within steps and shared noise of layers are tested if the trial has the
evidence. The bound on mu needs no other assumption.

A bound on epsilon also needs a Gaussian curve of each canary down to delta. No test supports that: m canaries show no
error rate below 1 / m. Eight Laplace releases, and a clipped Gaussian one, rank canaries as a Gaussian does and lose
far less at delta. So the curve is declared, or the assumption is ``unchecked``, or there is no bound on epsilon. The
shape of the ranked coins can only reject it.

One run does not show randomness that all its steps share. One bound on epsilon holds for any such randomness. The
other, larger one assumes ``no-shared-luck``, which only several runs can test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from scipy import special

from dpspec.contract import Assumption, Finding, FrozenMap, Json, Scope
from dpspec.stats.attacks import gaussian_fit
from dpspec.stats.conformance import residual_tests
from dpspec.stats.conformance.evidence import read_all
from dpspec.stats.independence import curve_shape, order_statistics, step_dependence
from dpspec.stats.independence.order_statistics import Guesses

#: Quantities of the bounds, which no claim has.
MU, EPSILON, WITH_LUCK = "mu-if-independent", "epsilon-if-independent", "epsilon-if-conditionally-independent"

#: Level of the tests of runs, steps and shape.
LEVEL = 0.05

#: Part of the level for the test of layers. Its p-values are far smaller if layers share noise.
LAYERS_LEVEL = 0.001


#: Name of the test that runs agree.
AGREEMENT = "chi-square test that runs agree"

#: Share of a run's error probability for its shared randomness; near the best choice from epsilon 4 on.
SHARED_ERROR = 0.75


def independent_bounds(
    outcomes: Sequence[str],
    at: FrozenMap,
    scope: Scope,
    method: str,
    confidence: float,
    assumed: Sequence[Assumption],
    luck: Sequence[step_dependence.Dependence] = (),
    layers: float | None = None,
    *,
    curve: Literal["declared", "unchecked"] | None = None,
) -> Iterator[Finding]:
    """Lower bounds on mu and on epsilon at ``at["delta"]`` that assume independent canaries.

    Args:
        outcomes: Each run's coins, from the lowest score to the highest.
        at: The delta and the group size.
        scope: The scope of the attack.
        method: The attack in words.
        confidence: The confidence of each bound.
        assumed: Further assumptions of all bounds.
        luck: Statistics of dependence within steps, if they were computed.
        layers: The p-value of the test for shared noise of two layers, if it was computed.
        curve: Status of the assumption that each canary's privacy curve is Gaussian. None if nothing supports it; then
            the bounds on epsilon are omitted.

    Yields:
        Nothing for fewer than four canaries, and no epsilon if the shape of the ranked coins rejects a Gaussian curve.
    """
    told = [coins for coins in outcomes if len(coins) >= order_statistics.LEAST_CANARIES]
    if not told:
        return
    runs = [order_statistics.design(len(coins)) for coins in told]
    correct = [order_statistics.right(coins, run) for coins, run in zip(told, runs, strict=True)]
    independence, no_luck = _independence(luck, layers), _no_luck(runs, correct)
    mu = order_statistics.mu_lower(runs, sum(correct), confidence)
    shape = None if curve is None else curve_shape.gaussian_shape(told)

    def bound(quantity: str, value: float, at: FrozenMap, how: str, also: str = "", *more: Assumption) -> Finding:
        return Finding(
            quantity=quantity,
            value=value,
            bound="lower",
            rigor="statistical",
            at=at,
            scope=scope,
            method=f"if canaries are independent ({independence.status}){also}, decides no claim: {method}, {how}",
            source=order_statistics.SOURCE,
            assumptions=(independence, *more, *assumed),
            confidence=confidence,
        )

    guesses = sum(run.low + run.high for run in runs)
    why = "; no epsilon, as nothing says that the curve is Gaussian" if curve is None else _no_epsilon(shape)
    yield bound(MU, mu, FrozenMap({"group_size": at["group_size"]}), f"{guesses} guesses{why}")
    if curve is None or shape is None or shape.p_value <= LEVEL or independence.status == "false":
        return
    gaussian = _gaussian_curve(curve, max(map(len, told)), at["delta"])
    value = epsilon_lower(runs, correct, at["delta"], confidence)
    how = f"on a Gaussian curve ({curve})"
    yield bound(WITH_LUCK, value, at, f"whatever luck they share for the run, {how}", "", gaussian)
    if no_luck.status == "false":
        return
    also = f" and share no luck ({no_luck.status})"
    value = gaussian_fit.epsilon(mu, at["delta"])
    yield bound(EPSILON, value, at, f"that mu {how}", also, no_luck, gaussian)


def _independence(luck: Sequence[step_dependence.Dependence], layers: float | None) -> Assumption:
    """Return the assumption with its status by the tests of steps and layers."""
    text = (
        "given what the release tells of the run as a whole, each canary adds a part of its own to it, made without "
        "the coins and the luck of others"
    )
    if layers is not None and layers <= LAYERS_LEVEL:
        text += "; layers share their noise, and canaries that lie in them with it"
        name = "independent-canaries"
        return Assumption(name=name, status="false", text=text, test=residual_tests.LAYERS_TEST, level=LAYERS_LEVEL)
    shared, level = step_dependence.p_value(luck), LEVEL if layers is None else LEVEL - LAYERS_LEVEL
    if shared is None:
        return Assumption(name="independent-canaries", status="unchecked", text=text)
    seen = step_dependence.least_seen(luck, level)
    return Assumption(
        name="independent-canaries",
        status="false" if shared <= level else "not-rejected",
        text=f"{text}; a correlation of {seen:.2g} between two canaries' parts of a step would mostly have been seen",
        test=step_dependence.TEST if layers is None else f"{step_dependence.TEST}; {residual_tests.LAYERS_TEST}",
        level=LEVEL,
    )


def _no_luck(runs: Sequence[Guesses], correct: Sequence[int]) -> Assumption:
    """Return the assumption of no shared randomness, with its status by the test of runs."""
    text = "the canaries of a run share no randomness"
    agree = runs_agree(runs, correct)
    if agree is None:
        text += "; it cannot be seen in one run, five runs would show luck that comes in up to 55% of them"
        return Assumption(name="no-shared-luck", status="unchecked", text=text)
    rarest = rarest_unseen(len(runs), LEVEL)
    return Assumption(
        name="no-shared-luck",
        status="false" if agree <= LEVEL else "not-rejected",
        text=f"{text}; luck with a chance above {rarest:.2g} in each run can go unseen in {len(runs)} runs",
        test=AGREEMENT,
        level=LEVEL,
    )


def _gaussian_curve(status: Literal["declared", "unchecked"], canaries: int, delta: float) -> Assumption:
    return Assumption(
        name="gaussian-curve",
        status=status,
        text=f"the privacy curve of each canary is the same Gaussian one down to delta = {delta:g}; the test of the "
        f"shape sees error rates above 1/{canaries}, and cannot support that below",
        test=curve_shape.TEST,
        level=LEVEL,
    )


def _no_epsilon(shape: curve_shape.Shape | None) -> str:
    """The reason for which the ranked coins allow no epsilon; empty if they do."""
    if shape is None:
        return f"; no epsilon, as fewer than {curve_shape.LEAST_CANARIES} canaries show no shape"
    return "; no epsilon, as the curve is not Gaussian" if shape.p_value <= LEVEL else ""


def runs_agree(runs: Sequence[Guesses], correct: Sequence[int]) -> float | None:
    """Return the p-value of the test that runs agree, given their correct guesses; None for fewer than two runs."""
    if len(runs) != len(correct):
        raise ValueError(f"need the right guesses of {len(runs)} runs, got {len(correct)}")
    if len(runs) < 2:
        return None
    low, high = 0.0, order_statistics.LARGEST_MU
    for _ in range(30):
        middle = 0.5 * (low + high)
        below = sum(order_statistics.moments(run, middle)[0] for run in runs) < sum(correct)
        low, high = (middle, high) if below else (low, middle)
    fitted = [order_statistics.moments(run, low) for run in runs]
    spread = sum((v - mean) ** 2 / max(variance, 1e-12) for v, (mean, variance) in zip(correct, fitted, strict=True))
    return float(special.chdtrc(len(runs) - 1, spread))


def rarest_unseen(runs: int, level: float) -> float:
    """Return the probability of shared randomness above which all ``runs`` have it with probability ``level``.

    >>> round(rarest_unseen(2, 0.05), 2)
    0.22
    """
    return float(level ** (1.0 / runs))


def epsilon_lower(runs: Sequence[Guesses], correct: Sequence[int], delta: float, confidence: float) -> float:
    """Return a lower bound on epsilon that holds if canaries are independent given the run's shared randomness.

    Theorem 13 of ``docs/explanation/proofs/independent-canaries.md``.

    Args:
        runs: Designs.
        correct: Correct guesses of each run.
        delta: Delta, in (0, 1).
        confidence: Confidence, in (0, 1).

    Returns:
        The bound; 0 if mu = 0 is not rejected.
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
    shared = SHARED_ERROR * both
    if delta >= shared:
        return 0.0
    guessed = zip(runs, correct, strict=True)
    least = min(order_statistics.mu_lower([run], right, 1.0 - (both - shared)) for run, right in guessed)
    return gaussian_fit.epsilon(least, delta / shared)


def dependence_of_size(evidence: Sequence[Mapping[str, Json]], size: int) -> list[step_dependence.Dependence]:
    """Return the dependence within steps between groups of ``size``, of all runs that have it."""
    found = (one for run in read_all(evidence) if run.signal is not None for one in run.signal.luck or ())
    return [
        step_dependence.Dependence(one.count, one.degrees, one.means, one.spreads) for one in found if one.size == size
    ]


def layers_share(evidence: Sequence[Mapping[str, Json]]) -> float | None:
    """Return the p-value for shared noise of two layers, with a Bonferroni correction over runs; None without any."""
    sums = [run.measured.shared for run in read_all(evidence) if run.measured is not None]
    found = [one for one in sums if one is not None]
    if not found:
        return None
    return min(1.0, len(found) * min(one.p_value() for one in found))
