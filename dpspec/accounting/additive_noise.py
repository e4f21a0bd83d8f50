"""Noise of a log-concave distribution on one number, such as logistic noise: the base of such pairs.

Without the record a step shows scale * Z, with it scale * (Z + s), where s = sensitivity / scale and Z has the density
f. The loss of an output z, in units of the scale, is l(z) = ln f(z - s) - ln f(z). It rises with z if ln f is concave:
bins of outputs are bins of losses. The pair then dominates each smaller shift: for s' < s and any epsilon, the outputs
whose loss exceeds epsilon are a half-line, and P[Z + s > z] rises with s.

>>> import numpy as np
>>> from scipy.special import log_expit
>>> class Logistic(LogConcaveNoise):
...     def log_density(self, z):
...         return log_expit(z) + log_expit(-z)
...     def log_mass(self, low, high):
...         return log_expit(-low) + log_expit(high) + np.log(-np.expm1(low - high))
...     def largest_loss(self, direction):
...         return self.shift
>>> from dpspec.accounting import PrivacyLoss
>>> PrivacyLoss([(Logistic(scale=10.0), 100)]).epsilon(1e-6)
Interval(lower=2.61..., upper=2.61..., ...)
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.grid import Bins, Cells, Pair, TruncatedPair, place_nodes_densely, positive_masses, span_grid
from dpspec.accounting.numerics import EPS, Direction, Floats, bisect, bounded_effect, one_direction, positive

#: Points of the table of losses, and of each search for the output of a loss.
_TABLE = 801

#: The largest output, in units of the scale, at which a tail is searched.
_FARTHEST = 1e12

#: Halvings of a bracket of an output: outputs need not be exact, their losses are.
_HALVINGS = 20


class LogConcaveNoise(Pair):
    """Noise ``scale`` * Z on a number that one record changes by at most ``sensitivity``.

    A subclass defines the distribution of Z, whose log-density is concave on the whole real line: no test of a few
    values replaces that proof. Certificates are as good as ``log_density`` and ``log_mass``.

    Attributes:
        shift: sensitivity / scale.
        rounding: a bound on the error of ``log_density`` and ``log_mass``, relative to 1 + their absolute value.
    """

    rounding: float = 32.0 * EPS

    def __init__(self, scale: float, sensitivity: float = 1.0) -> None:
        self.shift = bounded_effect("scale", positive("sensitivity", sensitivity), positive("scale", scale))
        self.key = (type(self).__module__, type(self).__qualname__, self.shift)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sensitivity/scale {self.shift:g})"

    @abstractmethod
    def log_density(self, z: Floats) -> Floats:
        """ln f of outputs ``z`` (n,), finite at finite ones."""

    @abstractmethod
    def log_mass(self, low: Floats, high: Floats) -> Floats:
        """ln P[low < Z <= high] for ``low`` < ``high`` (n,) each, which may be infinite."""

    def largest_loss(self, direction: Direction) -> float:
        """The limit of the loss for large outputs present-first, and for small ones absent-first; often infinite."""
        return math.inf

    def masses(self, low: Floats, high: Floats) -> Floats:
        """``log_mass``, which may be -inf."""
        with np.errstate(all="ignore"):  # masses underflow in the tails
            return np.asarray(self.log_mass(low, high), dtype=np.float64)

    def losses(self, z: Floats) -> tuple[Floats, Floats]:
        """l(z) and bounds on the errors, (n,) each."""
        present, absent = self.log_density(z - self.shift), self.log_density(z)
        size = np.abs(present) + np.abs(absent)
        return present - absent, self.rounding * (2.0 + size) + self.moved(z) * self.slopes(z)

    def moved(self, z: Floats) -> Floats:
        """A bound on the rounding error of z - s, (n,)."""
        return EPS * (np.abs(z) + self.shift)

    def slopes(self, z: Floats) -> Floats:
        """Bounds on |(ln f)'| near z - s, (n,): a concave function's slope is between its differences to both sides."""
        left, middle, right = (self.log_density(z - self.shift + step) for step in (-1.0, 0.0, 1.0))
        return np.maximum(np.abs(middle - left), np.abs(right - middle)) * (1.0 + 1e-6) + 1e-6

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """The outputs between two ends; beyond, the loss is at most ``largest_loss``, or counts as infinite."""
        direction = one_direction(direction)
        present = direction == "present-first"
        bottom, top = (log_far, log_edge) if present else (log_edge, log_far)
        moved = self.shift if present else 0.0
        ends = self._tail(bottom, -1.0) + moved, self._tail(top, 1.0) + moved
        return _ShiftedPart(self, direction, min(ends[0], -1.0), max(ends[1], self.shift + 1.0))

    def _tail(self, log_mass: float, side: float) -> float:
        """An output beyond which, on the ``side``, Z has at most the mass e^``log_mass``."""

        def is_rare(distance: float) -> bool:
            ends = (np.array([distance]), np.array([math.inf]))
            low, high = ends if side > 0.0 else (-ends[1], -ends[0])
            return float(self.masses(low, high)[0]) <= log_mass - 1e-9

        if is_rare(0.0):
            return 0.0
        far = 1.0
        while not is_rare(far) and far < _FARTHEST:
            far *= 2.0
        return side * bisect(is_rare, far, 0.0, halvings=_HALVINGS)[0]


@dataclass(frozen=True, eq=False)
class _ShiftedPart(TruncatedPair):
    pair: LogConcaveNoise
    direction: Direction
    bottom: float
    top: float

    def table(self) -> tuple[Floats, Floats]:
        bins = self._bins(np.linspace(self.bottom, self.top, _TABLE))
        return bins.loss, np.log(np.maximum(bins.mass, 1e-300))

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        ends = np.sort(self._sign * self.pair.losses(np.array([self.bottom, self.top]))[0])
        lowest, steps = span_grid(float(ends[0]), float(ends[1]), spacing)
        index = place_nodes_densely(*self.table(), lowest, spacing, steps, tilts, widest, limit)
        nodes = np.asarray(lowest + spacing * index, dtype=np.float64)
        return self._bins(self._outputs(self._sign * nodes)).cells(lowest, spacing, index)

    @property
    def _sign(self) -> float:
        return 1.0 if self.direction == "present-first" else -1.0

    def _outputs(self, losses: Floats) -> Floats:
        """Outputs of about these losses, and the two ends, ascending, (n,)."""
        table = np.linspace(self.bottom, self.top, _TABLE)
        position = np.clip(np.searchsorted(self.pair.losses(table)[0], losses), 1, _TABLE - 1)
        low, high = table[position - 1], table[position]
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            is_high = self.pair.losses(middle)[0] >= losses
            low, high = np.where(is_high, low, middle), np.where(is_high, middle, high)
        return np.unique(np.concatenate(([self.bottom], high, [self.top])))

    @staticmethod
    def _worst(of_ends: Floats) -> Floats:
        """The larger value of each bin's ends, (n + 1,), for values (n,) of the inner ends."""
        return np.maximum(np.concatenate((of_ends[:1], of_ends)), np.concatenate((of_ends, of_ends[-1:])))

    def _bins(self, z: Floats) -> Bins:
        """Bins of outputs between neighbors of ``z``, ascending, and of the two tails."""
        pair = self.pair
        low, high = np.concatenate(([-math.inf], z)), np.concatenate((z, [math.inf]))
        absent, present = pair.masses(low, high), pair.masses(low - pair.shift, high - pair.shift)
        at_ends, errors = pair.losses(z)
        bottom, top = -pair.largest_loss("absent-first"), pair.largest_loss("present-first")
        lower, upper = np.concatenate(([bottom], at_ends)), np.concatenate((at_ends, [top]))
        # a merged loss is between the losses of the two ends
        with np.errstate(invalid="ignore"):
            between = np.where(np.isneginf(absent), math.inf, present - absent)
        loss = np.clip(between, lower, upper)
        loss = np.where(np.isfinite(loss), loss, np.concatenate((at_ends, at_ends[-1:])))
        # rounding moves an end of the present bin; its mass changes by at most slope + 1 / width per distance
        moved, slopes = (self._worst(values) for values in (pair.moved(z), pair.slopes(z)))
        error = pair.rounding * (1.0 + np.maximum(np.abs(present), np.abs(absent)))
        error = error + 2.0 * moved * (slopes + 1.0 / (high - low))
        widths = np.where(np.isfinite(upper - lower), upper - lower, math.inf)
        loss_error = np.minimum(2.0 * error, widths) + 4.0 * EPS * np.abs(loss)
        shift = float(errors.max())
        if self._sign > 0.0:
            mass, mass_error = positive_masses(present, error)
            return Bins(mass, loss, lower, upper, mass_error, loss_error, shift)
        mass, mass_error = positive_masses(absent, error)
        return Bins(mass, -loss, -upper, -lower, mass_error, loss_error, shift)
