"""Tables of the private mechanism's noise and constants, and of the collection's measured limits."""

import math
from collections.abc import Mapping
from functools import partial

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.bounds import PAPER
from dpspec_preprocessing.options import Declaration, Pipeline
from dpspec_preprocessing.sensitivity import second_moment_sensitivity

_series = partial(kit.series, rigor="approximate")


def constants_series(declared: Declaration, pipeline: Pipeline) -> dps.Series:
    m, private = pipeline.private, declared.private
    of_loss = f"{private.loss} loss, record norm {declared.processed_norm:g}" if private.known_loss else "default"
    rows: list[tuple[dps.Json, ...]] = []
    rows.append(("Lipschitz constant L", m.lipschitz, of_loss if private.lipschitz is None else "declared"))
    if private.takes_gradients:
        if math.isfinite(m.smooth):
            rows.append(("smoothness mu", m.smooth, of_loss if private.smooth is None else "declared"))
        steps = "one pass" if m.kind == "sgd-iterated" else f"{m.steps} steps"
        rows.append(("noise std sigma", m.sigma, f"L, eps_noise, {steps}"))
    else:
        rows.append(("sensitivity", m.sensitivity, "declared"))
        if m.kind != "exponential":
            noise = "noise std sigma" if m.kind == "gaussian" else "noise scale"
            rows.append((noise, m.sigma, "sensitivity, eps_noise"))
    if pipeline.private_step is not None:
        std = second_moment_sensitivity(pipeline.radius) / pipeline.private_step.mu
        rows.append(("noise std of the second-moment matrix", std, "radius, eps_noise of dp-pca"))
    return _series(
        "constants",
        "Noise and constants of the private mechanism",
        kit.columns_of(("constant", "value", "from"), rows),
        source=PAPER,
        x="constant",
        y=["value"],
        kind="constants",
    )


def measured_series(pipeline: Pipeline, measured: Mapping[str, float]) -> dps.Series:
    rows = ((key, pipeline.collection.get(key), measured[key]) for key in sorted(measured))
    return _series(
        "measured",
        "Declared and measured limits of the collection",
        kit.columns_of(("limit", "declared", "measured"), rows),
        source="measured on the records",
        privacy="data-dependent",
    )
