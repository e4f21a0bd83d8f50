"""gamma by every requested method and Monte Carlo, as findings and as curves over kappa, noise and rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Floats, Interval, find_boundary, inside, round_up, whole
from dpspec.stats import binomial
from dpspec_rero import approximations
from dpspec_rero.approximations import CLT_MISPRINT, CLT_SOURCE, gamma_clt, gamma_from_epsilon_delta
from dpspec_rero.findings import ASSUMPTIONS, certified, scope_of
from dpspec_rero.options import Comparisons, Steps, noisy_steps, revealed_probability
from dpspec_rero.theory import THEOREM, Leakage, gamma_source, scale_noise, with_revealed

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
    """Estimates at each kappa from one sample of outputs; the intervals hold jointly with ``confidence``."""
    levels = [inside("kappa", kappa, one=True) for kappa in kappas]
    logs = log_ratios(phases, whole("samples", samples, 100), seed)
    miss = (1.0 - inside("confidence", confidence)) / max(1, len(levels))
    half = len(logs) // 2
    pilot, rest = np.sort(logs[:half])[::-1], np.sort(logs[half:])[::-1]
    ordered = np.sort(logs)[::-1]
    estimates = []
    for kappa in levels:
        largest = np.exp(np.minimum(ordered[: math.ceil(kappa * len(logs))], _LAST))
        value = float(largest.sum()) / len(logs)
        estimates.append(Estimate(value, _interval(kappa, pilot, rest, miss)))
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


def _interval(kappa: float, pilot: Floats, rest: Floats, miss: float) -> Interval:
    """gamma(``kappa``) at confidence 1 - ``miss``, from log-ratios in falling order: thresholds from ``pilot``."""
    each = 0.25 * miss
    log_c = min(float(pilot[min(math.ceil(kappa * len(pilot)), len(pilot)) - 1]), _LAST)
    bounded = np.exp(np.minimum(rest, log_c))
    upper = 1.0 + math.exp(log_c) * kappa - _mean_limit(bounded, math.exp(log_c), each, upper=False)
    # A larger threshold, so that its level is almost certainly below kappa.
    spread = math.sqrt(kappa / len(rest))
    safe = max(kappa - 3.0 * spread, 0.0)
    log_c = min(float(pilot[min(math.ceil(safe * len(pilot)), len(pilot)) - 1 if safe > 0.0 else 0]), _LAST)
    above = int(np.count_nonzero(rest > log_c))
    level = Interval(
        binomial.lower(above, len(rest), 1.0 - each), max(binomial.upper(above, len(rest), 1.0 - each), 1e-300)
    )
    below = np.where(rest > log_c, 0.0, np.exp(np.minimum(rest, log_c)))
    power = max(1.0 - _mean_limit(below, math.exp(log_c), each, upper=True), math.exp(log_c) * level.lower, 0.0)
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
APPROXIMATE = ("clt", "clt-printed", "edgeworth")

Values = list[float | None]


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
_PRINTED = {
    "clt-printed": dps.Printed(refuted=True, reason=CLT_MISPRINT),
    "epsilon-delta": dps.Printed(refuted=False),
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """gamma at each of ``kappas``. ``others``: None if a method has no value. ``confidence``: joint."""

    kappas: tuple[float, ...]
    certified: tuple[Interval, ...]
    others: Mapping[str, Values]
    drawn: tuple[Estimate, ...] = ()
    confidence: float | None = None


def compare(
    spec: dps.Spec, phases: Sequence[Steps], kappas: Sequence[float], certified: Sequence[Interval], delta: float
) -> Comparison:
    asked = Comparisons.of(spec.mechanism.options)
    names: list[str] = []
    for name in asked.baselines:
        if name != "symmetrised":  # of earlier versions
            names += ["epsilon-delta", "epsilon-delta-both"] if name == "epsilon-delta" else [name]
    monte_carlo, revealed, drawn = asked.monte_carlo, revealed_probability(phases), []
    if monte_carlo is not None:
        options = (monte_carlo.samples, monte_carlo.seed, monte_carlo.confidence)
        for estimate in gammas_monte_carlo(kappas, noisy_steps(phases), *options):
            low, high = (with_revealed(end, revealed) for end in (estimate.interval.lower, estimate.interval.upper))
            drawn.append(Estimate(with_revealed(estimate.value, revealed), Interval(low, high)))
    return Comparison(
        kappas=tuple(kappas),
        certified=tuple(certified),
        others={name: _values(name, asked.edgeworth_order, phases, kappas, delta) for name in names},
        drawn=tuple(drawn),
        confidence=None if monte_carlo is None else monte_carlo.confidence,
    )


def gamma_findings(comparison: Comparison, kappas: Sequence[float]) -> Iterator[dps.Finding]:
    for index in map(comparison.kappas.index, kappas):
        at, interval = dps.FrozenMap({"kappa": comparison.kappas[index]}), comparison.certified[index]
        yield certified("gamma", interval, at=dict(at), source=gamma_source(interval))
        values = {name: column[index] for name, column in comparison.others.items()}
        if comparison.drawn:
            values["monte-carlo"] = comparison.drawn[index].value
        for name, value in values.items():
            if value is not None and name in _METHODS:
                proved, source = _METHODS[name]
                yield dps.Finding(
                    quantity="gamma",
                    value=value,
                    bound="upper" if proved else "estimate",
                    rigor="theorem" if proved else "approximate",
                    at=at,
                    scope=scope_of(),
                    method=name,
                    source=source,
                    printed=_PRINTED.get(name),
                    assumptions=ASSUMPTIONS,
                )
        if comparison.drawn:
            drawn = comparison.drawn[index].interval
            yield dps.Finding(
                quantity="gamma",
                value=drawn.upper,
                lower=drawn.lower,
                bound="upper",
                rigor="statistical",
                at=at,
                scope=scope_of(),
                method="monte-carlo",
                source=INTERVAL_SOURCE,
                confidence=comparison.confidence,
                assumptions=ASSUMPTIONS,
            )


def _values(method: str, order: int, phases: Sequence[Steps], kappas: Sequence[float], delta: float) -> Values:
    noisy, revealed = noisy_steps(phases), revealed_probability(phases)
    leakage = Leakage(tuple(phases))

    def shown(values: Sequence[float | None]) -> Values:
        return [None if value is None else with_revealed(value, revealed) for value in values]

    def edgeworth() -> Sequence[float | None]:
        try:
            return approximations.gammas_edgeworth(kappas, noisy, order)
        except ArithmeticError:
            return [None] * len(kappas)

    def from_epsilon(direction: str) -> Values:
        (epsilon,) = leakage.epsilons([delta], direction)
        return [gamma_from_epsilon_delta(k, epsilon.upper, delta, both=direction == "both") for k in kappas]

    compute: Mapping[str, Callable[[], Values]] = {
        "clt": lambda: shown([gamma_clt(k, noisy) for k in kappas]),
        "clt-printed": lambda: shown([gamma_clt(k, noisy, as_printed=True) for k in kappas]),
        "edgeworth": lambda: shown(edgeworth()),
        "rdp": lambda: shown(approximations.gammas_rdp(kappas, noisy)),
        "epsilon-delta": lambda: from_epsilon("remove"),
        "epsilon-delta-both": lambda: from_epsilon("both"),
        "absent-first": lambda: [interval.upper for interval in leakage.tprs(kappas, "add")],
    }
    return compute[method]()


Array = np.ndarray[Any, Any]

#: The baselines of the curve.
CURVE = tuple(float(kappa) for kappa in np.geomspace(1e-7, 1.0, 50))


def curve_series(comparison: Comparison) -> dps.Series:
    return _gamma_series(
        "gamma-by-kappa",
        "Reconstruction: gamma by baseline success kappa, on logarithmic axes",
        {"kappa": list(comparison.kappas), **_columns(comparison)},
        comparison,
        comparison.certified,
        x="kappa",
    )


def noise_series(
    spec: dps.Spec, phases: Sequence[Steps], kappas: Sequence[float], factors: Sequence[float]
) -> dps.Series:
    delta = kit.claimed_deltas(spec)[-1]
    columns: dict[str, list[dps.Json]] = {}
    intervals: list[Interval] = []
    for factor in factors:
        scaled = scale_noise(phases, factor)
        leakage = Leakage(scaled)
        comparison = compare(spec, scaled, kappas, leakage.gammas(kappas), delta)
        (epsilon,), advantage = leakage.epsilons([delta], "both"), leakage.advantage()
        rows = len(kappas)
        added: dict[str, list[dps.Json]] = {
            "factor": [factor] * rows,
            "effect": [max(phase.effect for phase in scaled)] * rows,
            "kappa": list(kappas),
            **_columns(comparison),
            "epsilon": [epsilon.upper] * rows,
            "advantage": [advantage.upper] * rows,
        }
        intervals.extend(comparison.certified)
        for name, values in added.items():
            columns.setdefault(name, []).extend(values)
    title = f"Reconstruction and membership by noise, epsilon at delta {delta:g}".replace("e-0", "e-")
    return _gamma_series("gamma-by-noise", title, columns, comparison, intervals, x="factor", by="kappa")


def _columns(comparison: Comparison) -> dict[str, list[dps.Json]]:
    """Values of all methods; errors are relative to the middle of the certified interval, negative if too small."""
    columns: dict[str, list[dps.Json]] = {
        "gamma": [interval.upper for interval in comparison.certified],
        "gamma-lower": [interval.lower for interval in comparison.certified],
    }
    middles = [0.5 * (interval.lower + interval.upper) for interval in comparison.certified]

    def errors(values: Sequence[float | None]) -> list[dps.Json]:
        return [None if v is None else v / middle - 1.0 for v, middle in zip(values, middles, strict=True)]

    columns |= {name: list(values) for name, values in comparison.others.items()}
    columns |= {f"{name}-error": errors(comparison.others[name]) for name in APPROXIMATE if name in comparison.others}
    if comparison.drawn:
        values = [one.value for one in comparison.drawn]
        columns |= {
            "monte-carlo": list(values),
            "monte-carlo-lower": [one.interval.lower for one in comparison.drawn],
            "monte-carlo-upper": [one.interval.upper for one in comparison.drawn],
            "monte-carlo-error": errors(values),
        }
    return columns


def _gamma_series(
    name: str,
    title: str,
    columns: Mapping[str, list[dps.Json]],
    comparison: Comparison,
    intervals: Sequence[Interval],
    *,
    x: str,
    by: str | None = None,
) -> dps.Series:
    upper = {"gamma", "epsilon", "advantage", "monte-carlo-upper", *(set(comparison.others) - set(APPROXIMATE))}
    return kit.series(
        name,
        title,
        columns,
        rigor="approximate" if comparison.others or comparison.drawn else "certified",
        source=gamma_source(*intervals),
        x=x,
        y=["gamma", *comparison.others, *(["monte-carlo"] if comparison.drawn else [])],
        by=by,
        log=("x", "y"),
        upper=[column for column in columns if column in upper],
        lower=[column for column in columns if column in ("gamma-lower", "monte-carlo-lower")],
    )


#: Relative accuracy of the noise that matches the declared epsilon.
_RELATIVE = 1e-4

#: Smallest and largest factor on the noise in the search.
_LEAST, _MOST = 1e-6, 1e9


def rates_series(
    phases: Sequence[Steps], kappas: Sequence[float], rates: Sequence[float], delta: float
) -> dps.Series | None:
    """The smallest noise keeps the epsilon of ``phases`` at ``delta``, both directions; None if it is 0 or infinite."""
    (epsilon,) = Leakage(tuple(phases)).epsilons([delta], "both")
    if not 0.0 < epsilon.upper < math.inf:
        return None
    rows: list[tuple[float, ...]] = []
    intervals: list[Interval] = []
    for rate in rates:
        sampled = [replace(phase, rate=rate) for phase in phases]

        def holds(factor: float, sampled: Sequence[Steps] = sampled) -> bool:
            return Leakage(scale_noise(sampled, factor)).epsilons([delta], "both")[0].upper <= epsilon.upper

        least = find_boundary(holds, _LEAST, _MOST, increasing=True, relative=_RELATIVE, start=1.0)
        gammas = Leakage(scale_noise(sampled, least.value)).gammas(kappas)
        intervals.extend(gammas)
        rows += [(rate, least.value, kappa, g.upper, g.lower) for kappa, g in zip(kappas, gammas, strict=True)]
    shown = f"{round_up(epsilon.upper, 4):g}"
    return kit.series(
        "gamma-by-rate",
        f"Reconstruction at epsilon {shown}, delta {delta:g}, by sampling rate".replace("e-0", "e-"),
        kit.columns_of(("rate", "factor", "kappa", "gamma", "gamma-lower"), rows),
        rigor="certified",
        source=gamma_source(*intervals),
        x="kappa",
        y=("gamma",),
        by="rate",
        log=("x", "y"),
        upper=("gamma",),
        lower=("gamma-lower",),
    )
