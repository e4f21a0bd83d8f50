"""A sum over steps whose variance no comparison within a step shows: how far it may be off, as the steps tell it.

Setting. Projections of a run's steps on one vector u, less what is declared of them, add up to D = sum over T steps of
d_t. With u the mean direction of the groups of canaries that were planted less that of groups left out,

    d_t = noise + planted records drawn - expected + <real records drawn - expected, u>,

where the last term is one draw for all groups. Once a model has moved along what was planted its real gradients can
follow: they add up along u then, and groups of one kind have equal shares of it, so that their scatter tells nothing.
Given the past and the coins each d_t has mean zero all the same, since a step's batch is drawn apart from them: D is a
martingale whatever the model does, and with Q = sum over t of (d_t - D / T)^2

    Q T / (T - 1) is what D varies by, as the steps tell it, whatever is shared included.

The tail is Student's t of T - 1 degrees, with v, the larger of this and of the variance that groups tell, which is not
below the declared v_0. Three things are allowed for:

- A model can stop turning to u once D is large. For increments that are symmetric given the past (noise is, and a draw
  of many records nearly) P[|D| >= x, sum of d_t^2 <= w] <= 2 exp(-x^2 / (2 w)) whatever it does (de la Pena 1999,
  theorem 6.1), for a w that is fixed beforehand. The level is shared out over w: p is multiplied by (k + 1)(k + 2),
  k = ln(v / v_0) / ln(1.25), as in :mod:`dpspec.stats.conformance.martingale`.
- Real records that are hardly ever drawn may not be drawn at all, and Q does not show by what they would have moved D.
  Of n of them along u, D is then -L b with the chance of about exp(-L), L being n times the sum of the rates and
  b = |u| the most that one draw adds. So v becomes v + 0.6 x b: with x b / 2 the exponent is x / b where v is 0, and
  the rest makes up for the factor before it. Twice the tail is then at least Poisson's, however few are drawn.
- Steps can differ in scale. Among independent normal increments of any variances the tail of Student's t is largest for
  equal ones, as far out as here (Bakirov & Szekely 2006).

It is no theorem that these make up for all there is: Student's tail takes it for granted that what a step adds is close
to normal given the past. Where batches of an epoch follow from earlier ones (shuffled, random allocation) D is no
martingale for a model that makes use of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special

#: Points over which the level is shared out are so far apart.
_RATIO = 1.25

#: What one draw adds counts with this share of the distance in the variance.
_RARE = 0.6


@dataclass(frozen=True, kw_only=True)
class SharedDraw:
    """How far a sum over steps may be off.

    variance: v of the module's docstring, infinite where it cannot be told. declared: v_0 above 0, at most v. degrees:
    steps less runs, at least 1. single: b, at least 0.
    """

    variance: float
    declared: float
    degrees: int
    single: float

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.variance)

    @property
    def among(self) -> float:
        """Over how many variances the level is shared out, from 2 on."""
        point = max(0.0, math.log(self.variance / self.declared) / math.log(_RATIO))
        return (point + 1.0) * (point + 2.0)

    def tail(self, distance: float) -> float:
        """The chance of so large a sum, one-sided, at most 1; ``distance`` at least 0."""
        variance = self.variance + _RARE * self.single * distance
        if not math.isfinite(variance):
            return 1.0
        return min(1.0, self.among * float(special.stdtr(self.degrees, -distance / math.sqrt(variance))))

    def reach(self, error: float) -> float:
        """The distance whose tail is ``error``, in (0, 0.5); infinite where there is none."""
        t = -float(special.stdtrit(self.degrees, error / self.among))
        half = 0.5 * _RARE * self.single * t * t
        found = half + math.sqrt(half**2 + t * t * self.variance)
        return found if math.isfinite(found) else math.inf
