"""Privacy of a training schedule without a spec: certified epsilon, mu, advantage and rate of identification.

A schedule is ``steps`` releases of a sum of clipped contributions with Gaussian or Laplace noise, in units of the clip
norm. Bounds are for add-remove adjacency and an adversary who sees all iterates. In the direction remove the adversary
detects the presence of the group, in the direction add its absence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpspec.accounting import (
    DoubleMixture,
    Interval,
    Laplace,
    LaplaceTradeOff,
    Mixture,
    Pair,
    PrivacyLoss,
    bisect,
    crossing,
    fit_gdp,
    gaussian,
    inside,
    positive,
    round_up,
    whole,
)
from dpspec.errors import ArgumentError
from dpspec.renames import old_arguments
from dpspec.stats import several_targets

if TYPE_CHECKING:
    from dpspec.accounting import Direction

#: The accountant's directions, by the names of specs.
DIRECTIONS: Mapping[str, Direction] = {"remove": "present-first", "add": "absent-first"}

#: The false-positive rate at which the rate of identification is reported.
FALSE_POSITIVES = 0.01

#: Supported ranges: beyond them losses leave float64 or the grids.
MIN_NOISE, MAX_NOISE, MAX_STEPS, MAX_GROUP = 1e-6, 1e6, 10**9, 10_000

#: The smallest noise that a search for a target returns: with less, one epsilon of many steps takes seconds, and no
#: stated target needs it.
LEAST_CALIBRATED = 1e-2

#: The largest sensitivity over the scale of Laplace noise.
_LARGEST_EDGE = 100.0

#: The largest number of targets, and the probabilities for which their right guesses are bounded.
MAX_TARGETS, LEVELS = 1000, (0.5, 0.05, 0.01)

#: The deltas of the curve that bounds right guesses.
_CURVE = tuple(10.0 ** (-k / 4.0) for k in range(1, 53))

#: Significant digits of a calibrated noise.
_DIGITS = 5

#: Rounding error of mu: a square root and two products.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Steps of noise on sums over batches.

    Attributes:
        steps: Number of steps.
        noise: Standard deviation of Gaussian noise over the clip norm, or with ``laplace`` the scale over the L1 norm.
        rate: Sampling rate of Poisson batches; 1 for all records in each step. None for batches of fixed size.
        batch_size: Size of a batch of fixed size.
        records: Number of records including the group, for batches of fixed size.
        laplace: Whether the noise is Laplace.
    """

    steps: int
    noise: float
    rate: float | None = None
    batch_size: int | None = None
    records: int | None = None
    laplace: bool = False

    def __post_init__(self) -> None:
        name = "laplace" if self.laplace else "noise_multiplier"
        positive(name, self.noise)
        if not MIN_NOISE <= self.noise <= MAX_NOISE:
            raise ValueError(f"{name} must be from {MIN_NOISE:g} to {MAX_NOISE:g}, got {self.noise!r}")
        if whole("steps", self.steps, 1) > MAX_STEPS:
            raise ValueError(f"steps must be at most {MAX_STEPS}, got {self.steps}")
        if self.rate is not None:
            inside("rate", self.rate, one=True)
        else:
            whole("batch_size", self.batch_size, 1)
            whole("records", self.records, 1)

    def pair(self, group_size: int) -> Pair:
        """The dominating pair of one step for groups of up to ``group_size`` records; attained by some data."""
        if whole("group_size", group_size, 1) > MAX_GROUP:
            raise ValueError(f"group_size must be at most {MAX_GROUP}, got {group_size}")
        if self.laplace:
            if group_size > 1 and self.rate != 1.0:
                raise ValueError("group_size must be 1 for sampled Laplace noise: no tight pair of groups is known")
            if group_size > _LARGEST_EDGE * self.noise:
                raise ValueError(f"laplace must be at least group_size / {_LARGEST_EDGE:g}, got {self.noise!r}")
            return Laplace(self.noise, float(group_size), self.rate or 1.0)
        if self.rate is not None:
            return Mixture.poisson(group_size, self.rate, self.noise)
        assert self.records is not None
        assert self.batch_size is not None
        without = self.records - group_size
        if self.batch_size > without:
            message = f"batch_size must be at most records - group_size = {without}, got {self.batch_size}"
            raise ValueError(f"{message}; rate 1 is for batches of all records, however many there are")
        return Mixture.fixed(group_size, without, self.batch_size, self.noise)

    def loss(self, group_size: int, direction: str) -> PrivacyLoss:
        """The composed privacy loss of a group in the direction ``remove`` or ``add``."""
        return PrivacyLoss(((self.pair(group_size), self.steps),), DIRECTIONS[direction])


