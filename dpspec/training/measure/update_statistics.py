"""Sufficient statistics of the residuals of released models, in clip norms, for conformance.

Sums along directions fixed before the step are martingales, and sums of squares are at least those of the noise.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, combinations
from math import sqrt

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpspec.contract import attacks
from dpspec.contract.providers import TrainingJob
from dpspec.stats.conformance import evidence, noise_tests
from dpspec.stats.conformance.evidence import Drift, LeastCoordinate, number
from dpspec.stats.conformance.noise_tests import SharedLayers
from dpspec.stats.conformance.sampling import HUGE
from dpspec.training.device import Array, SyncedAttribute, TransferQueue, float_on_cpu, tensors
from dpspec.training.gradients.persample import ClippedSum, FlatModel, clipper
from dpspec.training.loop.checkpoint import Remembering
from dpspec.training.loop.contributions import Population, RecordsAndCanaries
from dpspec.training.loop.native import Schedule, ScheduledPhase
from dpspec.training.loop.optimizers import RecoveredUpdate
from dpspec.training.measure.logs import spaced

#: Steps are not measured if rounding may exceed this fraction of the declared noise's norm.
MAX_ROUNDING = 0.25

#: Minimum norm of an update with a direction.
_SHORTEST = 1e-300

#: Relative deviation below which a canary's gradient counts as parallel to its direction.
_TURNED = 1e-3


class ResidualLog(Remembering):
    """Collect residuals of steps with Gaussian noise; of schemes that are not ``directed`` only the squares.

    With random allocation, only the first step of an epoch enters ``along``, ``variances`` and ``rows``, because later
    batches depend on earlier ones. Steps are excluded based on earlier models only.

    Attributes:
        coordinates: Per parameter the sum over steps of (|residual| + rounding)^2 / variance of the noise, (P,).
        layers: Per layer the same for norms.
        pairs: Inner products of pairs of the largest layers.
        seen: Number of steps in these.
        along: Per step, the free residual along the expected update, the update's norm and the rounding bound.
        variances: Per step, the variance of the noise, and an upper bound including sampling along any direction.
        rows: Per step, some coordinates of the free residual.
        hidden: Number of steps excluded from the last three because of rounding.
    """

    kept = ("coordinates", "layers", "seen", "along", "variances", "rows", "hidden", "pairs")
    coordinates: SyncedAttribute[Array] = SyncedAttribute()
    layers: SyncedAttribute[Array] = SyncedAttribute()
    seen: SyncedAttribute[int] = SyncedAttribute()
    along: SyncedAttribute[list[tuple[float, float, float]]] = SyncedAttribute()
    variances: SyncedAttribute[list[tuple[float, float]]] = SyncedAttribute()
    rows: SyncedAttribute[list[Array]] = SyncedAttribute()
    hidden: SyncedAttribute[int] = SyncedAttribute()

    def __init__(
        self,
        job: TrainingJob,
        model: FlatModel,
        real: int,
        directions: attacks.Directions | None = None,
        looked: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self._model = model
        canaries = job.canaries.count if job.canaries is not None else 0
        self._schedule = Schedule.of(job.phases, len(job.x) + canaries)
        self._ends = list(accumulate(phase.steps for phase in self._schedule.phases))
        x, y = tensors(job.x[real:], job.y[real:], job.device)
        self._planted = RecordsAndCanaries(model, x, y, job.canaries)
        self._indices = torch.arange(len(x) + canaries)
        self._constant = len(x) == 0
        self._directions = directions
        if directions is not None:
            self._supports = directions.supports(torch.arange(directions.count))
        flat = all(clipper(phase.clip).is_flat for phase in self._schedule.phases)
        self._turned = not flat or len(x) > 0
        if job.canaries is not None and canaries and not self._turned:  # are gradients parallel to their directions?
            rows = job.canaries.gradients(torch.arange(min(8, canaries)))
            free_rows = torch.stack([self._free(row) for row in rows])
            self._turned = not bool((free_rows.norm(dim=1) <= _TURNED * rows.norm(dim=1)).all())
        self._kept: dict[int, ClippedSum] = {}
        self._width = evidence.kept_width(self._schedule.total)
        layout = model.layout
        self.parts = [(name, size) for name, size in zip(layout.names, layout.sizes, strict=True) if size]
        self._starts = np.cumsum([0, *(size for _, size in self.parts)])[:-1]
        noisy = np.array([phase.noise_multiplier > 0.0 for phase in self._schedule], dtype=bool)
        self.pairs = LayerProducts(self.parts, int((noisy if looked is None else noisy & looked).sum()))
        self.transfers = TransferQueue()
        self.coordinates, self.layers = np.zeros(model.size), np.zeros(len(self.parts))
        self.along, self.variances, self.rows = [], [], []
        self.seen = self.hidden = 0

    def add(
        self,
        step: int,
        phase: ScheduledPhase,
        previous: Tensor,
        recovered: RecoveredUpdate,
        contribution: Population,
        direction: Tensor | None = None,
    ) -> None:
        """Add a step of ``phase``, with the step's clip norm, from the model ``previous`` (P,).

        Estimated updates are biased along the estimate itself: then ``direction`` is an independent estimate (P,).
        """
        number = bisect_left(self._ends, step)
        begun = self._ends[number] - phase.steps
        sigma, clip = phase.noise_multiplier, phase.clip_norm
        if sigma * sigma == 0.0 or phase.noise != "gaussian":
            return
        planted = self._kept.get(number)
        if planted is None:
            planted = self._planted(previous, self._indices, phase.clip)
            if self._constant and phase.adaptive is None:  # gradient canaries
                self._kept[number] = planted
        rate = phase.sampler.inclusion
        expected = contribution.mean(phase.sampler, planted.sum) / clip
        residual = recovered.noisy / clip - expected
        hides = recovered.rounding / clip, recovered.expected / clip
        self.transfers.add(self._keep_squares, residual, *hides, sigma)
        if not phase.sampler.directed or (step - 1 - begun) % phase.sampler.dependent_steps:
            return  # given the epoch's earlier batches, inclusion probabilities differ: no martingale
        free = self._free(residual)
        towards = self._free(expected if direction is None else rate * (direction + planted.sum) / clip)
        length = torch.linalg.vector_norm(towards, dtype=torch.float64)
        product = torch.dot(free.double(), towards.double())
        pull = length
        if direction is not None:
            pull = torch.dot(self._free(expected).double(), towards.double()) / length.clamp_min(_SHORTEST)
        squares = contribution.squares + (float_on_cpu(planted.norms.square().sum()) if self._turned else 0.0)
        sampled = (phase.sampler.direction_variance * squares + rate**2 * contribution.within) / clip**2
        self.transfers.add(self._keep_along, product, length, pull, spaced(free, self._width), sampled, *hides, sigma)

    def _keep_squares(self, residual: Array, error: Array | float, hidden: Array | float, sigma: float) -> None:
        """Add sums over all parameters if rounding allows it; error, hidden: actual and predicted rounding bound."""
        if not float(hidden) <= MAX_ROUNDING * sqrt(self._model.size) * sigma:
            return
        exact = residual.astype(np.float64)
        self.pairs.add(exact, float(error), sigma)
        with np.errstate(over="ignore", invalid="ignore"):  # the model may have diverged
            lengths = np.sqrt(np.add.reduceat(exact * exact, self._starts))
            layer_squares = np.square((lengths + float(error)) / sigma)
            largest = np.abs(exact, out=exact)
            largest += float(error)
            largest *= largest
            largest *= 1.0 / sigma**2
            self.coordinates += largest
            self.layers += layer_squares
        self.seen += 1

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
        """``product``: with a vector of norm ``length``, along which the update has norm ``pull``."""
        if not float(hidden) <= sigma:
            self.hidden += 1
            return
        drift = float(product) / float(length) if length > 0.0 else 0.0
        self.along.append((drift, float(pull), float(error)))
        self.variances.append((sigma**2, sigma**2 + float(sampled)))
        self.rows.append(row)

    def _free(self, vector: Tensor) -> Tensor:
        """Project a vector (P,) onto the complement of all directions, in O(P)."""
        if self._directions is None:
            return vector
        coordinates, values = self._supports
        along = self._directions.project(vector)[:, None] * values
        return vector.index_add(0, coordinates.flatten(), -along.flatten().to(vector))


def replace_non_finite(values: Array) -> Array:
    finite: Array = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=1e70, neginf=-1e70)
    return finite


def residual_sums(log: ResidualLog) -> evidence.ResidualSums:
    everywhere, directions = None, None
    if log.seen:
        layers = zip(log.parts, log.layers, strict=True)
        everywhere = evidence.Everywhere(
            layers={name: evidence.PartSum(number(float(total)), size * log.seen) for (name, size), total in layers},
            coordinates=LeastCoordinate(least=number(float(log.coordinates.min())), count=len(log.coordinates)),
        )
    if log.rows:
        variances, along = np.array(log.variances), np.array(log.along)
        rounding = np.nan_to_num(along[:, 2], nan=HUGE, posinf=HUGE)
        rows = replace_non_finite(np.stack(log.rows))
        lengths = np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
        sums, _ = noise_tests.products(rows, rows / lengths[:, None])
        lag = noise_tests.worst_lag(sums)
        noise = np.sqrt(variances[:, 0])
        earlier = slice(0, len(rows) - lag)
        again = noise[lag:] * noise[earlier] * rows.shape[1] / lengths[earlier]
        directions = evidence.Directions(
            rounding=number(float(rounding.sum())),
            least=float(variances[:, 0].sum()),
            variance=number(float(variances[:, 1].sum())),
            drift=Drift(total=number(float(along[:, 0].sum())), unit=number(max(0.0, float(along[:, 1].sum())))),
            lag=evidence.LagSum(lag=lag, total=number(float(sums[lag])), unit=float(again.sum())),
        )
    return evidence.ResidualSums(
        steps=len(log.rows),
        hidden=log.hidden,
        seen=log.seen,
        everywhere=everywhere,
        directions=directions,
        shared=log.pairs.worst() if log.seen == log.pairs.steps else None,
    )


class LayerProducts(Remembering):
    """Sums over steps for every pair of the largest layers, over the first coordinates of each.

    ``sums`` (pairs, 4) float64, in units of the declared noise: inner products, their rounding bounds, and the squared
    norms of both layers, including rounding.
    """

    kept = ("sums", "steps")

    def __init__(self, layer_sizes: Sequence[tuple[str, int]], planned: int) -> None:
        starts = np.cumsum([0, *(size for _, size in layer_sizes)]).tolist()
        largest = sorted(range(len(layer_sizes)), key=lambda index: -layer_sizes[index][1])[: noise_tests.MOST_LAYERS]
        self._planned = planned
        self._pairs = [
            (layer_sizes[i][0], layer_sizes[j][0], starts[i], starts[j], min(layer_sizes[i][1], layer_sizes[j][1]))
            for i, j in combinations(sorted(largest), 2)
        ]
        self.sums: Array = np.zeros((len(self._pairs), 4))
        self.steps = 0

    def add(self, residual: Array, error: float, sigma: float) -> None:
        """Add a step's residual (P,), float64, with its rounding bound and the noise's standard deviation."""
        self.steps += 1
        slack = error / sigma
        with np.errstate(over="ignore", invalid="ignore"):  # a model that has just diverged
            scaled = residual / sigma
            for row, (_, _, i, j, size) in zip(self.sums, self._pairs, strict=True):
                first_layer, second_layer = scaled[i : i + size], scaled[j : j + size]
                first, second = float(np.sqrt(first_layer @ first_layer)), float(np.sqrt(second_layer @ second_layer))
                product, rounding = float(first_layer @ second_layer), slack * (first + second + slack)
                row += product, rounding, (first + slack) ** 2, (second + slack) ** 2

    def worst(self) -> SharedLayers | None:
        if not self._pairs or not self.steps:
            return None
        pair_sums = []
        for row, (first_name, second_name, _, _, size) in zip(self.sums, self._pairs, strict=True):
            product, rounding, first, second = row.tolist() if np.isfinite(row).all() else (0.0, 0.0, HUGE, HUGE)
            sums = SharedLayers(
                squares={first_name: first, second_name: second},
                product=product,
                rounding=rounding,
                count=self.steps * size,
                planned=max(self.steps, self._planned) * size,
                pairs=len(self._pairs),
            )
            pair_sums.append(sums)
        return max(pair_sums, key=SharedLayers.surprise)
