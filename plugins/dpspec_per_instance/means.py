"""The effect of the batch size where noise is added to means: Theorem 3.6, and Corollary 3.1 with strata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

import dpspec.contract as dps
from dpspec_per_instance import bounds, divergence, tuples
from dpspec_per_instance import corollary as cor
from dpspec_per_instance.analysis import Analysis, Array
from dpspec_per_instance.mean_rule import typical_sizes
from dpspec_per_instance.options import rate_and_noise
from dpspec_per_instance.rows import table
from dpspec_per_instance.statements import one_step

STAGES = ("initial", "middle", "final")

#: Epsilons of a step are looked up, upwards, among so many distances.
_DISTANCES = 4096

#: The corollary holds for every exponent; the best of these is told.
_EXPONENTS = tuple(np.geomspace(1.5, 1e4, 20).tolist())


def means(spec: dps.Spec, found: Analysis) -> Iterator[dps.Series]:
    """Both tables, where the mean rule was asked for."""
    trial = found.trials[0]
    if spec.audit is not None and spec.audit.options.get("mean_rule") is not None and "mean_rule" in trial.arrays:
        yield by_tuples(spec, found, trial)
        yield by_moments(spec, found, trial)


def by_tuples(spec: dps.Spec, found: Analysis, trial: dps.Trial) -> dps.Series:
    """Theorem 3.6: medians over records, with what one saturated record loses at that batch size, by Theorem 3.2.

    sum: what the theorem says of sums, by removal, of whose spread it is too large a bound to be of use.
    """
    assert spec.audit is not None
    asked = spec.audit.options["mean_rule"]
    values, sizes = trial.arrays["mean_rule"], trial.arrays["mean_rule_sizes"]

    def rows() -> Iterator[Sequence[dps.Json]]:
        for s, stage in enumerate(STAGES):
            for b, batch in enumerate(asked["batches"]):
                rate, sigma = float(batch) / found.records, _noise(spec, s)
                for o, order in enumerate(asked["orders"]):
                    medians = [float(np.median(values[s, b, o, kind])) for kind in (0, 1, 2)]
                    base = float(divergence.step_divergence(float(order), rate, 1.0 / sigma))
                    yield stage, float(batch), int(order), *medians, base, float(sizes[s, b, o, :2].min())

    return table(
        "mean-rule",
        "One step if noise were added to the mean of a batch: the median record, by expected batch size",
        ("stage", "batch", "order", "remove", "add", "sum", "data_independent", "tuples"),
        rows(),
        rigor="approximate",
        source=f"{tuples.SOURCE}, sampled",
        privacy=found.privacy_of(values.shape[-1]),
        plot={"x": "batch", "y": ["remove", "data_independent"], "by": "stage", "log": ["x", "y"]},
    )


def by_moments(spec: dps.Spec, found: Analysis, trial: dps.Trial) -> dps.Series:
    """Corollary 3.1: the median record's epsilon of one step, by batch size; a record against none.

    sampled: batches of typical sizes drawn, all others by a bound. bounded: all sizes by that bound, which the record's
    norm decides. data_independent: for every record. printed: the same with the paper's constant.
    """
    assert spec.audit is not None
    asked, delta = spec.audit.options["mean_rule"], bounds.claimed_deltas(spec)[-1]
    inside = found.audited.population == "train"
    norms: Array = trial.arrays["mean_norms"]

    def rows() -> Iterator[Sequence[dps.Json]]:
        for s, stage in enumerate(STAGES):
            for b, batch in enumerate(asked["batches"]):
                rate, sigma = float(batch) / found.records, _noise(spec, s)
                moved: Array = trial.arrays[f"mean_changes_{b}"][s]
                others = found.records - inside
                typical = typical_sizes(others, rate)
                each = [
                    [
                        _epsilon(others, rate, sigma, delta, float(norm), given)
                        for given in (dict(zip(typical, moved[:, :, m], strict=True)), None)
                    ]
                    for m, norm in enumerate(norms[s])
                ]
                base = one_step(rate, sigma, 1.0, delta)
                sampled, bounded = (float(v) for v in np.median(each, axis=0))
                yield stage, float(batch), sampled, bounded, base.amplified, base.printed, "yes" if base.holds else "no"

    return table(
        "mean-step",
        f"Epsilon of one step at delta {delta:g} if noise were added to the mean of a batch: the median record".replace(
            "e-0", "e-"
        ),
        ("stage", "batch", "sampled", "bounded", "data_independent", "printed", "printed_holds"),
        rows(),
        rigor="approximate",
        source=f"{cor.SOURCE}; batch sizes exactly, batches of typical sizes sampled",
        privacy=found.privacy_of(norms.shape[1]),
        plot={"x": "batch", "y": ["sampled", "data_independent"], "by": "stage", "log": ["x", "y"]},
    )


def _epsilon(
    others: int, rate: float, sigma: float, delta: float, norm: float, sampled: dict[int, Array] | None
) -> float:
    inner, slack = cor.split(rate, delta)
    distances, log_masses = cor.stratified_distances(others, rate, norm, 1.0, sampled)
    place = np.minimum(np.ceil(distances * _DISTANCES), _DISTANCES).astype(np.int64)
    return cor.best_corollary(rate, _tabulated(inner, sigma)[place], log_masses, inner, slack, _EXPONENTS)[0].epsilon


@cache
def _tabulated(inner: float, sigma: float) -> Array:
    """The epsilon of a batch at distances 0, ..., 1 clip norm."""
    return cor.epsilons(np.linspace(0.0, 1.0, _DISTANCES + 1), inner, sigma)


def _noise(spec: dps.Spec, stage: int) -> float:
    return rate_and_noise(spec.phases[0 if stage == 0 else -1])[1]
