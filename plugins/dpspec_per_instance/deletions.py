"""What deletions without retraining leave of records like those that were audited (Fact 5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

import dpspec.contract as dps
from dpspec_per_instance import derived
from dpspec_per_instance.analysis import Analysis
from dpspec_per_instance.rows import table
from dpspec_per_instance.statements import UNLEARNING, unlearning_orders


def unlearning(spec: dps.Spec, found: Analysis) -> Iterator[dps.Series]:
    """Where training records' losses by removal are known: as if all deleted records were like the one in question.

    The expectation is over training on all records; after a deletion it is over fewer, which nobody ran.
    """
    side = found.sides.get("remove")
    if side is None or found.audited.population != "train":
        return
    top = max(side.composer.orders)

    def rows() -> Iterator[Sequence[dps.Json]]:
        for order, deletions in unlearning_orders(found.shown, top):
            asked = derived.deletion_orders(order, deletions)
            totals = [side.composer.total(float(a), side.places, side.log_terms) for a in asked]
            smaller = np.stack([np.minimum(total.plug_in, total.baseline) for total in totals])
            any_record = derived.unlearned(order, deletions, [total.baseline for total in totals])
            quantiles = np.quantile(derived.unlearned(order, deletions, smaller), (0.1, 0.5))
            yield order, deletions, float(any_record), *(float(value) for value in quantiles)

    yield table(
        "unlearning-records",
        "The same where the deleted records are like the 10th percentile, or the median, of those audited",
        ("order", "deletions", "data_independent", "p10", "median"),
        rows(),
        rigor="approximate",
        source=f"{UNLEARNING}, with the constant of its proof",
        privacy=found.privacy,
    )
