"""Statistics of a run's noise, without torch: :class:`NoiseWatch` makes them, and the judge of the noise tests them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from dpspec_recording.folder.merging import Count, join_by

#: A statistic that is as large was not measured: NaN, infinity and numbers beyond all noise become this number.
UNKNOWN = 1e18

Statistic: TypeAlias = Annotated[float, Meta(ge=0.0, le=UNKNOWN)]


def statistic(value: float) -> float:
    """The number, or :data:`UNKNOWN`."""
    return float(value) if 0.0 <= value < UNKNOWN else UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Gaps between sorted values. small: that equal values can have; expected: the sum of their probabilities."""

    small: Statistic
    expected: Statistic
    gaps: Statistic


@dataclass(frozen=True, kw_only=True)
class Quietest:
    """The coordinate with the smallest sum of squares over the steps. rounding: of a value, in standard deviations."""

    squares: Statistic
    steps: Statistic
    coordinates: Statistic
    rounding: Statistic


@dataclass(frozen=True, kw_only=True)
class Centered:
    """The family of sums of noise that vary least: over a tensor, or over the rows or the columns of a matrix.

    squares: of sums of n values in units of n^0.5 standard deviations, added up over ``degrees`` sums of the sampled
    steps. families: the number of these. rounding: of such a sum.
    """

    squares: Statistic
    degrees: Statistic
    families: Statistic
    rounding: Statistic


@dataclass(frozen=True, kw_only=True)
class AlongSums:
    """Squared components of the noise along the sum of each step: their sum, and the largest."""

    steps: Statistic
    squares: Statistic
    largest: Statistic


@dataclass(frozen=True, kw_only=True)
class Extremes:
    """The largest absolute value of all numbers, and the rounding of one, in standard deviations.

    equal: the number of other steps whose largest absolute value is the same, up to rounding.
    """

    numbers: Statistic
    largest: Statistic
    rounding: Statistic
    equal: Count = 0


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Squared components of vectors of noise along the earlier ones: their sum over ``terms``.

    Of the family with the smallest probability: the vectors are steps, or rows or columns of a tensor.
    """

    squares: Statistic
    terms: Statistic
    families: Statistic


@dataclass(frozen=True, kw_only=True)
class Volume:
    """The volume that vectors of noise in a number of dimensions span.

    ratio: the geometric mean of the squared lengths of the vectors across the earlier ones, over their expectations.
    families: their number; this one has the smallest probability.
    """

    ratio: Statistic
    vectors: Statistic
    dimensions: Statistic
    families: Statistic


@dataclass(frozen=True, kw_only=True)
class Dispersion:
    """Variation over coordinates of their sums of squares, as normal values of equal probability.

    squares: the sum of squared deviations of these values from their mean. coordinates: the number of values.
    """

    squares: Statistic
    coordinates: Statistic


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The common spacing of noise and sums in the smallest standard deviation, and the numbers of values of both."""

    spacing: Statistic
    noise: Statistic
    sums: Statistic


@dataclass(frozen=True, kw_only=True)
class CoarseValues:
    """Values that are rounded more coarsely than their type: ``coarse`` of ``checked``.

    Of the step with the smallest probability, ``coarse_of_step`` of ``checked_of_step``. steps: their number.
    """

    coarse: Count
    checked: Count
    coarse_of_step: Count
    checked_of_step: Count
    steps: Count


@dataclass(frozen=True, kw_only=True)
class NoiseStatistics:
    """Of the noise that one process added.

    counts: values in each interval, over all steps; worst_counts: of the step with the smallest probability; counted:
    the number of these steps. edge_error: the error of an edge of an interval, in standard deviations. sampled: the
    number of sampled steps. repeats: within a step; pooled: between steps. quietest, centered, alignment, volume,
    dispersion, grid: None if unknown.
    """

    counts: tuple[Count, ...]
    worst_counts: tuple[Count, ...]
    counted: Count
    edge_error: Statistic
    sampled: Count
    coarse: CoarseValues
    repeats: Repeats
    pooled: Repeats
    along_sums: AlongSums
    extremes: Extremes
    quietest: Quietest | None
    centered: Centered | None
    alignment: Alignment | None
    volume: Volume | None
    dispersion: Dispersion | None
    grid: Grid | None


def _concatenated(rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(rows))


@dataclass(frozen=True, kw_only=True)
class NoiseFacts:
    """Statistics of each process that adds noise, and of each part of a training: their steps are not one sample."""

    processes: tuple[NoiseStatistics, ...] = field(metadata=join_by(_concatenated))
