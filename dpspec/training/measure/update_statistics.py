"""What is left of each update, kept as sufficient statistics for conformance: measured on released models alone.

In directions that no canary uses, the residual of a step is the noise plus the deviation of the drawn records from
their mean, if all is as declared. Sums of it along directions that were fixed before the step (the update that was
expected, the residuals of earlier steps) are martingales: :mod:`dpspec.stats.conformance.martingale`. Sums of squares
are at least those of the noise: :mod:`dpspec.stats.conformance.noise_size`. All in units of the clip norm.

Unlike an adversary, who must not know them, this knows which canaries are planted.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import sqrt
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpspec.contract import attacks
from dpspec.contract.providers import GradientCanaries, TrainingJob
from dpspec.stats.conformance import freshness
from dpspec.stats.conformance.evidence.measured import (
    Directions,
    Drift,
    DriftAtStep,
    Everywhere,
    FirstResidual,
    LagSum,
    LeastCoordinate,
    PairSum,
    PartSum,
    ResidualSums,
    WeakestStep,
)
from dpspec.stats.conformance.evidence.steps import FIRST_COORDINATES, kept_width
from dpspec.training.device import tensors
from dpspec.training.gradients.clipping import Flat, clipper
from dpspec.training.gradients.contributions import RecordsAndCanaries
from dpspec.training.gradients.fetching import Later, Settled, at_hand
from dpspec.training.gradients.persample import ClippedSum, FlatModel
from dpspec.training.loop.checkpoint import Memory
from dpspec.training.loop.optimizers import Undone
from dpspec.training.loop.samplers import Shuffled, epoch_of, exclusive
from dpspec.training.loop.schedule import Schedule
from dpspec.training.measure.layer_products import LayerProducts
from dpspec.training.measure.logs import spaced
from dpspec.training.measure.population import Drawn, Estimated, Population

Array: TypeAlias = np.ndarray[Any, Any]

#: Where rounding can be more than this share of the declared noise's length, a step is not measured.
BEARABLE = 0.25

#: Shorter updates have no direction.
_SHORTEST = 1e-300

#: Canaries that turn away from their directions by less than this, relatively, count as identical.
_TURNED = 1e-3


class ResidualLog:
    """Collects residuals step by step; steps that declare no Gaussian noise are left out, and those of shuffled batches
    out of all but the squares.

    coordinates: (P,) float64, per parameter the sum over steps of (|residual| + rounding)^2 / variance of the noise.
    layers: (layers, 2) float64, the same per layer, with the length of its part of the residual for its size: the sum
        over steps, and the least of them.
    pairs: products of any two of the largest layers. seen: how many steps are in these.
    along: per step the free residual along the expected update, that update's length, and what rounding can have
        changed of the residual, all in clip norms.
    variances: per step, the noise's variance, and that with what sampling adds at most along any one direction.
    rows: per step, some coordinates of the free residual.
    hidden: how many steps are in none of the last three, because of the rounding of the parameters.

    Where records are allocated to the steps of an epoch, its first step alone is in the last three: at later ones the
    past tells of the batch.

    An estimate's error is not without bias along the estimate itself. Where updates are estimated, another estimate
    gives the direction, that of the step before where there is one, and the length is that of the step's own along it.

    Which steps are left out is decided before each of them, by the models until then.
    """

    coordinates: Settled[Array] = Settled()
    layers: Settled[Array] = Settled()
    seen: Settled[int] = Settled()
    along: Settled[list[tuple[float, float, float]]] = Settled()
    variances: Settled[list[tuple[float, float]]] = Settled()
    rows: Settled[list[Array]] = Settled()
    hidden: Settled[int] = Settled()

    def __init__(
        self,
        job: TrainingJob,
        model: FlatModel,
        real: int,
        directions: attacks.Directions | None = None,
        looked: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """``job`` has its canaries in place: gradients along ``directions``, or rows after the first ``real`` ones.

        looked: (steps,), which are going to be added; by default all.
        """
        self._model = model
        canaries = job.canaries.count if job.canaries is not None else 0
        self._schedule = Schedule.of(job.phases, len(job.x) + canaries)
        self._ends = list(accumulate(phase.steps for phase in self._schedule.phases))
        x, y = tensors(job.x[real:], job.y[real:], job.device)
        self._planted = RecordsAndCanaries(model, x, y, job.canaries)
        self._indices = torch.arange(len(x) + canaries)
        self._constant = len(x) == 0
        self._free = _Free(directions)
        flat = all(isinstance(clipper(phase.clip), Flat) for phase in self._schedule.phases)
        self._turned = not flat or len(x) > 0 or not _along(self._free, job.canaries)
        self._kept: dict[int, ClippedSum] = {}
        self._width = kept_width(self._schedule.total)
        layout = model.layout
        self._parts = [(name, size) for name, size in zip(layout.names, layout.sizes, strict=True) if size]
        self._starts = np.cumsum([0, *(size for _, size in self._parts)])[:-1]
        noisy = np.array([phase.noise_multiplier > 0.0 for phase in self._schedule], dtype=bool)
        self.pairs = LayerProducts(self._parts, int((noisy if looked is None else noisy & looked).sum()))
        self.later = Later()
        self.restore({})

    def add(
        self,
        step: int,
        previous: Tensor,
        undone: Undone,
        known: Population | Estimated | Drawn,
        apart: Tensor | None = None,
    ) -> None:
        """A step from the model ``previous`` (P,), what its update was undone to, and what the real records add.

        apart: where ``known`` is an estimate, another one (P,) of the same sum, made apart from it: of this step, or
        of the step before.
        """
        number = bisect_left(self._ends, step)
        phase = self._schedule.phases[number]
        begun = self._ends[number] - phase.steps
        sigma, clip = phase.noise_multiplier, phase.clip_norm
        if sigma * sigma == 0.0 or phase.noise != "gaussian":
            return
        planted = self._contribution(number, previous)
        rate = phase.sampler.inclusion
        expected = known.mean(phase.sampler, planted.sum) / clip
        residual = undone.noisy / clip - expected
        hides = undone.rounding / clip, undone.expected / clip
        self.later.add(self._keep_squares, residual, *hides, sigma)
        if isinstance(phase.sampler, Shuffled) or (step - 1 - begun) % epoch_of(phase.sampler):
            return  # given the epoch's earlier batches, records are not in this one with the rate: no martingale
        free = self._free(residual)
        towards = self._free(expected if apart is None else rate * (apart + planted.sum) / clip)
        length = torch.linalg.vector_norm(towards, dtype=torch.float64)
        product = torch.dot(free.double(), towards.double())
        pull = length
        if apart is not None:
            pull = torch.dot(self._free(expected).double(), towards.double()) / length.clamp_min(_SHORTEST)
        squares = known.squares + (at_hand(planted.norms.square().sum()) if self._turned else 0.0)
        without = 1.0 if exclusive(phase.sampler) and rate < 1.0 else 1.0 - rate
        sampled = (rate * without * squares + rate**2 * known.within) / clip**2
        self.later.add(self._keep_along, product, length, pull, spaced(free, self._width), sampled, *hides, sigma)

    def _keep_squares(self, residual: Array, error: Array | float, hidden: Array | float, sigma: float) -> None:
        """The sums over all parameters, of a step whose rounding can be borne; error, hidden: what it is, and was."""
        if float(hidden) <= BEARABLE * sqrt(self._model.size) * sigma:
            exact = residual.astype(np.float64)
            self.pairs.add(exact, float(error), sigma)
            self._add_squares(exact, float(error), sigma)

    def _keep_along(
        self,
        product: Array,
        length: Array,
        pull: Array,
        row: Array,
        sampled: Array | float,
        error: Array | float,
        hidden: Array | float,
        sigma: float,
    ) -> None:
        """What a step says of directions; ``product``: of the residual with a vector of this ``length``, along which
        the update is ``pull`` long."""
        if not float(hidden) <= sigma:
            self.hidden += 1
            return
        drift = float(product) / float(length) if length > 0.0 else 0.0
        self.along.append((drift, float(pull), float(error)))
        self.variances.append((sigma**2, sigma**2 + float(sampled)))
        self.rows.append(row)

    def _add_squares(self, residual: Array, error: float, sigma: float) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # a model that has just diverged
            lengths = np.sqrt(np.add.reduceat(residual * residual, self._starts))
            parts = np.square((lengths + error) / sigma)
            largest = np.abs(residual, out=residual)
            largest += error
            largest *= largest
            largest *= 1.0 / sigma**2
            self.coordinates += largest
            self.layers[:, 0] += parts
            self.layers[:, 1] = np.minimum(self.layers[:, 1], parts)
        self.seen += 1

    def _contribution(self, number: int, previous: Tensor) -> ClippedSum:
        """The clipped sum of all planted records; that of gradient canaries is the same whatever the model is."""
        if self._constant and number in self._kept:
            return self._kept[number]
        found = self._planted(previous, self._indices, self._schedule.phases[number].clip)
        if self._constant:
            self._kept[number] = found
        return found

    @property
    def steps(self) -> int:
        """How many steps were added."""
        return len(self.rows)

    def by_layer(self) -> dict[str, tuple[float, float, int]]:
        """Per parameter of the model its sum over the steps, its least of a step, and its degrees of freedom."""
        return {
            name: (float(total), float(least), size)
            for (name, size), (total, least) in zip(self._parts, self.layers, strict=True)
        }

    def state(self) -> Memory:
        """All sums and rows."""
        return {
            "coordinates": self.coordinates.copy(),
            "layers": self.layers.copy(),
            "counts": np.array([self.seen, self.hidden]),
            "along": np.array(self.along).reshape(-1, 3),
            "variances": np.array(self.variances).reshape(-1, 2),
            "rows": np.stack(self.rows) if self.rows else np.zeros((0, 1), dtype=np.float32),
            **self.pairs.state(),
        }

    def restore(self, state: Memory) -> None:
        """Go on; an empty memory begins anew."""
        self.later.forget()
        self.pairs.restore(state)
        self.coordinates = np.array(state.get("coordinates", np.zeros(self._model.size)))
        self.layers = np.array(state.get("layers", np.tile([0.0, np.inf], (len(self._parts), 1))))
        self.seen, self.hidden = (int(v) for v in state.get("counts", (0, 0)))
        self.along = [(float(a), float(b), float(c)) for a, b, c in state.get("along", ())]
        self.variances = [(float(a), float(b)) for a, b in state.get("variances", ())]
        self.rows = list(state.get("rows", ()))


class _Free:
    """Projects a vector (P,) onto the complement of all directions, in O(P); as it is where there are none."""

    def __init__(self, directions: attacks.Directions | None) -> None:
        self._directions = directions
        if directions is not None:
            self._coordinates, self._values = directions.supports(torch.arange(directions.count))

    def __call__(self, vector: Tensor) -> Tensor:
        if self._directions is None:
            return vector
        along = self._directions.project(vector)[:, None] * self._values
        return vector.index_add(0, self._coordinates.flatten(), -along.flatten().to(vector))


def _along(free: _Free, canaries: GradientCanaries | None) -> bool:
    """Whether the first few canaries' gradients point along their directions: no part of them is free."""
    if canaries is None or canaries.count == 0:
        return True
    rows = canaries.gradients(torch.arange(min(8, canaries.count)))
    rest = torch.stack([free(row) for row in rows])
    return bool((rest.norm(dim=1) <= _TURNED * rows.norm(dim=1)).all())