def make_schedule(
    *,
    steps: Any = None,
    noise_multiplier: Any = None,
    rate: Any = None,
    sampling: str = "poisson",
    batch_size: Any = None,
    records: Any = None,
    laplace: Any = None,
    epochs: Any = None,
) -> Schedule:
    """The schedule of the arguments of :func:`epsilon`. Raises ``ValueError`` for missing or surplus ones."""
    if (noise_multiplier is None) == (laplace is None):
        raise ValueError("noise_multiplier or laplace must be set, in clip norms, and not both")
    if sampling not in ("poisson", "fixed"):
        raise ValueError(f"sampling must be poisson or fixed, got {sampling!r}")
    if sampling == "fixed" and laplace is not None:
        raise ValueError("laplace requires Poisson batches or rate 1: no bound for batches of fixed size")
    if (steps is None) == (epochs is None):
        raise ValueError("steps or epochs must be set, and not both")
    sized = any(value is not None for value in (batch_size, records, epochs))
    if epochs is not None and rate is not None and batch_size is records is None:
        equal = f", here {round(epochs / rate)}" if whole("epochs", epochs, 1) and 0.0 < rate <= 1.0 else ""
        raise ValueError(
            f"epochs cannot be combined with rate, which leaves the number of batches in a pass open: give steps, "
            f"which is epochs / rate{equal}, or batch_size and records in place of rate"
        )
    if sampling == "fixed" or sized:
        if rate is not None:
            if batch_size is None and records is None:
                raise ValueError("rate is for Poisson batches: for batches of fixed size give batch_size and records")
            sizes = [name for name, value in (("batch_size", batch_size), ("records", records)) if value is not None]
            raise ValueError(f"rate must be removed: {' and '.join(sizes)} define the batches")
        for name, value in (("batch_size", batch_size), ("records", records)):
            if value is None:
                raise ValueError(f"{name} is required: batch_size and records define the batches")
            whole(name, value, 1)
        if batch_size > records:
            raise ValueError(f"batch_size must be at most records = {records}, got {batch_size}")
    elif rate is None:
        raise ValueError("rate is required for Poisson batches, or batch_size and records; rate 1 uses all records")
    if epochs is not None:
        steps = whole("epochs", epochs, 1) * -(-records // batch_size)
    if sampling == "poisson" and sized:
        rate, batch_size, records = batch_size / records, None, None
    return Schedule(
        steps=steps,
        noise=laplace if noise_multiplier is None else noise_multiplier,
        rate=rate,
        batch_size=batch_size,
        records=records,
        laplace=noise_multiplier is None,
    )


@dataclass(frozen=True, kw_only=True)
class GroupPrivacy:
    """Certified intervals for groups of ``group_size`` records.

    Attributes:
        group_size: Number of records of the group.
        noise: The schedule's noise.
        remove: Epsilon in the direction remove.
        add: Epsilon in the direction add.
        mu: The smallest mu for which the steps are mu-GDP.
        advantage: Largest difference of true- and false-positive rate of an attacker.
        identified: Largest true-positive rate at a false-positive rate of 1%, in the worse direction.
    """

    group_size: int
    noise: float
    remove: Interval
    add: Interval
    mu: Interval
    advantage: Interval
    identified: Interval

    @property
    def epsilon(self) -> Interval:
        """Epsilon in both directions."""
        return self.remove.worse(self.add)

    @property
    def direction(self) -> str:
        """The direction of the larger epsilon, ``both`` if the intervals overlap."""
        if self.remove.lower > self.add.upper:
            return "remove"
        return "add" if self.add.lower > self.remove.upper else "both"


def group_privacy(schedule: Schedule, group_size: int, delta: float) -> GroupPrivacy:
    """Epsilon at ``delta`` in both directions, mu, advantage and the rate of identification."""
    inside("delta", delta)
    losses = {name: schedule.loss(group_size, name) for name in DIRECTIONS}
    remove, add = (loss.epsilon(delta) for loss in losses.values())
    advantage = losses["remove"].advantage(width=1e-3)  # the total variation distance is symmetric
    rates = [loss.rero(FALSE_POSITIVES, direction=loss.direction, width=1e-3) for loss in losses.values()]
    lower = remove.worse(add).lower
    # epsilon 0 is not attained: delta there may be far below the one in question
    attained = {0.0: advantage.lower} | ({lower: delta} if lower > 0.0 else {})
    return GroupPrivacy(
        group_size=group_size,
        noise=schedule.noise,
        remove=remove,
        add=add,
        mu=_mu(schedule, group_size, attained),
        advantage=advantage,
        identified=rates[0].worse(rates[1]),
    )


@dataclass(frozen=True, kw_only=True)
class RightGuesses:
    """Bounds of the number of right guesses about several people (``docs/explanation/proofs/one-run.md``, Theorem 61).

    Attributes:
        targets: The number of targets, each with up to ``group_size`` records.
        group_size: Number of records of a target.
        baseline: Success probability of the best guess of a target without the release.
        membership: Whether targets take part by fair coins; otherwise the contents of their records are guessed.
        mean_share: Upper bound on the expected share of right guesses.
        most: For each of :data:`LEVELS`, the number of right guesses that are exceeded with at most this probability.
        by_guessing: The same without the release.
    """

    targets: int
    group_size: int
    baseline: float
    membership: bool
    mean_share: float
    most: tuple[int, ...]
    by_guessing: tuple[int, ...]


def right_guesses(schedule: Schedule, group_size: int, targets: int, baseline: float | None = None) -> RightGuesses:
    """Bound the right guesses about ``targets`` people; without a ``baseline`` about their membership.

    Raises:
        ValueError: A number is out of its range, or no theorem covers the schedule.
    """
    if whole("targets", targets, 1) > MAX_TARGETS:
        raise ValueError(f"targets must be at most {MAX_TARGETS}, got {targets}")
    if schedule.rate is None:
        raise ValueError("targets require Poisson batches or rate 1: batches of fixed size depend on their number")
    if baseline is None:
        loss = PrivacyLoss(((schedule.pair(group_size), schedule.steps),), "both")
    elif schedule.laplace:
        raise ValueError("baseline requires Gaussian noise: no bound for replaced records with Laplace noise")
    else:
        inside("baseline", baseline)
        pair = DoubleMixture.poisson(group_size, group_size, schedule.rate, schedule.noise)
        loss = PrivacyLoss(((pair, schedule.steps),), "both")
    ends = zip(loss.epsilons(_CURVE, width=1e-3), _CURVE, strict=True)
    points = [(epsilon.upper, delta) for epsilon, delta in ends if math.isfinite(epsilon.upper)]
    points.append((0.0, loss.delta(0.0).upper))
    kappa, exact = (0.5, True) if baseline is None else (baseline, False)
    share = several_targets.mean_share(points, kappa, exact=exact)
    if not exact:  # one record at a time: the bound of reconstruction, from the loss of an added record
        share = min(share, schedule.loss(group_size, "remove").rero(kappa, direction="present-first").upper)
    return RightGuesses(
        targets=targets,
        group_size=group_size,
        baseline=kappa,
        membership=exact,
        mean_share=share,
        most=tuple(several_targets.most_right(points, targets, level, kappa, exact=exact) for level in LEVELS),
        by_guessing=tuple(several_targets.most_right_by_guessing(targets, level, kappa) for level in LEVELS),
    )


def _mu(schedule: Schedule, group_size: int, attained: Mapping[float, float]) -> Interval:
    """The smallest mu: at most that without amplification by sampling, and more than excluded by attained points.

    ``attained``: epsilons and deltas no larger than the schedule's there. G_mu is excluded if its delta is smaller.
    """
    pair = schedule.pair(group_size)
    assert isinstance(pair, Mixture | Laplace)
    step = pair.dominating_effect if isinstance(pair, Mixture) else fit_gdp(LaplaceTradeOff(pair.edge)).mu
    upper, lower = step * math.sqrt(schedule.steps) * (1.0 + _ROUNDING), 0.0
    for epsilon, delta in attained.items():
        if not (math.isfinite(epsilon) and delta > 0.0):
            continue

        def excluded(mu: float, epsilon: float = epsilon, delta: float = delta) -> bool:
            return gaussian.delta_interval(epsilon, mu).upper < delta

        least = upper * 1e-12
        if excluded(least):
            lower = max(lower, upper if excluded(upper) else bisect(excluded, least, upper, relative=1e-6)[0])
    return Interval(lower, upper)


def noise_for(target: float, schedule: Callable[[float], Schedule], group_size: int, delta: float) -> float:
    """The smallest noise, rounded up to five digits, at which epsilon is certainly at most ``target``.

    Args:
        target: The target epsilon, above 0.
        schedule: The schedule for a noise.
        group_size: Number of records of the group.
        delta: The delta.

    Raises:
        ValueError: No supported noise reaches the target.
    """
    positive("target", target)
    inside("delta", delta)

    def margin(log_noise: float, width: float = 1e-4) -> float:
        candidate = schedule(math.exp(log_noise))
        first = candidate.loss(group_size, "remove").epsilons([delta], width=width)
        if first[0].lower > target:
            return math.log(target / first[0].lower)
        worse = first[0].worse(
            candidate.loss(group_size, "add").epsilons([delta], width=width, other_direction=first)[0]
        )
        return math.log(target / worse.upper) if worse.upper > 0.0 else 700.0

    smallest, largest = math.log(LEAST_CALIBRATED * (1.0 + 1e-12)), math.log(MAX_NOISE * (1.0 - 1e-12))
    high = 0.0
    if margin(high) >= 0.0:
        low = high - 0.7
        while low > smallest and margin(low) >= 0.0:
            high, low = low, low - 0.7
        low = max(low, smallest)
        if margin(low) >= 0.0:
            return LEAST_CALIBRATED
    else:
        low, high = high, high + 0.7
        while high < largest and margin(high) < 0.0:
            low, high = high, high + 0.7
        if high >= largest:
            raise ValueError(f"target must be reachable with noise up to {MAX_NOISE:g}, got {target!r}")
    noise = round_up(math.exp(crossing(margin, high, low, within=2e-5)[0]), _DIGITS)
    while margin(math.log(noise)) < 0.0:  # exp and log round
        noise = round_up(noise * (1.0 + 10.0**-_DIGITS), _DIGITS)
    return noise


@dataclass(frozen=True, eq=False)
class EpsilonBounds:
    """Certified intervals of epsilon, for one schedule or for each combination of broadcast arguments.

    ``numpy.asarray`` gives an array of shape (..., 2) with lower and upper ends, ``to_frame`` a pandas data frame.

    Attributes:
        lower: Lower ends, in the broadcast shape of the arguments; a number for numbers.
        upper: Upper ends. Epsilon is certainly at most this.
        arguments: The arguments, by name, in the broadcast shape.
    """

    lower: Any
    upper: Any
    arguments: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The broadcast shape of the arguments."""
        return np.shape(self.upper)

    def __len__(self) -> int:
        return len(self.upper)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.stack([np.asarray(self.lower), np.asarray(self.upper)], axis=-1).astype(dtype or np.float64)

    def to_frame(self) -> Any:
        """A pandas data frame with one row per combination: the arguments, ``lower`` and ``upper``."""
        from dpspec.contract.findings import data_frame

        columns = {**self.arguments, "lower": self.lower, "upper": self.upper}
        return data_frame({name: np.ravel(values).tolist() for name, values in columns.items()})

    def __repr__(self) -> str:
        if self.shape == ():
            return f"EpsilonBounds(lower={float(self.lower)!r}, upper={float(self.upper)!r})"
        return f"EpsilonBounds(shape={self.shape}, upper={np.array2string(np.asarray(self.upper), threshold=8)})"


@old_arguments("dpspec.epsilon")
def epsilon(
    *,
    steps: npt.ArrayLike | None = None,
    noise_multiplier: npt.ArrayLike | None = None,
    rate: npt.ArrayLike | None = None,
    delta: npt.ArrayLike = 1e-5,
    group_size: npt.ArrayLike = 1,
    sampling: str = "poisson",
    batch_size: npt.ArrayLike | None = None,
    records: npt.ArrayLike | None = None,
    laplace: npt.ArrayLike | None = None,
    epochs: npt.ArrayLike | None = None,
    width: float = 1e-3,
) -> EpsilonBounds:
    """Certified epsilon of a training schedule, for numbers or arrays, which are broadcast as in NumPy.

    Bounds hold for add-remove adjacency and an adversary who sees all iterates, as the worse of both directions.

    Args:
        steps: Number of steps.
        noise_multiplier: Standard deviation of Gaussian noise on the sum, in clip norms.
        rate: Sampling rate of Poisson batches; 1 for all records in each step.
        delta: The delta, above 0 and below 1.
        group_size: Number of records that are added or removed together.
        sampling: ``poisson``, or ``fixed`` for batches of ``batch_size`` of ``records`` records, the group included.
        batch_size: Size of a batch; of a Poisson batch on average, in place of ``rate``.
        records: Number of records, with ``batch_size``.
        laplace: Scale of Laplace noise in L1 clip norms, in place of ``noise_multiplier``.
        epochs: Number of passes over the records, in place of ``steps``: ceil(records / batch_size) steps each.
        width: Relative width of the intervals.

    Returns:
        The intervals.

    Raises:
        UsageError: An argument is missing, surplus or out of its range; the message names it.
    """
    named = {
        "noise_multiplier": noise_multiplier,
        "laplace": laplace,
        "rate": rate,
        "batch_size": batch_size,
        "records": records,
        "steps": steps,
        "epochs": epochs,
        "delta": delta,
        "group_size": group_size,
    }
    present = {name: np.asarray(value) for name, value in named.items() if value is not None}
    for name, array in present.items():
        if array.dtype.kind not in "iuf":
            raise ArgumentError(f"{name} must be a number or an array of numbers, got {named[name]!r:.60}")
    try:
        inside("width", width)
        arrays = dict(zip(present, np.broadcast_arrays(*present.values()), strict=True))
    except ValueError as error:
        text = str(error)
        raise ArgumentError(f"arguments must broadcast: {text}" if "broadcast" in text else text) from None
    shape = next(iter(arrays.values())).shape
    questions: dict[tuple[Schedule, int], list[tuple[int, float]]] = {}
    try:
        for i, row in enumerate(zip(*(np.ravel(array).tolist() for array in arrays.values()), strict=True)):
            values = dict(zip(arrays, row, strict=True))
            values = {name: _integral(value) if name in _COUNTS else value for name, value in values.items()}
            size, delta_of_row = values.pop("group_size"), inside("delta", values.pop("delta"))
            questions.setdefault((make_schedule(sampling=sampling, **values), size), []).append((i, delta_of_row))
        count = math.prod(shape)
        lower, upper = np.zeros(count), np.zeros(count)
        for (schedule, size), entries in questions.items():
            deltas = [delta_of_entry for _, delta_of_entry in entries]
            remove = schedule.loss(size, "remove").epsilons(deltas, width=width)
            add = schedule.loss(size, "add").epsilons(deltas, width=width, other_direction=remove)
            for (i, _), removed, added in zip(entries, remove, add, strict=True):
                worse = removed.worse(added)
                lower[i], upper[i] = worse.lower, worse.upper
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    plain = {name: array[()] for name, array in arrays.items()}  # numbers for arrays without dimensions
    if not shape:
        return EpsilonBounds(lower.item(), upper.item(), plain)
    return EpsilonBounds(lower.reshape(shape), upper.reshape(shape), plain)


#: Arguments that are counts; floats such as 1e3 are accepted if integral.
_COUNTS = frozenset({"steps", "epochs", "group_size", "batch_size", "records"})


def _integral(value: float) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
