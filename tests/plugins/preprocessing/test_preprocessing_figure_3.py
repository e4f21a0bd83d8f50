"""Figure 3 of Hu et al. by proved bounds: the order of the three curves, and the noise that each needs."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[3] / "specs" / "papers" / "preprocessing_figure_3.py"


@pytest.mark.ci
def test_the_order_of_the_curves_is_reversed_by_the_proved_noise():
    figure = runpy.run_path(str(SCRIPT))
    rng = np.random.default_rng(0)
    ((_, plain, private, public, more, gap),) = figure["curves"](*figure["low_rank"](rng), rng, epsilons=(2.0,), runs=2)
    assert gap == pytest.approx(0.1096, abs=1e-3)
    assert more == pytest.approx(66.3, rel=0.02)
    assert (plain, private, public) == pytest.approx((0.0194, 0.0381, 0.596), rel=0.1)


@pytest.mark.parametrize(("eigengap", "needed"), [(1.0, 8.958), (0.1096, 80.668)])
def test_the_printed_formula_needs_at_least_eight_times_the_noise(eigengap: float, needed: float) -> None:
    """Table 2, DP-GD after PCA: 1.05 a e^2 (4 + 12.2^2 / gap^2) for a e^2 4 / 2 without; a gap is at most 1."""
    factor = math.sqrt(1.05 * (4.0 + (12.2 / eigengap) ** 2) / 2.0)
    assert factor == pytest.approx(needed, abs=1e-3)
