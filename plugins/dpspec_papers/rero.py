"""gamma by every requested method and by Monte Carlo, alongside the certified bound (Kaissis et al. 2023)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Interval
from dpspec_papers import rero_approximations as approximations
from dpspec_papers.extended_series import series_named, with_columns
from dpspec_papers.rero_approximations import CLT_MISPRINT, CLT_SOURCE, gamma_clt, gamma_from_epsilon_delta
from dpspec_papers.rero_monte_carlo import INTERVAL_SOURCE, gammas_monte_carlo
from dpspec_papers.rero_monte_carlo import SOURCE as MONTE_CARLO_SOURCE
from dpspec_rero.findings import ASSUMPTIONS, GAMMA_SERIES, leakage_of, scope_of
from dpspec_rero.options import noisy_steps, revealed_probability
from dpspec_rero.theory import THEOREM, Leakage, pure_epsilon, with_revealed

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

#: Joint confidence of the Monte Carlo intervals, and the seed of the samples.
_CONFIDENCE, _SEED = 0.95, 0


def compare(
    spec: dps.Spec, facts: dps.Facts, bounds: Sequence[dps.Finding | dps.Series]
) -> Iterator[dps.Finding | dps.Series]:
    """Findings at the baselines of the certified gamma, and its curve with a column for each method of the spec."""
    leakage, curve = leakage_of(spec.phases), series_named(bounds, GAMMA_SERIES)
    assert curve is not None
    kappas = list(map(float, curve.columns["kappa"]))
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
    yield from _printed_pure_epsilon(leakage)
    named = [bound.at["kappa"] for bound in bounds if isinstance(bound, dps.Finding) and bound.quantity == "gamma"]
    for index in map(kappas.index, named):
        yield from _at_baseline(kappas[index], {name: column[index] for name, column in values.items()})
        if drawn:
            yield dps.Finding(
                quantity="gamma",
                at=dps.FrozenMap({"kappa": kappas[index]}),
                scope=scope_of(),
                assumptions=ASSUMPTIONS,
                value=drawn[index].upper,
                lower=drawn[index].lower,
                bound="upper",
                rigor="statistical",
                method="monte-carlo",
                source=INTERVAL_SOURCE,
                confidence=_CONFIDENCE,
            )
    yield _with_methods(curve, values, drawn)


def _at_baseline(kappa: float, values: Mapping[str, float | None]) -> Iterator[dps.Finding]:
    """The values of gamma by method; a method without findings only has a line in the curve."""
    for name, value in values.items():
        if value is None or name not in _METHODS:
            continue
        proved, source = _METHODS[name]
        yield dps.Finding(
            quantity="gamma",
            at=dps.FrozenMap({"kappa": kappa}),
            scope=scope_of(),
            assumptions=ASSUMPTIONS,
            value=value,
            bound="upper" if proved else "estimate",
            rigor="theorem" if proved else "approximate",
            method=name,
            source=source,
            printed=_PRINTED.get(name),
        )


def _with_methods(
    curve: dps.Series, values: Mapping[str, Sequence[float | None]], drawn: Sequence[Interval]
) -> dps.Series:
    columns: dict[str, Sequence[float | None]] = {**values}
    middles = [
        0.5 * (low + high) for low, high in zip(curve.columns["gamma-lower"], curve.columns["gamma"], strict=True)
    ]
    for name in [name for name in values if name in APPROXIMATE]:
        pairs = zip(values[name], middles, strict=True)
        columns[f"{name}-error"] = [None if value is None else value / middle - 1.0 for value, middle in pairs]
    if drawn:
        columns["monte-carlo-lower"] = [interval.lower for interval in drawn]
        columns["monte-carlo-upper"] = [interval.upper for interval in drawn]
    bounded = [name for name in values if name not in APPROXIMATE]
    if bounded:  # of the bounds; other lines are marked in the legend
        curve = replace(curve, rigor="theorem")
    return with_columns(
        curve,
        columns,
        lines=values,
        upper=[*bounded, *(["monte-carlo-upper"] if drawn else [])],
        lower=["monte-carlo-lower"] if drawn else [],
    )


def _printed_pure_epsilon(leakage: Leakage) -> Iterator[dps.Finding]:
    """The paper's epsilon of Laplace steps, which treats N steps as if the record were drawn once."""
    if len(leakage.phases) == 1 and pure_epsilon(leakage.phases) < math.inf:
        yield kit.theorem_upper(
            "epsilon",
            approximations.printed_pure_epsilon(leakage.phases),
            at={"delta": 0.0},
            scope=scope_of(),
            method="as if sampled once",
            source="Kaissis et al. 2023",
            assumptions=ASSUMPTIONS,
            printed=dps.Printed(
                refuted=False, reason="a bound, but it treats N steps as if the record were drawn once"
            ),
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
