"""What one-run attacks show if canaries are independent: findings of names of their own, which decide no claim.

Every other number of an attack holds for any mechanism. These hold where, given what the release tells of the run as a
whole, it is one part for each canary, made of that canary's coin alone, with randomness of its own:
``independent-canaries``. DP-SGD with orthogonal gradient canaries comes close to that; a model that all canaries
change together need not. Where the trial kept what canaries share within each step, that is tested, and whether layers
share noise; else nobody looked, and the assumption is ``unchecked``. The bound on mu needs nothing more, whatever the
laws of the parts.

An epsilon follows only if each canary's curve is Gaussian down to delta. No test can support that: m canaries show no
error rate below 1 / m, and delta is smaller. Eight Laplace releases, and a Gaussian one whose output is clipped, rank
canaries as a Gaussian one does and lose far less at delta. So the curve is declared, or the assumption is
``unchecked``, or no epsilon is made. The shape of the ranked coins can only reject it.

Of luck that lasts for the run no run shows anything. One epsilon holds whatever it is; the other, larger one if there
is none: ``no-shared-luck``, unchecked in one run, tested by whether several agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from dpspec.contract import Assumption, Finding, FrozenMap, Scope
from dpspec.stats.attacks import gaussian_fit
from dpspec.stats.independence import curve_shape, layer_noise, order_statistics, shared_luck, step_luck, told_luck

#: Begins the names of what holds given the assumptions alone: no claim is of these quantities.
MU, EPSILON, WITH_LUCK = "mu-if-independent", "epsilon-if-independent", "epsilon-if-conditionally-independent"

#: At this level runs are found not to agree, steps to share luck, and scores not to have a Gaussian curve.
LEVEL = 0.05

#: So much of it is left to layers that share noise, where they were compared: where that is seen p is far smaller.
LAYERS_LEVEL = 0.001


def independent_bounds(
    outcomes: Sequence[str],
    at: FrozenMap,
    scope: Scope,
    method: str,
    confidence: float,
    assumed: Sequence[Assumption],
    luck: Sequence[step_luck.Luck] = (),
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
        luck: Statistics of what canaries share within the steps of a run, if they were computed.
        layers: The p-value of the test for noise that two layers share, if it was computed.
        curve: Status of the assumption that each canary's privacy curve is Gaussian. None if nothing supports it; then
            no bound on epsilon is made.

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
    value = told_luck.epsilon_lower(runs, correct, at["delta"], confidence)
    how = f"on a Gaussian curve ({curve})"
    yield bound(WITH_LUCK, value, at, f"whatever luck they share for the run, {how}", "", gaussian)
    if no_luck.status == "false":
        return
    also = f" and share no luck ({no_luck.status})"
    value = gaussian_fit.epsilon(mu, at["delta"])
    yield bound(EPSILON, value, at, f"that mu {how}", also, no_luck, gaussian)


def _independence(luck: Sequence[step_luck.Luck], layers: float | None) -> Assumption:
    """The assumption, with what the steps of the runs and the layers of the model say of it."""
    text = (
        "given what the release tells of the run as a whole, each canary adds a part of its own to it, made without "
        "the coins and the luck of others"
    )
    if layers is not None and layers <= LAYERS_LEVEL:
        text += "; layers share their noise, and canaries that lie in them with it"
        name = "independent-canaries"
        return Assumption(name=name, status="false", text=text, test=layer_noise.TEST, level=LAYERS_LEVEL)
    shared, level = step_luck.p_value(luck), LEVEL if layers is None else LEVEL - LAYERS_LEVEL
    if shared is None:
        return Assumption(name="independent-canaries", status="unchecked", text=text)
    seen = step_luck.least_seen(luck, level)
    return Assumption(
        name="independent-canaries",
        status="false" if shared <= level else "not-rejected",
        text=f"{text}; a correlation of {seen:.2g} between two canaries' parts of a step would mostly have been seen",
        test=step_luck.TEST if layers is None else f"{step_luck.TEST}; {layer_noise.TEST}",
        level=LEVEL,
    )


def _no_luck(runs: Sequence[order_statistics.Guesses], correct: Sequence[int]) -> Assumption:
    """That nothing as a whole is luck, with what the runs say of it."""
    text = "the canaries of a run share no randomness"
    agree = shared_luck.runs_agree(runs, correct)
    if agree is None:
        text += "; it cannot be seen in one run, five runs would show luck that comes in up to 55% of them"
        return Assumption(name="no-shared-luck", status="unchecked", text=text)
    rarest = shared_luck.rarest_unseen(len(runs), LEVEL)
    return Assumption(
        name="no-shared-luck",
        status="false" if agree <= LEVEL else "not-rejected",
        text=f"{text}; luck with a chance above {rarest:.2g} in each run can go unseen in {len(runs)} runs",
        test=shared_luck.TEST,
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
