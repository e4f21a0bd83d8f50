"""The rows of a spec as the pipeline takes them: float64 (n, d), in the declared ball, in the declared collection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_preprocessing import measure
from dpspec_preprocessing.neighbours import TREE_FEATURES
from dpspec_preprocessing.options import TESTABLE, Pipeline, kind_of, radius_of

Array: TypeAlias = np.ndarray[Any, Any]

#: float32 rows of radius R may be this much longer, relatively.
_ROUNDING = 1e-6


def raw(context: dps.Context, mechanism: Mapping[str, Any], *, test: bool = False) -> Array:
    """Training (or test) rows, flat, cut to the ball where ``clip_rows`` says so.

    Missing values count nothing towards a row's norm. Raises ``DataError`` where rows lie outside the declared ball.
    """
    data = context.data
    rows = data.test_x if test else data.train_x
    return in_ball(rows.reshape(len(rows), math.prod(rows.shape[1:])).astype(np.float64), mechanism)


def in_ball(x: Array, mechanism: Mapping[str, Any]) -> Array:
    """Rows of norm ``radius`` at most; every row by itself, which costs no privacy."""
    radius = radius_of(mechanism)
    norms = np.sqrt(np.nansum(np.square(x), axis=1))
    if mechanism.get("clip_rows", False):
        return np.asarray(x * np.minimum(1.0, radius / np.maximum(norms, radius))[:, None], dtype=np.float64)
    beyond = int(np.count_nonzero(norms > radius * (1.0 + _ROUNDING)))
    if beyond:
        raise dps.DataError(
            f"{beyond} records lie outside the declared ball of radius {radius:g}; mechanism.clip_rows: true or "
            f"data.radius: {radius:g} scales them down, data.standardise brings features to one scale before"
        )
    return x


def device_of(context: dps.Context, found: Pipeline) -> str:
    """Where near-duplicates of many features are sought; everything else stays on the CPU and needs no torch."""
    seeks = any("deduplicate" in step or "quantise" in step for step in found.steps)
    return context.device if seeks and found.features > TREE_FEATURES else "cpu"


def within(x: Array, found: Pipeline, *, tested: bool, device: str = "cpu") -> dict[str, float]:
    """What a bound reads of the rows, measured. Raises ``DataError`` where they lie outside the declared collection.

    tested: a test refuses such data, so that they are no error.
    """
    assert found.step is not None
    if np.isnan(x).any() and "impute" not in found.step:
        raise dps.DataError("values are missing, and the pipeline imputes none: begin it with {impute: mean}")
    measured = measure.measured(x, found.step, device)
    broken = measure.outside(measured, found.collection)
    if broken and not tested:
        testable = kind_of(found.step) in TESTABLE
        raise dps.DataError(
            f"the data set lies outside the declared collection: {', '.join(broken)}. A bound over the collection says "
            "nothing about it; declare wider limits from public knowledge"
            + (", or write ptr to test them privately" if testable else "")
        )
    return measured
