"""Whether the noise that a loop of one's own tells of is in the gradients that its optimizer got.

At each step g = (S + n) / D. Where the loop tells of the sum S and the noise n, the recorder finds D and says whether
anything but rounding is left of D g - S - n: noise that is missing anywhere is seen as what it is. And S, which was
fixed before its noise n was drawn, must know nothing of it: in units of the noise's deviation, along the recorder's
directions,

    M = sum (D g - n) . n,   V = sum |D g - n|^2

are a martingale and its conditional variance, and P[M^2 >= 2 (V + c) ln(sqrt((V + c) / c) / p)] <= p for any c fixed
beforehand: the mixture of exp(l M - l^2 V / 2) over normal l (Robbins 1970, section 3; here c is the number of
coordinates). Where a share f of the noise is missing, M is about -f sum |n|^2: so the share is known from which on it
would have been seen.

Where S is not told, D is positive, and at most what each step allows: divisors up to twice the middle of these are
tried, and the one that speaks best for the loop counts. Then noise that is missing as a whole may be seen, and no share
of it: with the rest of it the gradient is that of another divisor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dpspec.contract import Check
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.stats.conformance.measurement import exact

Array: TypeAlias = np.ndarray[Any, Any]

NOT_GOT = "reported noise in the gradients of the optimizer"
OTHERS = "gradients other than the reported sum and noise"

#: So many divisors are tried, and so many shares of the noise.
_TRIED, _SHARES = 4096, 100

#: Noise being absent is seen where the p-value is this at most.
_SEEN = 1e-9

#: Noise was found where what was found is no rarer than this, and where rounding hides this share of the smallest
#: layer's at most.
_RARE, _HIDDEN = 1e-3, 0.1


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


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What a recorder writes of all steps: ``sums``, at how many steps the sum was told, at how many of these it and
    the noise were not the gradient, and how much rounding can hide, in deviations."""

    sums: GradientSums
    summed: int
    apart: int
    room: float


def compared(run: RecordedRun) -> Compared | None:
    """None where no step could be compared, or what stands at the end is nothing that a recorder writes."""
    said = run.said("gradients")
    if not (isinstance(said, list) and len(said) == 8 and all(map(_is_sum, said))):
        return None
    steps, product, of_got, of_noise, most, summed, apart, room = map(float, said)
    if not (1.0 <= steps <= run.steps and 0.0 <= apart <= summed <= steps and min(of_got, of_noise, most) > 0.0):
        return None
    return Compared(
        sums=GradientSums(
            steps=int(steps),
            product=product,
            of_got=of_got,
            of_noise=of_noise,
            most=most,
            told=summed == steps,
            fixed=max(1.0, steps * run.header.width),
        ),
        summed=int(summed),
        apart=int(apart),
        room=max(0.0, room),
    )


def _is_sum(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100


def told_noise(run: RecordedRun) -> Iterator[Check]:
    """The checks; none where no step could be compared."""
    found = compared(run)
    if found is None:
        return
    sums = found.sums
    if found.summed:
        note = f"sum and noise over a divisor, at {found.summed} steps"
        yield exact("update", OTHERS, "measured", found.apart == 0, 0, found.apart, note)
    if found.apart == 0 and found.summed in (0, sums.steps):
        yield Check(
            assumption="update",
            test=f"{NOT_GOT}, correlation",
            p_value=sums.p_value(),
            observed="measured",
            detectable=sums.detectable(),
            note=f"at {sums.steps} steps, " + ("by the sum that was told" if sums.told else "whatever the divisor is"),
        )


def not_measured(run: RecordedRun) -> str:
    """Why nobody knows whether the noise that was told of is in the gradients, and what to do; "" where it was found.

    It was found where the sum was told at all steps, and with the noise is the gradient, but for rounding that would
    hide no layer's noise, and where nothing was seen that speaks against the sum.
    """
    if not run.header.optimizer:
        return "no optimizer was given to dpspec.record, so that no gradient was looked at: give optimizer="
    found = compared(run)
    zero = run["noise_squares"] == 0.0
    if zero.any():
        return f"the noise that it told of is zero at {int(zero.sum())} of {run.steps} steps"
    if found is None:
        return (
            "no gradient could be held against it: tell of norms and noise, and let the optimizer that was given step "
            "once, before run.stepped(), with gradients that stand when step() is called and not those of a closure"
        )
    if found.summed < found.sums.steps:
        return "the sum that it was added to was not told of, so that a part of it may be missing: call run.summed"
    if found.sums.steps < run.steps:
        return f"only {found.sums.steps} of {run.steps} steps could be compared with their gradients"
    if found.apart:
        return f"gradients of {found.apart} steps are not the sum and the noise that were told of"
    smallest = min((size for _, size in run.header.layers), default=1)
    if found.room > _HIDDEN * math.sqrt(smallest):
        return "gradients are rounded so coarsely that noise could be missing in a layer"
    return "" if found.sums.p_value() > _RARE else "the sum that was told of follows the noise, though not beyond doubt"
