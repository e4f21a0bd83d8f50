"""Whether the noise that a loop of one's own tells of is in the gradients that its optimizer got.

At each step g = (S + n) / D, where S, the sum of clipped gradients, was fixed before its noise n was drawn. In units of
the noise's deviation, along the recorder's fixed directions, D g - n = S is independent of n, so that

    M = sum (D g - n) . n,   V = sum |D g - n|^2

are a martingale and its conditional variance, and P[M^2 >= 2 (V + c) ln(sqrt((V + c) / c) / p)] <= p for any c fixed
beforehand: the mixture of exp(l M - l^2 V / 2) over normal l (Robbins 1970, section 3; here c is the number of
coordinates). D is not known. It is positive, and at most what each step allows: divisors up to twice the middle of
these are tried, and the one that speaks best for the loop counts. Noise that is not there leaves M = -sum |n|^2, as far
below 0 as can be.
"""

from __future__ import annotations

import math

import numpy as np

from dpspec.contract import Check
from dpspec.engine.recorded.recorded_run import RecordedRun

NOT_GOT = "noise that was told of, in the gradients that the optimizer got"

#: So many divisors are tried.
_TRIED = 4096

#: All of the noise being absent is seen where the p-value is this at most.
_SEEN = 1e-9


def told_noise(run: RecordedRun) -> Check | None:
    """The check; None where no step could be compared, or what stands at the end is nothing that a recorder writes."""
    sums = run.said("gradients")
    if not (isinstance(sums, list) and len(sums) == 5 and all(map(_is_sum, sums))):
        return None
    steps, product, of_got, of_noise, most = map(float, sums)
    if not (1.0 <= steps <= run.steps and min(of_got, of_noise, most) > 0.0):
        return None
    fixed = max(1.0, steps * run.header.width)
    without = largest_p(0.0, of_got, of_noise, 2.0 * most, fixed)
    return Check(
        assumption="update",
        test=f"{NOT_GOT}, correlation",
        p_value=largest_p(product, of_got, of_noise, 2.0 * most, fixed),
        observed="measured",
        detectable=1.0 if without <= _SEEN else None,
        note=f"at {int(steps)} steps, whatever the gradient was divided by",
    )


def _is_sum(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100


def largest_p(product: float, of_got: float, of_noise: float, most: float, fixed: float) -> float:
    """The largest p-value over divisors in (0, most], of the sums g . n, g . g and n . n."""
    divisors = np.linspace(0.0, most, _TRIED + 1)[1:]
    with np.errstate(over="ignore", invalid="ignore"):
        moved = divisors * product - of_noise
        variance = np.maximum(divisors**2 * of_got - 2.0 * divisors * product + of_noise, 0.0) + fixed
        log_p = 0.5 * np.log(variance / fixed) - moved**2 / (2.0 * variance)
    if not np.isfinite(log_p).all() or bool((moved >= 0.0).any()):
        return 1.0
    return float(min(1.0, math.exp(float(log_p.max()))))
