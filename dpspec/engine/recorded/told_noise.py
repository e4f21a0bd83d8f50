"""Whether the noise that a loop of one's own tells of is in the gradients that its optimizer got.

At each step g = (S + n) / D, where S, the sum of clipped gradients, was fixed before its noise n was drawn. In units of
the noise's deviation, along the recorder's fixed directions, D g - n = S is independent of n, so that

    M = sum (D g - n) . n,   V = sum |D g - n|^2

are a martingale and its conditional variance, and P[M^2 >= 2 (V + c) ln(sqrt((V + c) / c) / p)] <= p for any c fixed
beforehand: the mixture of exp(l M - l^2 V / 2) over normal l (Robbins 1970, section 3; here c is the number of
coordinates). Where a share f of the noise is missing, M is about -f sum |n|^2: so the share is known from which on it
would have been seen.

That is so where the loop says D. Where it does not, D is positive, and at most what each step allows: divisors up to
twice the middle of these are tried, and the one that speaks best for the loop counts. Then noise that is missing as a
whole may be seen, and no share of it: with the rest of it the gradient is that of another divisor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dpspec.contract import Check
from dpspec.engine.recorded.recorded_run import RecordedRun

Array: TypeAlias = np.ndarray[Any, Any]

NOT_GOT = "noise that was told of, in the gradients that the optimizer got"

#: So many divisors are tried, and so many shares of the noise.
_TRIED, _SHARES = 4096, 100

#: Noise being absent is seen where the p-value is this at most.
_SEEN = 1e-9

#: Noise was measured where so large a share of it would have been missed, and what was found is no rarer than this.
LARGEST_SHARE, _RARE = 0.5, 1e-3


@dataclass(frozen=True, kw_only=True)
class GradientSums:
    """Over ``steps`` steps: product g . n, of_got g . g, of_noise n . n, with D g for g where D was ``told``; most: the
    limit of D at the middle step; fixed: c of the bound."""

    steps: int
    product: float
    of_got: float
    of_noise: float
    most: float
    told: bool
    fixed: float

    def log_p(self, divisors: Array, product: float) -> Array:
        """The logarithm of the p-value at each divisor, were g . n ``product``; 0 where it speaks for the loop."""
        with np.errstate(over="ignore", invalid="ignore"):
            moved = divisors * product - self.of_noise
            variance = divisors**2 * self.of_got - 2.0 * divisors * product + self.of_noise
            variance = np.maximum(variance, 0.0) + self.fixed
            found: Array = 0.5 * np.log(variance / self.fixed) - moved**2 / (2.0 * variance)
        return np.where(np.isfinite(found) & (moved < 0.0), np.minimum(found, 0.0), 0.0)

    @property
    def divisors(self) -> Array:
        """Those that D may have, in units of what was told."""
        if self.told and self.most >= 0.5:
            return np.ones(1)
        return np.linspace(0.0, 2.0 * self.most, _TRIED + 1)[1:]

    def p_value(self) -> float:
        """The largest over the divisors."""
        return math.exp(float(self.log_p(self.divisors, self.product).max()))

    def detectable(self) -> float | None:
        """The share of the noise from which on its absence is seen; None where not even that of all of it is.

        Of a sum S that is as long as what was seen: V = |S|^2 + f^2 |n|^2 where the share f is missing.
        """
        if len(self.divisors) > 1:
            seen = float(self.log_p(self.divisors, 0.0).max()) <= math.log(_SEEN)
            return 1.0 if seen else None
        summed = max(0.0, self.of_got - 2.0 * self.product + self.of_noise)
        missing = np.arange(1, _SHARES + 1) / _SHARES
        variance = summed + missing**2 * self.of_noise + self.fixed
        log_p = 0.5 * np.log(variance / self.fixed) - (missing * self.of_noise) ** 2 / (2.0 * variance)
        seen_from = missing[log_p <= math.log(_SEEN)]
        return float(seen_from[0]) if len(seen_from) else None


def _sums(run: RecordedRun) -> GradientSums | None:
    """None where no step could be compared, or what stands at the end is nothing that a recorder writes."""
    said = run.said("gradients")
    if not (isinstance(said, list) and len(said) == 6 and all(map(_is_sum, said))):
        return None
    steps, product, of_got, of_noise, most, told = map(float, said)
    if not (1.0 <= steps <= run.steps and told in (0.0, steps) and min(of_got, of_noise, most) > 0.0):
        return None
    fixed = max(1.0, steps * run.header.width)
    return GradientSums(
        steps=int(steps), product=product, of_got=of_got, of_noise=of_noise, most=most, told=told > 0.0, fixed=fixed
    )


def _is_sum(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100


def told_noise(run: RecordedRun) -> Check | None:
    """The check; None where no step could be compared."""
    sums = _sums(run)
    if sums is None:
        return None
    return Check(
        assumption="update",
        test=f"{NOT_GOT}, correlation",
        p_value=sums.p_value(),
        observed="measured",
        detectable=sums.detectable(),
        note=f"at {sums.steps} steps, " + ("by the divisor that was told" if sums.told else "whatever the divisor is"),
    )


def not_measured(run: RecordedRun) -> str:
    """Why nobody knows whether the noise that was told of is in the gradients, and what to do; "" where it was found.

    It was found where all steps were compared, half of the noise being missing would have been seen, and nothing was
    seen that speaks against it.
    """
    if not run.header.optimizer:
        return "no optimizer was given to dpspec.record, so that no gradient was looked at: give optimizer="
    sums = _sums(run)
    if sums is None:
        return (
            "no gradient could be held against it: tell of norms and noise, and let the optimizer that was given step "
            "once, before run.stepped()"
        )
    if not sums.told:
        return "a part of it may be missing, as the divisor of gradients was not told: give divisor= to dpspec.record"
    if sums.steps < run.steps:
        return f"only {sums.steps} of {run.steps} steps could be compared with their gradients"
    if sums.most < 0.5:
        return "gradients times the divisor are longer than norms and noise can be: give the divisor of the noisy sum"
    share = sums.detectable()
    if share is None or share > LARGEST_SHARE:
        return "the run is too short to see half of it missing"
    return "" if sums.p_value() > _RARE else "gradients speak against it, though not beyond doubt"
