"""Lower bounds from one-run attacks that hold if canaries are independent. They decide no claim.

``independent-canaries``: given the run-level information of the release, each canary has one part, which depends on
that canary's coin and separate randomness only. The bound on mu needs no other assumption.

A bound on epsilon also needs a Gaussian curve of each canary down to delta, which no test supports: m canaries show no
error rate below 1 / m. One bound on epsilon holds for any randomness that all steps of a run share. The other, larger
one assumes ``no-shared-randomness``, which only several runs can test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from dpspec.contract import Assumption, Finding, FrozenMap, Json, Scope
from dpspec.stats.attacks import curve_lines, independence
from dpspec.stats.attacks.independence import Guesses
from dpspec.stats.conformance import noise_tests
from dpspec.stats.conformance.canary_contributions import StepDependence
from dpspec.stats.conformance.evidence import read_all

#: Quantities of the bounds, which no claim has.
MU, EPSILON, WITH_LUCK = "mu-if-independent", "epsilon-if-independent", "epsilon-if-conditionally-independent"

#: The statements of the assumptions, by name.
TEXTS = {
    "independent-canaries": "given the run-level information of the release, each canary adds one part to it, which "
    "depends on the canary's own inclusion bit and separate randomness only",
    "no-shared-randomness": "the canaries of a run share no randomness",
    "gaussian-curve": "the privacy curve of each canary is the same Gaussian one down to the delta of the bound",
}

#: Level of the tests of runs, steps and shape.
LEVEL = 0.05

#: Part of the level for the test of layers. Its p-values are far smaller if layers share noise.
LAYERS_LEVEL = 0.001

#: Share of a run's error probability for its shared randomness; near the best choice from epsilon 4 on.
SHARED_ERROR = 0.75


def independent_bounds(
    outcomes: Sequence[str],
    at: FrozenMap,
    scope: Scope,
    method: str,
    confidence: float,
    assumed: Sequence[Assumption],
    luck: Sequence[StepDependence] = (),
    layers: float | None = None,
    *,
    curve: Literal["declared", "unchecked"] | None = None,
) -> Iterator[Finding]:
    """Lower bounds on mu and on epsilon at ``at["delta"]`` that assume independent canaries.

    ``outcomes`` are each run's coins, from the lowest score to the highest; ``luck`` the dependence within steps and
    ``layers`` the p-value for shared noise of two layers, if computed. Without support for a Gaussian ``curve`` (None),
    there is no bound on epsilon.
    """
    ranked = [coins for coins in outcomes if len(coins) >= independence.LEAST_CANARIES]
    if not ranked:
        return
    runs = [independence.design(len(coins)) for coins in ranked]
    correct = [independence.right(coins, run) for coins, run in zip(ranked, runs, strict=True)]
    independent, no_luck = _independence(luck, layers), _no_luck(runs, correct)
    mu = independence.mu_lower(runs, sum(correct), confidence)
    shape = None if curve is None else independence.gaussian_shape(ranked)

    def bound(quantity: str, value: float, at: FrozenMap, how: str, also: str = "", *more: Assumption) -> Finding:
        return Finding(
            quantity=quantity,
            value=value,
            bound="lower",
            rigor="statistical",
            at=at,
            scope=scope,
            method=f"if canaries are independent ({independent.status}){also}, decides no claim: {method}, {how}",
            source=independence.SOURCE,
            assumptions=(independent, *more, *assumed),
            confidence=confidence,
        )

    if curve is None:
        why = "; no epsilon, as nothing says that the curve is Gaussian"
    elif shape is None:
        why = f"; no epsilon, as fewer than {independence.CANARIES_OF_CURVE} canaries show no shape"
    else:
        why = "; no epsilon, as the curve is not Gaussian" if shape.p_value <= LEVEL else ""
    guesses = sum(run.low + run.high for run in runs)
    yield bound(MU, mu, FrozenMap({"group_size": at["group_size"]}), f"{guesses} guesses{why}")
    if curve is None or why or independent.status == "false":
        return
    gaussian = Assumption(
        name="gaussian-curve",
        status=curve,
        text=f"{TEXTS['gaussian-curve']} (delta = {at['delta']:g}); the test of the shape sees error rates above "
        f"1/{max(map(len, ranked))}, and cannot support that below",
        test=independence.CURVE_TEST,
        level=LEVEL,
    )
    value = epsilon_lower(runs, correct, at["delta"], confidence)
    how = f"on a Gaussian curve ({curve})"
    yield bound(WITH_LUCK, value, at, f"whatever luck they share for the run, {how}", "", gaussian)
    if no_luck.status == "false":
        return
    also = f" and share no luck ({no_luck.status})"
    value = curve_lines.gaussian_epsilon(mu, at["delta"])
    yield bound(EPSILON, value, at, f"that mu {how}", also, no_luck, gaussian)


def _independence(luck: Sequence[StepDependence], layers: float | None) -> Assumption:
    name = "independent-canaries"
    text = TEXTS[name]
    if layers is not None and layers <= LAYERS_LEVEL:
        text += "; layers share their noise, and canaries that lie in them with it"
        return Assumption(name=name, status="false", text=text, test=noise_tests.LAYERS_TEST, level=LAYERS_LEVEL)
    shared, level = independence.steps_p_value(luck), LEVEL if layers is None else LEVEL - LAYERS_LEVEL
    if shared is None:
        return Assumption(name=name, status="unchecked", text=text)
    seen = independence.least_seen(luck, level)
    return Assumption(
        name=name,
        status="false" if shared <= level else "not-rejected",
        text=f"{text}; a correlation of {seen:.2g} between two canaries' parts of a step would mostly have been seen",
        test="; ".join([independence.STEPS_TEST, *([] if layers is None else [noise_tests.LAYERS_TEST])]),
        level=LEVEL,
    )


def _no_luck(runs: Sequence[Guesses], correct: Sequence[int]) -> Assumption:
    text = TEXTS["no-shared-randomness"]
    agree = independence.runs_agree(runs, correct)
    if agree is None:
        text += "; it cannot be seen in one run, five runs would show luck that comes in up to 55% of them"
        return Assumption(name="no-shared-randomness", status="unchecked", text=text)
    # The probability of shared randomness above which all runs have it with probability LEVEL.
    rarest = LEVEL ** (1.0 / len(runs))
    return Assumption(
        name="no-shared-randomness",
        status="false" if agree <= LEVEL else "not-rejected",
        text=f"{text}; luck with a chance above {rarest:.2g} in each run can go unseen in {len(runs)} runs",
        test=independence.RUNS_TEST,
        level=LEVEL,
    )


def epsilon_lower(runs: Sequence[Guesses], correct: Sequence[int], delta: float, confidence: float) -> float:
    """Return a lower bound on epsilon that holds if canaries are independent given the run's shared randomness.

    Theorem 13 of ``docs/explanation/proofs/independent-canaries.md``, for the correct guesses of each run. 0 if mu = 0
    is not rejected.
    """
    both = (1.0 - confidence) ** (1.0 / len(runs))
    shared = SHARED_ERROR * both
    if delta >= shared:
        return 0.0
    guessed = zip(runs, correct, strict=True)
    least = min(independence.mu_lower([run], right, 1.0 - (both - shared)) for run, right in guessed)
    return curve_lines.gaussian_epsilon(least, delta / shared)


def dependence_of_size(evidence: Sequence[Mapping[str, Json]], size: int) -> list[StepDependence]:
    signals = [run.signal for run in read_all(evidence) if run.signal is not None]
    return [one for signal in signals for one in signal.luck or () if one.size == size]


def layers_share(evidence: Sequence[Mapping[str, Json]]) -> float | None:
    """Return the p-value for shared noise of two layers, with a Bonferroni correction over runs; None without any."""
    measured = [run.measured for run in read_all(evidence) if run.measured is not None]
    found = [one.shared.p_value() for one in measured if one.shared is not None]
    return min(1.0, len(found) * min(found)) if found else None
