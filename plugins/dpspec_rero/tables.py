"""Tables and pictures: gamma by baseline, noise and rate; attack success by rank; targets and guesses."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Boundary, Interval, find_boundary, round_up
from dpspec.stats import binomial
from dpspec_rero.comparison import APPROXIMATE, Comparison, compare
from dpspec_rero.options import Candidates, Steps
from dpspec_rero.theory import Leakage, gamma_source, scale_noise

Array = np.ndarray[Any, Any]

#: The baselines of the curve.
CURVE = tuple(float(kappa) for kappa in np.geomspace(1e-7, 1.0, 50))

#: Number of trials that store pictures, and number of best candidates per trial.
PICTURED_TRIALS, PICTURED_GUESSES = 8, 4

#: Largest side of a stored picture in pixels. Larger pictures are subsampled.
_SIDE = 64


#: The columns of the candidates, best first.
_GUESSES = tuple(f"guess {place}" for place in range(1, PICTURED_GUESSES + 1))


def curve_series(comparison: Comparison) -> dps.Series:
    return _gamma_series(
        "gamma-by-kappa",
        "Reconstruction: gamma by baseline success kappa, on logarithmic axes",
        {"kappa": list(comparison.kappas), **_columns(comparison)},
        comparison,
        comparison.certified,
        x="kappa",
        identity=True,
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


def rank_series(candidates: Candidates, ranks: Sequence[int], confidence: float, source: str) -> dps.Series:
    masses = sorted(candidates.masses or [1.0 / candidates.count] * candidates.count, reverse=True)
    rows = []
    for top in (1 << i for i in range(candidates.count.bit_length()) if 1 << i < candidates.count):
        successes = sum(rank < top for rank in ranks)
        low, high = binomial.clopper_pearson(successes, len(ranks), confidence)
        rows.append((top, min(1.0, math.fsum(masses[:top])), successes / len(ranks), low, high))
    return kit.series(
        "reconstruction-by-top",
        f"Attack: target among the first m of {candidates.count} candidates, {len(ranks)} trials",
        kit.columns_of(("top", "kappa", "success", "lower", "upper"), rows),
        rigor="statistical",
        source=source,
        units={"top": "candidates"},
        x="kappa",
        y=("success",),
        band=("lower", "upper"),
        log=("x",),
        identity=True,
        upper=("upper",),
        lower=("lower",),
    )


def encode_pictures(records: Array) -> dict[str, dps.Json] | None:
    """Bytes in base64 with interleaved colors on a common scale, for a trial; None for records of other shapes.

    ``records`` are the target and the best candidates: (height, width), (1, height, width) or (3, height, width) each.
    """
    if records.ndim == 3:
        records = records[:, None]
    if records.ndim != 4 or records.shape[1] not in (1, 3) or min(records.shape[2:]) < 2:
        return None
    step = -(-max(records.shape[2:]) // _SIDE)
    thin = np.nan_to_num(records[:, :, ::step, ::step])
    low, high = float(thin.min()), float(thin.max())
    pixels = np.rint((thin - low) * (255.0 / max(high - low, 1e-30))).astype(np.uint8)
    return {
        "shape": [*pixels.shape[2:], pixels.shape[1]],
        "pixels": [base64.b64encode(picture.transpose(1, 2, 0).tobytes()).decode() for picture in pixels],
    }


def picture_series(spec: dps.Spec, trials: Sequence[dps.Trial], source: str) -> dps.Series | None:
    pictured = [(t, t.evidence["internal"]["pictures"]) for t in trials if "pictures" in t.evidence.get("internal", {})]
    if not pictured:
        return None
    shape = pictured[0][1]["shape"]
    columns: dict[str, list[dps.Json]] = {
        "trial": [trial.index for trial, _ in pictured],
        "place of the target": [int(trial.evidence["rank"]) + 1 for trial, _ in pictured],
    }
    for place, name in enumerate(("target", *_GUESSES)):
        columns[name] = [
            pictures["pixels"][place] if place < len(pictures["pixels"]) else None for _, pictures in pictured
        ]
    return dps.Series(
        name="reconstructions",
        title=f"Targets and guesses; a frame marks a correct guess: trials 0 to {max(columns['trial'])}",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap({name: "" if name in ("trial", "place of the target") else "picture" for name in columns}),
        rigor="statistical",
        source=source,
        privacy="public" if spec.data_privacy == "public" else "per-record",
        plot=dps.FrozenMap(
            {"kind": "pictures", "y": ["target", *_GUESSES], "shape": shape, "frame": "place of the target"}
        ),
    )


def _columns(comparison: Comparison) -> dict[str, list[dps.Json]]:
    indices = range(len(comparison.kappas))
    columns: dict[str, list[dps.Json]] = {
        "gamma": [interval.upper for interval in comparison.certified],
        "gamma-lower": [interval.lower for interval in comparison.certified],
    }
    columns |= {name: list(values) for name, values in comparison.others.items()}
    for name in APPROXIMATE:
        if name in comparison.others:
            columns[f"{name}-error"] = [comparison.error(name, i) for i in indices]
    if comparison.drawn:
        columns["monte-carlo"] = [one.value for one in comparison.drawn]
        columns["monte-carlo-lower"] = [one.interval.lower for one in comparison.drawn]
        columns["monte-carlo-upper"] = [one.interval.upper for one in comparison.drawn]
        columns["monte-carlo-error"] = [comparison.drawn[i].value / comparison.reference(i) - 1.0 for i in indices]
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
    identity: bool = False,
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
        identity=identity,
        upper=[column for column in columns if column in upper],
        lower=[column for column in columns if column in ("gamma-lower", "monte-carlo-lower")],
    )


#: Relative accuracy of the noise that matches the declared epsilon.
_RELATIVE = 1e-4

#: Smallest and largest factor on the noise in the search.
_LEAST, _MOST = 1e-6, 1e9


def least_noise(phases: Sequence[Steps], holds: Callable[[Leakage], bool], *, relative: float = 1e-3) -> Boundary:
    return find_boundary(
        lambda factor: holds(Leakage(scale_noise(phases, factor))),
        _LEAST,
        _MOST,
        increasing=True,
        relative=relative,
        start=1.0,
    )


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
        least = least_noise(
            sampled, lambda leakage: leakage.epsilons([delta], "both")[0].upper <= epsilon.upper, relative=_RELATIVE
        )
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
        identity=True,
        upper=("gamma",),
        lower=("gamma-lower",),
    )
