"""Effect of the batch size with noise on means: Theorem 3.6, and Corollary 3.1 with strata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec_per_instance import bounds, theory
from dpspec_per_instance.analysis import Analysis, Array
from dpspec_per_instance.options import AuditBlock, MeanRule
from dpspec_per_instance.printed import mean_rule
from dpspec_per_instance.printed.one_step import (
    SOURCE,
    best_corollary,
    epsilons,
    one_step,
    split,
    stratified_distances,
)

#: Number of tabulated distances; lookups use the next larger one.
_DISTANCES = 4096

#: Exponents of the corollary, which holds for each. Tables show the best.
_EXPONENTS = tuple(np.geomspace(1.5, 1e4, 20).tolist())


def mean_rule_tables(spec: dps.Spec, records: Analysis) -> Iterator[dps.Series]:
    """Both tables if audit.mean_rule is set."""
    trial = records.trials[0]
    rule = None if spec.audit is None else AuditBlock.of(spec.audit.options).mean_rule
    if rule is not None and "mean_rule" in trial.arrays:
        yield _tuple_table(spec, rule, records, trial)
        yield _moment_table(spec, rule, records, trial)


def _tuple_table(spec: dps.Spec, rule: MeanRule, records: Analysis, trial: dps.Trial) -> dps.Series:
    """Theorem 3.6: medians over records, compared with a saturated record at that batch size by Theorem 3.2.

    The column sum has the theorem's value for sums under removal, which is too large to be useful.
    """
    values, sizes = trial.arrays["mean_rule"], trial.arrays["mean_rule_sizes"]

    def rows() -> Iterator[Sequence[dps.Json]]:
        for s, stage in enumerate(mean_rule.STAGES):
            for b, batch in enumerate(rule.batches):
                rate, sigma = float(batch) / records.records, _noise(spec, s)
                for o, order in enumerate(rule.orders):
                    medians = [float(np.median(values[s, b, o, kind])) for kind in (0, 1, 2)]
                    base = float(theory.step_divergence(float(order), rate, 1.0 / sigma))
                    yield stage, float(batch), int(order), *medians, base, float(sizes[s, b, o, :2].min())

    return kit.series(
        "mean-rule",
        "One step with noise on the mean of a batch: the median record, by expected batch size",
        kit.columns_of(("stage", "batch", "order", "remove", "add", "sum", "data_independent", "tuples"), rows()),
        upper=("data_independent",),
        rigor="approximate",
        source=f"{mean_rule.SOURCE}, sampled",
        privacy=records.privacy_of(values.shape[-1]),
        x="batch",
        y=["remove", "data_independent"],
        by="stage",
        log=["x", "y"],
    )


def _moment_table(spec: dps.Spec, rule: MeanRule, records: Analysis, trial: dps.Trial) -> dps.Series:
    """Corollary 3.1: the median record's present-first epsilon of one step, by batch size.

    Columns: sampled uses drawn batches of typical sizes and a bound for other sizes; bounded uses that bound, which
    depends on the record's norm, for all sizes; data_independent holds for every record; printed is the latter with the
    paper's constant.
    """
    delta = bounds.claimed_deltas(spec)[-1]
    inside = records.audited.population == "train"
    norms: Array = trial.arrays["mean_norms"]

    def rows() -> Iterator[Sequence[dps.Json]]:
        for s, stage in enumerate(mean_rule.STAGES):
            for b, batch in enumerate(rule.batches):
                rate, sigma = float(batch) / records.records, _noise(spec, s)
                changes: Array = trial.arrays[f"mean_changes_{b}"][s]
                others = records.records - inside
                typical = mean_rule.typical_sizes(others, rate)
                each = [
                    [
                        _step_epsilon(others, rate, sigma, delta, float(norm), sampled)
                        for sampled in (dict(zip(typical, changes[:, :, m], strict=True)), None)
                    ]
                    for m, norm in enumerate(norms[s])
                ]
                base = one_step(rate, sigma, 1.0, delta)
                sampled, bounded = (float(v) for v in np.median(each, axis=0))
                yield stage, float(batch), sampled, bounded, base.amplified, base.printed, "yes" if base.holds else "no"

    return kit.series(
        "mean-step",
        f"Epsilon of one step at delta {delta:g} with noise on the mean of a batch: the median record".replace(
            "e-0", "e-"
        ),
        kit.columns_of(
            ("stage", "batch", "sampled", "bounded", "data_independent", "printed", "printed_holds"), rows()
        ),
        upper=("data_independent",),
        rigor="approximate",
        source=f"{SOURCE}; exact batch sizes, sampled batches of typical sizes",
        privacy=records.privacy_of(norms.shape[1]),
        x="batch",
        y=["sampled", "data_independent"],
        by="stage",
        log=["x", "y"],
    )


def _step_epsilon(
    others: int, rate: float, sigma: float, delta: float, norm: float, sampled: dict[int, Array] | None
) -> float:
    inner, slack = split(rate, delta)
    distances, log_masses = stratified_distances(others, rate, norm, 1.0, sampled)
    places = np.minimum(np.ceil(distances * _DISTANCES), _DISTANCES).astype(np.int64)
    losses = _tabulated_epsilons(inner, sigma)[places]
    best, _ = best_corollary(rate, losses, log_masses, inner, slack, _EXPONENTS)
    return best.epsilon


@cache
def _tabulated_epsilons(inner: float, sigma: float) -> Array:
    """Epsilon of a batch at distances 0, ..., 1 clip norm."""
    return epsilons(np.linspace(0.0, 1.0, _DISTANCES + 1), inner, sigma)


def _noise(spec: dps.Spec, stage: int) -> float:
    return spec.phases[0 if stage == 0 else -1].noise_multiplier
