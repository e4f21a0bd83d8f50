"""gamma by every requested method and Monte Carlo, as findings and as a curve over kappa."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Floats, Interval, inside, whole
from dpspec.stats import binomial
from dpspec_rero import approximations
from dpspec_rero.approximations import CLT_MISPRINT, CLT_SOURCE, gamma_clt, gamma_from_epsilon_delta
from dpspec_rero.findings import ASSUMPTIONS, certified, scope_of
from dpspec_rero.options import Steps, noisy_steps, revealed_probability
from dpspec_rero.theory import THEOREM, Leakage, gamma_source, with_revealed

MONTE_CARLO_SOURCE = "Hayes et al. 2023, Algorithm 1"
INTERVAL_SOURCE = f"{MONTE_CARLO_SOURCE}; Maurer & Pontil 2009; Clopper & Pearson 1934"

#: Draws held in memory at a time.
_BLOCK = 1 << 18

#: Largest logarithm whose exponential is used.
_LAST = 700.0


class Estimate(NamedTuple):
    value: float
    interval: Interval


def gammas_monte_carlo(
    kappas: Sequence[float], phases: Sequence[Steps], samples: int, seed: int, confidence: float = 0.95
) -> list[Estimate]:
    """Estimates at each kappa from one sample of outputs; the intervals hold jointly with ``confidence``.

    The sum of likelihood ratios estimates a probability and can exceed one; the estimate is then one.
    """
    levels = [inside("kappa", kappa, one=True) for kappa in kappas]
    logs = log_ratios(phases, whole("samples", samples, 100), seed)
    miss = (1.0 - inside("confidence", confidence)) / max(1, len(levels))
    half = len(logs) // 2
    pilot, held_back = np.sort(logs[:half])[::-1], np.sort(logs[half:])[::-1]
    ordered = np.sort(logs)[::-1]
    estimates = []
    for kappa in levels:
        largest = np.exp(np.minimum(ordered[: math.ceil(kappa * len(logs))], _LAST))
        value = min(1.0, float(largest.sum()) / len(logs))
        estimates.append(Estimate(value, _interval(kappa, pilot, held_back, miss)))
    return estimates


def log_ratios(phases: Sequence[Steps], samples: int, seed: int) -> Floats:
    """ln of the composed likelihood ratio at ``samples`` outputs of the null distribution, shape (samples,)."""
    source = np.random.default_rng(seed)
    total = np.zeros(samples)
    for phase in phases:
        if phase.effect == 0.0:
            continue
        if phase.noise == "gaussian" and phase.rate == 1.0:  # the sum over the steps is normal
            mu = phase.effect * math.sqrt(phase.count)
            total += mu * source.standard_normal(samples) - 0.5 * mu * mu
            continue
        width = min(phase.count, 64)
        rows = max(1, _BLOCK // width)
        for start in range(0, samples, rows):
            end = min(start + rows, samples)
            for done in range(0, phase.count, width):
                total[start:end] += _draw_losses(phase, source, end - start, min(width, phase.count - done))
    return total


def _draw_losses(phase: Steps, source: np.random.Generator, rows: int, columns: int) -> Floats:
    s = phase.effect
    if phase.noise == "gaussian":
        losses = source.standard_normal((rows, columns))
        losses *= s
        losses -= 0.5 * s * s
    else:
        x = source.laplace(size=(rows, columns))
        losses = np.clip(2.0 * x - s, -s, s)  # |x| - |x - s|
    if phase.rate == 1.0:
        return np.asarray(losses.sum(axis=1), dtype=np.float64)
    far = losses > _LAST
    np.expm1(np.minimum(losses, _LAST), out=losses, where=~far)
    losses *= np.where(far, 1.0, phase.rate)
    logs = np.where(far, losses + math.log(phase.rate), np.log1p(np.where(far, 0.0, losses)))
    return np.asarray(logs.sum(axis=1), dtype=np.float64)


def _interval(kappa: float, pilot: Floats, held_back: Floats, miss: float) -> Interval:
    """gamma(``kappa``) at confidence 1 - ``miss``, from log-ratios in falling order: thresholds from ``pilot``."""
    share = 0.25 * miss
    log_c = min(float(pilot[min(math.ceil(kappa * len(pilot)), len(pilot)) - 1]), _LAST)
    bounded = np.exp(np.minimum(held_back, log_c))
    upper = 1.0 + math.exp(log_c) * kappa - _mean_limit(bounded, math.exp(log_c), share, upper=False)
    # A larger threshold, so that its level is almost certainly below kappa.
    spread = math.sqrt(kappa / len(held_back))
    safe = max(kappa - 3.0 * spread, 0.0)
    log_c = min(float(pilot[min(math.ceil(safe * len(pilot)), len(pilot)) - 1 if safe > 0.0 else 0]), _LAST)
    above = int(np.count_nonzero(held_back > log_c))
    level = Interval(
        binomial.lower(above, len(held_back), 1.0 - share),
        max(binomial.upper(above, len(held_back), 1.0 - share), 1e-300),
    )
    below = np.where(held_back > log_c, 0.0, np.exp(np.minimum(held_back, log_c)))
    power = max(1.0 - _mean_limit(below, math.exp(log_c), share, upper=True), math.exp(log_c) * level.lower, 0.0)
    lower = min(1.0, power) * min(1.0, kappa / level.upper)
    upper = min(1.0, max(upper, kappa))
    return Interval(min(max(lower, kappa), upper), upper)


def _mean_limit(values: Floats, largest: float, miss: float, *, upper: bool) -> float:
    """Confidence limit for the mean of a variable in [0, ``largest``]; it fails with probability ``miss``."""
    count = len(values)
    log = math.log(2.0 / miss)
    slack = math.sqrt(2.0 * float(values.var(ddof=1)) * log / count) + 7.0 * largest * log / (3.0 * (count - 1))
    mean = float(values.mean())
    return mean + slack if upper else mean - slack


#: Methods whose errors are reported relative to the certified values.
APPROXIMATE = ("clt", "clt-printed", "edgeworth", "monte-carlo")

#: Methods with findings of gamma: whether they are bounds (theorems) or estimates, and the source.
_METHODS = {
    "clt": (False, CLT_SOURCE),
    "clt-printed": (False, "Kaissis et al. 2023, main text"),
    "edgeworth": (False, approximations.EDGEWORTH_SOURCE),
    "rdp": (True, approximations.RDP_SOURCE),
    "epsilon-delta": (True, THEOREM),
    "epsilon-delta-both": (True, f"{THEOREM}, from both directions"),
    "monte-carlo": (False, MONTE_CARLO_SOURCE),
}
_PRINTED = {"clt-printed": dps.Printed(refuted=True, reason=CLT_MISPRINT), "epsilon-delta": dps.Printed(refuted=False)}

#: The baselines of the curve.
CURVE = tuple(float(kappa) for kappa in np.geomspace(1e-7, 1.0, 50))

#: Joint confidence of the Monte Carlo intervals, and the seed of the samples.
_CONFIDENCE, _SEED = 0.95, 0


def gamma_outcomes(spec: dps.Spec, leakage: Leakage, named: Sequence[float]) -> Iterator[dps.Finding | dps.Series]:
    """Findings at the ``named`` baselines, and the curve over these and ``CURVE``, by all methods of the spec."""
    kappas = sorted({*named, *CURVE})
    bounds = leakage.gammas(kappas)
    values: dict[str, Sequence[float | None]] = {}
    for name in spec.mechanism.get("baselines", ()):
        for method in ("epsilon-delta", "epsilon-delta-both") if name == "epsilon-delta" else (name,):
            values[method] = _values(method, leakage, kappas, kit.claimed_deltas(spec)[-1])
    drawn: list[Interval] = []
    if (monte_carlo := spec.mechanism.get("monte_carlo")) is not None:
        noisy, revealed = noisy_steps(leakage.phases), revealed_probability(leakage.phases)
        estimates = gammas_monte_carlo(kappas, noisy, int(monte_carlo["samples"]), _SEED, _CONFIDENCE)
        values["monte-carlo"] = [with_revealed(estimate.value, revealed) for estimate in estimates]
        for estimate in estimates:
            low, high = (with_revealed(end, revealed) for end in (estimate.interval.lower, estimate.interval.upper))
            drawn.append(Interval(low, high))
    for index in map(kappas.index, named):
        position = dps.FrozenMap({"kappa": kappas[index]})
        yield certified("gamma", bounds[index], at=dict(position), source=gamma_source(bounds[index]))
        finding = partial(dps.Finding, quantity="gamma", at=position, scope=scope_of(), assumptions=ASSUMPTIONS)
        for name, column in values.items():
            value = column[index]
            if value is not None and name in _METHODS:
                proved, source = _METHODS[name]
                yield finding(
                    value=value,
                    bound="upper" if proved else "estimate",
                    rigor="theorem" if proved else "approximate",
                    method=name,
                    source=source,
                    printed=_PRINTED.get(name),
                )
        if drawn:
            yield finding(
                value=drawn[index].upper,
                lower=drawn[index].lower,
                bound="upper",
                rigor="statistical",
                method="monte-carlo",
                source=INTERVAL_SOURCE,
                confidence=_CONFIDENCE,
            )
    columns: dict[str, Sequence[float | None]] = {
        "kappa": kappas,
        "gamma": [bound.upper for bound in bounds],
        "gamma-lower": [bound.lower for bound in bounds],
        **values,
    }
    middles = [0.5 * (bound.lower + bound.upper) for bound in bounds]
    for name in [name for name in values if name in APPROXIMATE]:
        pairs = zip(values[name], middles, strict=True)
        columns[f"{name}-error"] = [None if value is None else value / middle - 1.0 for value, middle in pairs]
    if drawn:
        columns["monte-carlo-lower"] = [interval.lower for interval in drawn]
        columns["monte-carlo-upper"] = [interval.upper for interval in drawn]
    yield kit.series(
        "gamma-by-kappa",
        "Reconstruction: gamma by baseline success kappa, on logarithmic axes",
        columns,
        # Of the bounds; other lines are marked in the legend.
        rigor="theorem" if values.keys() - set(APPROXIMATE) else "certified",
        source=gamma_source(*bounds),
        x="kappa",
        y=["gamma", *values],
        log=("x", "y"),
        upper=[
            "gamma",
            *(name for name in values if name not in APPROXIMATE),
            *(["monte-carlo-upper"] if drawn else []),
        ],
        lower=["gamma-lower", *(["monte-carlo-lower"] if drawn else [])],
    )


def _values(method: str, leakage: Leakage, kappas: Sequence[float], delta: float) -> Sequence[float | None]:
    """gamma at each of ``kappas`` by one method; None without a value."""
    if method == "absent-first":
        return [interval.upper for interval in leakage.tprs(kappas, "add")]
    if method in ("epsilon-delta", "epsilon-delta-both"):
        both = method == "epsilon-delta-both"
        (epsilon,) = leakage.epsilons([delta], "both" if both else "remove")
        return [gamma_from_epsilon_delta(kappa, epsilon.upper, delta, both=both) for kappa in kappas]
    noisy, revealed = noisy_steps(leakage.phases), revealed_probability(leakage.phases)
    values: Sequence[float | None]
    try:
        if method == "rdp":
            values = approximations.gammas_rdp(kappas, noisy)
        elif method == "edgeworth":
            values = approximations.gammas_edgeworth(kappas, noisy)
        else:
            values = [gamma_clt(kappa, noisy, as_printed=method == "clt-printed") for kappa in kappas]
    except ArithmeticError:  # a comparison is out of the range of floats; the certified bound is not
        values = [None] * len(kappas)
    return [None if value is None else with_revealed(value, revealed) for value in values]
