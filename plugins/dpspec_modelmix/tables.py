"""Series: epsilon against the threshold, against linf_truncation and over the steps, with what DP-SGD has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

import dpspec.contract as dps
from dpspec_modelmix import laplace, theory
from dpspec_modelmix.theory import Segment

#: What the threshold is multiplied by.
_FACTORS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)

#: What linf_truncation is tried at, as far as there are coordinates.
_SPARSITIES = (1, 2, 5, 10, 25, 50, 100, 250, 1000)

_NAMES = ("epsilon", "without mixing", "variance-matched")


def series(found: Sequence[Segment], delta: float, dimension: int | None) -> Iterator[dps.Series]:
    """All that the noise has, at one delta. ``dimension``: how many coordinates there are, if that is known."""
    yield _series(
        "threshold", "times the threshold", _FACTORS, delta, lambda f: [replace(s, gap=s.gap * f) for s in found]
    )
    if found[0].noise == "gaussian":
        most = dimension or max(_SPARSITIES)
        sparsities = sorted({p for p in (*_SPARSITIES, *(s.sparsity for s in found)) if p <= most})
        yield _series(
            "linf-truncation", "coordinates", sparsities, delta, lambda p: [replace(s, sparsity=int(p)) for s in found]
        )
    total = sum(s.steps for s in found)
    steps = sorted({max(1, round(n)) for n in np.geomspace(1, total, 12)})
    yield _series("steps", "steps", steps, delta, lambda n: _first(found, int(n)))


def _first(found: Sequence[Segment], steps: int) -> list[Segment]:
    """The segments up to a step."""
    kept = []
    for segment in found:
        if steps > 0:
            kept.append(replace(segment, steps=min(steps, segment.steps)))
            steps -= segment.steps
    return kept


def _epsilons(found: Sequence[Segment], delta: float) -> tuple[float, float, float]:
    matched = theory.gaussian_epsilon(theory.variance_matched(found), delta).epsilon
    bare = theory.without_mixing(found)
    if found[0].noise == "laplace":
        return laplace.epsilon(found, delta), laplace.plain(bare, [delta])[0].upper, matched
    return theory.epsilon(found, delta).epsilon, theory.gaussian_epsilon(bare, delta).epsilon, matched


def _series(
    name: str,
    unit: str,
    values: Sequence[float],
    delta: float,
    changed: Callable[[float], Sequence[Segment]],
) -> dps.Series:
    rows = [(value, *_epsilons(changed(value), delta)) for value in values]
    gaussian = changed(values[0])[0].noise == "gaussian"
    columns = dict(zip((name, *_NAMES), map(list, zip(*rows, strict=True)), strict=True))
    return dps.Series(
        name=f"epsilon-by-{name}",
        title=f"Epsilon at delta {delta:g} against {name}".replace("e-0", "e-"),
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap({key: unit if key == name else "" for key in columns}),
        # A series names no assumptions, and that the one-hot gradient is the worst is proved for Laplace noise only.
        rigor="approximate" if gaussian else "theorem",
        source=theory.SOURCE if gaussian else laplace.SOURCE,
        plot=dps.FrozenMap({"x": name, "y": list(_NAMES), "log": ["x", "y"]}),
    )
