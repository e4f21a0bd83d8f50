"""What half precision does to clipping, and what is charged for it.

Under autocast per-sample gradients are of 8 or 11 significant bits, and Opacus computes their norms, and what it scales
them by, in the same type: the norm of each layer, that of all layers, the addition of 1e-6 and the quotient are each
right to a factor of 1 + u, with u = 2^-8 (bfloat16) or 2^-11 (float16). What is added up is scaled in float32. So a
contribution is at most 1 / (1 - u)^4 <= 1 + 5 u clip norms long, and noise of multiplier s is worth s / (1 + 5 u).

Where the parameters themselves are of half precision, sums and noise are rounded as well, by more than a contribution
where sums are long, and nothing here bounds what a neighbour's sum is rounded to.
"""

from __future__ import annotations

from dpspec.engine.recorded.recorded_run import RecordedRun

#: The largest relative error of rounding.
_UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def norm_excess(run: RecordedRun) -> float:
    """By how much a contribution may be longer than the clip norm, relatively; 0 where norms are of full precision."""
    return 5.0 * _UNIT.get(str(run.said("norm_type")), 0.0)


def sums_type(run: RecordedRun) -> str:
    """The half precision that clipped gradients were summed in; "" for none."""
    kind = str(run.said("sum_type"))
    return kind if kind in _UNIT else ""
