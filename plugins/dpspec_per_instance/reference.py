"""Published figures of the same experiment, beside what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

import dpspec.contract as dps
from dpspec_per_instance import bounds
from dpspec_per_instance.analysis import Analysis
from dpspec_per_instance.rows import table

#: The figures of a whole run, by their key in the spec.
_NAMES = {
    "median": "median epsilon",
    "tenth": "10th percentile of epsilon",
    "share_below": "share of records below",
    "data_independent": "data-independent epsilon",
}


def against(spec: dps.Spec, found: Analysis) -> Iterator[dps.Series]:
    """The table, where a reference is given: ratios over training, and epsilons of records by Renyi divergences."""
    asked = (spec.audit.options.get("reference") if spec.audit is not None else None) or {}
    bound = spec.mechanism.get("step_bound", "directional")
    if not asked or asked.get("step_bound", bound) != bound:
        return
    epsilons = found.epsilons(bounds.claimed_deltas(spec)[-1], found.audited.whole)

    def rows() -> Iterator[Sequence[dps.Json]]:
        for one in asked.get("ratios", ()):
            order, composer = float(one["order"]), found.first.composer
            contributions = found.total(order).contributions
            for step, theirs in zip(one["steps"], one["means"], strict=True):
                place = int(np.searchsorted(composer.observed, int(step)))
                ours = float(contributions[place].mean() / composer.saturated(order, int(step)))
                yield _row("mean ratio", order, int(step), ours, float(theirs))
        quantities = {
            "median": float(np.median(epsilons.estimate)),
            "tenth": float(np.quantile(epsilons.estimate, 0.1)),
            "share_below": float(np.mean(epsilons.estimate < epsilons.renyi)),
            "data_independent": epsilons.renyi,
        }
        for name, ours in quantities.items():
            if name in asked:
                yield _row(_NAMES[name], None, None, ours, float(asked[name]))

    yield table(
        "against-reference",
        f"What was found, beside {asked.get('source', 'the reference')}",
        ("what", "order", "step", "found", "reference", "difference"),
        rows(),
        rigor="approximate",
        source=str(asked.get("source", "")),
        privacy=found.privacy,
    )


def _row(what: str, order: float | None, step: int | None, ours: float, theirs: float) -> Sequence[dps.Json]:
    return what, order, step, ours, theirs, f"{100.0 * (ours / theirs - 1.0):+.1f}%"
