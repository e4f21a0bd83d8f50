"""What ran, step by step, as an accountant has to see it: which noise, and which sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from dpspec.contract import Phase
from dpspec.engine.recorded.half_precision import norm_excess
from dpspec.engine.recorded.recorded_run import RecordedRun

#: How many different noise multipliers are composed as they are; more are rounded down to so many digits.
_DISTINCT, _DIGITS = 24, 3

#: A noise multiplier from here on is none that was meant.
_MOST = 1e9


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Steps in a row that share their parameters.

    first: the number of its first step, from 1 on. noise_multiplier: of the noise on a sum, in clip norms; 0 where an
    update was made without noise, None where nobody saw whether there was any. rate: with which Poisson sampling draws
    each record; None where batches are not drawn so, or were not seen.
    """

    first: int
    steps: int
    noise_multiplier: float | None
    clip_norm: float | None
    rate: float | None


def stretches(run: RecordedRun) -> list[Stretch]:
    """The run's steps, those in a row with the same parameters put together."""
    noise = noise_multipliers(run)
    rates = poisson_rates(run)
    keys = list(zip(noise, map(_known, run["clip_norm"]), rates, strict=True))
    found: list[Stretch] = []
    first = 1
    for (multiplier, clip, rate), same in groupby(keys):
        count = sum(1 for _ in same)
        found.append(Stretch(first=first, steps=count, noise_multiplier=multiplier, clip_norm=clip, rate=rate))
        first += count
    return found


def noise_multipliers(run: RecordedRun) -> list[float | None]:
    """What is composed of each step: :func:`asked_multipliers`, over the longest contribution that rounding allows."""
    longest = 1.0 + norm_excess(run)
    return [sigma if sigma is None else sigma / longest for sigma in asked_multipliers(run)]


def asked_multipliers(run: RecordedRun) -> list[float | None]:
    """Of each step: what the options asked for where noise was added, 0 where none was, None where nobody saw."""
    asked, squares = run["noise_multiplier"], run["noise_squares"]
    return [
        None if not a < _MOST or math.isnan(s) else (0.0 if s == 0.0 else float(a))
        for a, s in zip(asked.tolist(), squares.tolist(), strict=True)
    ]


def poisson_rates(run: RecordedRun) -> list[float | None]:
    """Of each step: the rate at which it is a Poisson sample of the records; None where it is none, or was not seen."""
    drawn = run["drawn"].tolist()
    if run.header.scheme not in ("poisson", "none" if run.header.source == "own-loop" else ""):
        return [None] * run.steps
    return [
        None if math.isnan(rate) or math.isnan(size) or not 0.0 < rate <= 1.0 else rate
        for rate, size in zip(run["rate"].tolist(), drawn, strict=True)
    ]


def sampling_phases(run: RecordedRun) -> list[Phase]:
    """The run's phases as the checks of conformance have them, told apart by their rate alone.

    Everything that is checked is in units of the step's own clip norm and deviation.
    """
    phases: list[Phase] = []
    for rate, same in groupby(poisson_rates(run)):
        sampling = {"scheme": "full"} if rate is None else {"scheme": "poisson", "rate": rate}
        steps = sum(1 for _ in same)
        phases.append(Phase({"steps": steps, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": sampling}))
    return phases


def composed(noise: Sequence[float], rates: Sequence[float | None]) -> dict[tuple[float, float | None], int]:
    """How many steps there are of each noise multiplier and rate; many multipliers are rounded down, which costs."""
    rounded = list(noise)
    if len(set(noise)) > _DISTINCT:
        exponent = np.floor(np.log10(np.maximum(noise, 1e-300))) - (_DIGITS - 1)
        unit = 10.0**exponent
        rounded = (np.floor(np.asarray(noise) / unit) * unit).tolist()
    counts: dict[tuple[float, float | None], int] = {}
    for key in zip(rounded, rates, strict=True):
        counts[key] = counts.get(key, 0) + 1
    return counts


def is_rounded(noise: Sequence[float]) -> bool:
    """Whether :func:`composed` rounds these, so that only an upper bound is tight."""
    return len(set(noise)) > _DISTINCT


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