#: What stands for measurements that are not finite: evidence is JSON, which has none.
_HUGE, _LARGE = 1e300, 1e70


def number(value: float) -> float:
    """The value, or a huge one where it is not finite or larger: more than was ever declared."""
    return float(np.clip(value, -_HUGE, _HUGE)) if np.isfinite(value) else _HUGE


def replace_non_finite(values: Array) -> Array:
    """Values in float64, 0 for what is not a number and large where it is infinite."""
    finite: Array = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=_LARGE, neginf=-_LARGE)
    return finite


def first_coordinates(rows: Array) -> tuple[float, ...]:
    """The first of ``rows`` (steps, width), cut to what is kept of it and to three digits."""
    return tuple(round(float(v), 3) for v in np.clip(rows[0, :FIRST_COORDINATES], -1e6, 1e6))


def residual_sums(log: ResidualLog) -> ResidualSums:
    """What was seen from outside: sums of squares per layer, and sums along predictable directions."""
    everywhere = None
    if log.seen:
        layers = log.by_layer()
        everywhere = Everywhere(
            layers={name: PartSum(number(total), size * log.seen) for name, (total, _, size) in layers.items()},
            quietest={name: PartSum(number(least), size) for name, (_, least, size) in layers.items()},
            coordinates=LeastCoordinate(least=number(float(log.coordinates.min())), count=len(log.coordinates)),
        )
    return ResidualSums(
        steps=log.steps,
        hidden=log.hidden,
        seen=log.seen,
        everywhere=everywhere,
        directions=_directions(log) if log.steps else None,
        shared=log.pairs.worst() if log.seen == log.pairs.steps else None,
    )


