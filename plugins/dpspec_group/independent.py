"""What one-run attacks show if canaries are independent: findings of names of their own, which decide no claim.

Every other number of an attack holds for any mechanism. These hold where the release is one part for each canary, each
made of that canary's coin alone, with randomness of its own: ``independent-canaries``. DP-SGD with orthogonal gradient
canaries comes close to that; a model that all canaries change together need not. Runs that differ by more than chance
tell against it, and one run alone shows nothing, so that the assumption is ``unchecked`` there. Given it, the bound on
mu holds whatever the laws of the parts. An epsilon follows only where the curve is Gaussian, which the shape of the
ranked coins is tested for; where that is rejected none is made.

Of many runs there is nothing to assume: each has randomness and coins of its own, so that runs are independent parts
and the same theorem bounds mu, the one number of the Gaussian mechanism that would leak as much, for any mechanism.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dpspec.contract as dps
from dpspec import kit
from dpspec.stats.attacks import gaussian_fit
from dpspec.stats.independence import curve_shape, order_statistics, shared_luck
from dpspec_group.design import attack_delta
from dpspec_group.options import Attack
from dpspec_group.whole_curve import noise_ruled_out

#: Begins the names of what holds given the assumption alone: no claim is of these quantities.
MU, EPSILON = "mu-if-independent", "epsilon-if-independent"

_RUNS = dps.Assumption(
    name="independent-runs", status="by-construction", text="each run has a coin and randomness of its own"
)

#: At this level runs are found not to agree, and scores not to have a Gaussian curve.
LEVEL = 0.05


def independent_bounds(
    outcomes: Sequence[str],
    at: dps.FrozenMap,
    scope: dps.Scope,
    method: str,
    confidence: float,
    assumed: Sequence[dps.Assumption],
) -> Iterator[dps.Finding]:
    """The bound on mu, and on epsilon at ``at["delta"]`` where the curve may be Gaussian; nothing of few canaries.

    outcomes: each run's coins from the lowest score to the highest. assumed: what both rest on besides.
    """
    told = [coins for coins in outcomes if len(coins) >= order_statistics.LEAST_CANARIES]
    if not told:
        return
    runs = [order_statistics.design(len(coins)) for coins in told]
    correct = [order_statistics.right(coins, run) for coins, run in zip(told, runs, strict=True)]
    independence = _independence(runs, correct)
    mu = order_statistics.mu_lower(runs, sum(correct), confidence)
    shape = curve_shape.gaussian_shape(told)
    said = f"if canaries are independent ({independence.status}), decides no claim: {method}"
    yield dps.Finding(
        quantity=MU,
        value=mu,
        bound="lower",
        rigor="statistical",
        at=dps.FrozenMap({"group_size": at["group_size"]}),
        scope=scope,
        method=f"{said}, {sum(run.low + run.high for run in runs)} guesses{_no_epsilon(shape)}",
        source=order_statistics.SOURCE,
        assumptions=(independence, *assumed),
        confidence=confidence,
    )
    if shape is None or shape.p_value <= LEVEL or independence.status == "false":
        return
    yield dps.Finding(
        quantity=EPSILON,
        value=gaussian_fit.epsilon(mu, at["delta"]),
        bound="lower",
        rigor="statistical",
        at=at,
        scope=scope,
        method=f"{said}, that mu on a Gaussian curve",
        source=order_statistics.SOURCE,
        assumptions=(independence, _gaussian_curve(), *assumed),
        confidence=confidence,
    )


def mu_of_runs(spec: dps.Spec, records: int, size: int, ranked: str) -> Iterator[dps.Finding]:
    """What runs with and without one group show of mu, whatever the mechanism; nothing of fewer than four runs.

    ranked: the coins of all runs from the lowest score to the highest; equal scores stand against the attack, so that
    as many guesses are right as in any order, or fewer. How many runs are guessed follows from their number, and no
    threshold is chosen.
    """
    assert spec.audit is not None
    if len(ranked) < order_statistics.LEAST_CANARIES:
        return
    attack, guesses = Attack.of(spec), order_statistics.design(len(ranked))
    correct = order_statistics.right(ranked, guesses)
    mu = order_statistics.mu_lower([guesses], correct, spec.audit.confidence)
    delta = attack_delta(spec, size)
    told = f"; of a Gaussian mechanism it would be epsilon {gaussian_fit.epsilon(mu, delta):.4g} at delta {delta:g}"
    yield dps.Finding(
        quantity="mu",
        value=mu,
        bound="lower",
        rigor="statistical",
        at=dps.FrozenMap({"group_size": size}),
        scope=attack.scope(spec, records),
        method=f"{attack.description}, {len(ranked)} runs with and without a group of {size}, "
        f"{guesses.low + guesses.high} guesses{told if mu > 0.0 else ''}"
        f"{noise_ruled_out(spec.phases, size, records, mu)}",
        source=order_statistics.SOURCE,
        assumptions=(kit.COINS, _RUNS),
        confidence=spec.audit.confidence,
    )


def _independence(runs: Sequence[order_statistics.Guesses], correct: Sequence[int]) -> dps.Assumption:
    """The assumption, with what the runs say of it."""
    text = "each canary adds a part of its own to the release, made without the coins and the luck of others"
    agree = shared_luck.runs_agree(runs, correct)
    if agree is None:
        text += "; luck that all canaries of a run share cannot be seen in one run"
        return dps.Assumption(name="independent-canaries", status="unchecked", text=text)
    rarest = shared_luck.rarest_unseen(len(runs), LEVEL)
    text += f"; luck with a chance above {rarest:.2g} in each run can go unseen in {len(runs)} runs"
    return dps.Assumption(
        name="independent-canaries",
        status="false" if agree <= LEVEL else "not-rejected",
        text=text,
        test=shared_luck.TEST,
        level=LEVEL,
    )


def _gaussian_curve() -> dps.Assumption:
    return dps.Assumption(
        name="gaussian-curve",
        status="not-rejected",
        text="the privacy curve is Gaussian as far as delta reaches; the test sees rates of error that were met, and "
        "not those as small as delta",
        test=curve_shape.TEST,
        level=LEVEL,
    )


def _no_epsilon(shape: curve_shape.Shape | None) -> str:
    """Why no epsilon follows, where none does."""
    if shape is None:
        return f"; no epsilon, as fewer than {curve_shape.LEAST_CANARIES} canaries show no shape"
    return "; no epsilon, as the curve is not Gaussian" if shape.p_value <= LEVEL else ""
