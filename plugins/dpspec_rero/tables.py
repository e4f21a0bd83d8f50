"""Series: gamma along the baselines, on logarithmic axes, and gamma beside membership as the noise changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import dpspec.contract as dps
from dpspec_rero.bounds import claimed_deltas
from dpspec_rero.certified import Certified
from dpspec_rero.compare import APPROXIMATE, DEFAULT_DELTA, Comparison, compare, finite
from dpspec_rero.inverse import scaled
from dpspec_rero.steps import Steps

#: The baselines of the curve.
CURVE = tuple(float(kappa) for kappa in np.geomspace(1e-7, 1.0, 50))


def curve_series(leak: Certified, found: Comparison) -> dps.Series:
    """gamma against kappa by every method, with the errors of the approximations relative to the certified value."""
    columns = {"kappa": list(found.kappas), **_columns(found)}
    return dps.Series(
        name="gamma-by-kappa",
        title="Reconstruction: gamma by baseline success kappa, on logarithmic axes",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap(dict.fromkeys(columns, "")),
        rigor=_rigor(found),
        source=leak.source,
        plot=dps.FrozenMap({"x": "kappa", "y": _methods(found), "log": ["x", "y"], "identity": True}),
    )


def noise_series(
    spec: dps.Spec, phases: Sequence[Steps], kappas: Sequence[float], factors: Sequence[float]
) -> dps.Series:
    """gamma, epsilon and the advantage where all noise is multiplied by each factor: one row per factor and kappa."""
    delta = _delta(spec)
    rows: dict[str, list[dps.Json]] = {}
    rigor: dps.findings.Rigor = "certified"
    for factor in factors:
        louder = scaled(phases, factor)
        leak = Certified(louder)
        found = compare(spec, louder, kappas, leak.gammas(kappas), delta)
        (epsilon,), advantage = leak.epsilons([delta], "both"), leak.advantage()
        count = len(kappas)
        columns = {
            "factor": [factor] * count,
            "effect": [max(phase.effect for phase in louder)] * count,
            "kappa": list(kappas),
            **_columns(found),
            "epsilon": [finite(epsilon.upper)] * count,
            "advantage": [advantage.upper] * count,
        }
        rigor = _rigor(found)
        for name, values in columns.items():
            rows.setdefault(name, []).extend(values)
    rows["effect"] = [finite(value) for value in rows["effect"]]
    return dps.Series(
        name="gamma-by-noise",
        title=f"Reconstruction and membership by noise, epsilon at delta {delta:g}".replace("e-0", "e-"),
        columns=dps.FrozenMap(rows),
        units=dps.FrozenMap(dict.fromkeys(rows, "")),
        rigor=rigor,
        source=Certified(tuple(phases)).source,
        plot=dps.FrozenMap({"x": "factor", "y": _methods(found), "by": "kappa", "log": ["x", "y"]}),
    )


def _columns(found: Comparison) -> dict[str, list[dps.Json]]:
    indices = range(len(found.kappas))
    columns: dict[str, list[dps.Json]] = {
        "gamma": [interval.upper for interval in found.certified],
        "gamma-lower": [interval.lower for interval in found.certified],
    }
    columns |= {name: list(values) for name, values in found.others.items()}
    for name in APPROXIMATE:
        if name in found.others:
            columns[f"{name}-error"] = [found.error(name, at) for at in indices]
    if found.drawn:
        columns["monte-carlo"] = [one.value for one in found.drawn]
        columns["monte-carlo-lower"] = [one.interval.lower for one in found.drawn]
        columns["monte-carlo-upper"] = [one.interval.upper for one in found.drawn]
        columns["monte-carlo-error"] = [found.drawn[at].value / found.reference(at) - 1.0 for at in indices]
    return columns


def _methods(found: Comparison) -> list[str]:
    """The columns that hold gamma by one method or another."""
    return ["gamma", *found.others, *(["monte-carlo"] if found.drawn else [])]


def _rigor(found: Comparison) -> dps.findings.Rigor:
    return "approximate" if found.others or found.drawn else "certified"


def _delta(spec: dps.Spec) -> float:
    return (claimed_deltas(spec) or [DEFAULT_DELTA])[-1]
