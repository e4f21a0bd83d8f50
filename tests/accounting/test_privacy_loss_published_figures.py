"""The settings of Ganesh 2024, Figures 1 and 2, against values of a contour integral computed elsewhere, to 8 decimals.

2000 steps, delta 1e-6; Poisson at rate 0.01, or batches of 500 with at least 50,000 records; 144 values.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dpspec.accounting import Mixture, PrivacyLoss

with (Path(__file__).parent / "ganesh_figures.csv").open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['scheme']}-{row['sigma']}-{row['k']}")
def test_the_interval_holds_the_value(row: dict[str, str]) -> None:
    k, sigma = int(row["k"]), float(row["sigma"])
    pair = Mixture.poisson(k, 0.01, sigma) if row["scheme"] == "poisson" else Mixture.fixed(k, 50_000, 500, sigma)
    for direction, column in (("present-first", "remove"), ("absent-first", "add")):
        exact = float(row[column])
        interval = PrivacyLoss(((pair, 2000),), direction).epsilon(1e-6)
        assert interval.lower - 5.1e-9 <= exact <= interval.upper + 5.1e-9
        assert interval.upper - interval.lower <= 1e-4 * exact