def _directions(log: ResidualLog) -> Directions:
    variances, along = np.array(log.variances), np.array(log.along)
    rounding = np.nan_to_num(along[:, 2], nan=_HUGE, posinf=_HUGE)
    rows = replace_non_finite(np.stack(log.rows))
    lengths = np.linalg.norm(rows, axis=1)
    directions = rows / np.maximum(lengths, 1e-300)[:, None]
    products = freshness.products(rows, directions, rounding, np.sqrt(variances[:, 1]))
    lag = freshness.worst_lag(products.lags)
    noise = np.sqrt(variances[:, 0])
    width = rows.shape[1]

    def again(later: Array, earlier: Array) -> Array:
        """What the same noise again would add along the directions of earlier residuals."""
        added: Array = noise[later] * noise[earlier] * width / np.maximum(lengths[earlier], 1e-300)
        return added

    steps = np.arange(log.steps)
    late, early = products.steps
    return Directions(
        rounding=number(float(rounding.sum())),
        least=float(variances[:, 0].sum()),
        variance=number(float(variances[:, 1].sum())),
        drift=Drift(total=number(float(along[:, 0].sum())), unit=number(max(0.0, float(along[:, 1].sum())))),
        step=_worst_step(replace_non_finite(along[:, 0]), np.maximum(0.0, along[:, 1]), rounding, variances[:, 1]),
        lag=LagSum(
            lag=lag,
            total=number(float(products.lags[lag])),
            unit=float(again(steps[lag:], steps[: log.steps - lag]).sum()),
        ),
        pair=PairSum(
            total=number(products.largest),
            unit=float(again(steps[late : late + 1], steps[early : early + 1]).sum()),
            least=float(variances[late, 0]),
            variance=number(float(variances[late, 1])),
            rounding=number(float(rounding[late])),
        ),
        first=FirstResidual(
            row=first_coordinates(rows),
            least=float(variances[0, 0]),
            variance=number(float(variances[0, 1])),
            rounding=number(float(rounding[0])),
        ),
    )


def _worst_step(drifts: Array, pulls: Array, rounding: Array, variances: Array) -> DriftAtStep:
    """The step whose residual is most surprising along its expected update, and the one that tells least of it."""
    shift = np.maximum(0.0, np.abs(drifts) - rounding)
    worst = int(np.argmax(shift**2 / (variances + shift / 3.0)))
    weakest = int(np.argmin(pulls / (np.sqrt(variances) + rounding)))
    return DriftAtStep(
        total=number(float(np.copysign(shift[worst], drifts[worst]))),
        variance=number(float(variances[worst])),
        unit=number(float(pulls[worst])),
        weakest=WeakestStep(*(number(float(v[weakest])) for v in (variances, pulls, rounding))),
    )
