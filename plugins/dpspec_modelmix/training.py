"""Training with ModelMix (``docs/explanation/proofs/modelmix.md``), and DP-SGD runs without mixing for comparison.

The core clippers scale by l2 norms without materialized gradients; the clippers here, which the adversary shares, need
gradients as rows (b, P).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

import dpspec.contract as dps
from dpspec import kit
from dpspec.training.device import SyncedAttribute, TransferQueue, full_precision, generator, send
from dpspec.training.gradients.flat_model import Layout
from dpspec.training.gradients.persample import Clip, ClippedSum, FlatModel, clip_factors, clipper, no_norms
from dpspec.training.loop import native
from dpspec.training.loop.checkpoint import Remembering
from dpspec.training.measure.scores import right_answers
from dpspec.training.providers import rates_of
from dpspec_modelmix.options import (
    Embedding,
    Mixing,
    PhaseOptions,
    Twins,
    mixed_norm,
    segments_of,
    unmet_in,
)
from dpspec_modelmix.theory import equal_epsilon_noise

Array: TypeAlias = np.ndarray[Any, Any]

#: Factor below 1 that absorbs the rounding of float32 sums of products.
_BELOW = 1.0 - 2.0**-18

#: Number of materialized canaries per chunk.
CANARY_CHUNK = 256


class Absolute:
    """g * min(1, clip_norm / ||g||_1), at any model."""

    def prepare(self, state: Tensor) -> None:
        pass

    def __call__(self, rows: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
        """Return the clipped rows (b, P) and their norms (b,), float64. Rows that are not finite become 0."""
        finite = rows.isfinite().all(1)[:, None]
        return _scaled(torch.where(finite, rows, 0.0), clipper(clip).clip_norm, ord=1)


class TwoParts:
    """Clips the component e of a gradient in the subspace ``basis`` (P, k) and the residual r to separate norms.

    With the isotropic floor, coordinates of e + r are truncated, whose norm is at most sqrt(clip_norm_e^2 +
    clip_norm_r^2); otherwise coordinates of r.
    """

    basis: Tensor

    def __init__(
        self, rule: Embedding, parameters: int, anchors: tuple[FlatModel, Tensor, Tensor] | None, seed: int, device: str
    ) -> None:
        self.rule = rule
        self._anchors = anchors
        if anchors is None:
            drawn = torch.randn(parameters, rule.dimension, generator=generator(seed, "subspace"), dtype=torch.float64)
            self.basis = torch.linalg.qr(drawn).Q.float().to(device)

    def prepare(self, state: Tensor) -> None:
        """Set the subspace at ``state``: the leading right singular vectors of the anchors' gradients."""
        if self._anchors is not None:
            model, x, y = self._anchors
            rows = model.rows(state, x, y).double()
            # A diverged run has no finite gradients; any subspace is valid.
            decomposed = torch.linalg.svd(rows.nan_to_num(0.0, 0.0, 0.0), full_matrices=False)
            self.basis = decomposed.Vh[: self.rule.dimension].T.to(state)

    def __call__(self, rows: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
        """As :class:`Absolute`. A row's norm is the larger of both parts' norms relative to their bounds."""
        residual_clip, rule = clipper(clip), self.rule
        within = rows @ self.basis
        residual = rows - within @ self.basis.T
        finite = (residual.isfinite().all(1) & within.isfinite().all(1))[:, None]
        residual, r = _scaled(torch.where(finite, residual, 0.0), residual_clip.clip_norm)
        within, e = _scaled(torch.where(finite, within, 0.0), rule.clip_norm)
        bound = residual_clip.coordinate_bound * _BELOW
        if rule.floor:
            joint, _ = _scaled(
                residual + within @ self.basis.T, (residual_clip.clip_norm**2 + rule.clip_norm**2) ** 0.5
            )
            clipped = joint.clamp(-bound, bound)
        else:
            clipped = residual.clamp(-bound, bound) + within @ self.basis.T
        return clipped, torch.maximum(r, e / rule.clip_norm * residual_clip.clip_norm)


#: Clipping of gradient rows at the model given to ``prepare``.
RowClip: TypeAlias = Absolute | TwoParts


def _scaled(rows: Tensor, bound: float, ord: int = 2) -> tuple[Tensor, Tensor]:
    """Scale rows to an l1 or l2 norm of at most ``bound``; also return the norms (b,), float64."""
    norms = torch.linalg.vector_norm(rows, ord=ord, dim=1, dtype=torch.float64)
    factors = clip_factors(norms, bound)
    return rows * (factors * _BELOW)[:, None], norms * factors


class WrittenOut(Remembering):
    """The part ``contributions`` of the loop, with rows clipped by ``clipping``.

    Adds noise of standard deviation ``deviation`` in the subspace of :class:`TwoParts` from a separate generator. The
    loop's noise covers all directions.
    """

    kept = ("_source",)

    def __init__(
        self,
        model: FlatModel,
        x: Tensor,
        y: Tensor,
        clipping: RowClip,
        canaries: dps.GradientCanaries | None = None,
        *,
        seed: int = 0,
        deviation: float = 0.0,
    ) -> None:
        self._model, self._x, self._y, self._clipping = model, x, y, clipping
        self._canaries = canaries
        self._deviation, self._source = deviation, generator(seed, "embedded noise", x.device)

    def __call__(self, state: Tensor, indices: Tensor, clip: Clip) -> ClippedSum:
        """The clipped sum of ``indices`` (b,), ascending and on the CPU, plus the noise in the subspace."""
        clipped = self.clipped(state, indices, clip)
        if self._deviation > 0.0 and isinstance(self._clipping, TwoParts):
            drawn = torch.randn(self._clipping.basis.shape[1], generator=self._source, device=state.device)
            return replace(clipped, sum=clipped.sum + self._clipping.basis @ (drawn * self._deviation))
        return clipped

    def clipped(self, state: Tensor, indices: Tensor, clip: Clip) -> ClippedSum:
        total, norms = torch.zeros_like(state), [no_norms(state.device)]
        with full_precision(state.device):
            self._clipping.prepare(state)
            for rows in self._rows(state, indices):
                clipped, lengths = self._clipping(rows, clip)
                total += clipped.sum(0)
                norms.append(lengths)
        return ClippedSum(total, torch.cat(norms))

    def _rows(self, state: Tensor, indices: Tensor) -> Iterator[Tensor]:
        real = int(torch.searchsorted(indices, len(self._x)))
        chosen = send(indices[:real], self._x.device)
        yield from self._model.gradients(state, self._x[chosen], self._y[chosen])
        if self._canaries is not None and real < len(indices):
            for chunk in torch.split(send(indices[real:] - len(self._x), state.device), CANARY_CHUNK):
                yield self._canaries.gradients(chunk).to(state)


def make_row_clip(job: dps.TrainingJob, context: dps.Context, index: int) -> RowClip | None:
    if dps.Phase.of(job.phases[0]).noise == "laplace":
        return Absolute()
    embedding = PhaseOptions.of(job.phases[0]).embedding
    if embedding is None:
        return None
    anchors = None
    if embedding.anchors:
        public = context.data.test_x[: embedding.anchors], context.data.test_y[: embedding.anchors]
        anchors = FlatModel.of(job), *native.tensors(*public, job.device)
    size = Layout.of(job.model).size
    return TwoParts(embedding, size, anchors, context.seed(index, "subspace"), job.device)


#: Relative margin of enforced gaps that absorbs float64 rounding.
_ROOM = 1e-9


class Ends(NamedTuple):
    """Endpoints of the mixing, (P,) float64 each; ``enforced`` (P,) marks coordinates whose gap was enforced."""

    first: Tensor
    second: Tensor
    enforced: Tensor

    @property
    def gap(self) -> Tensor:
        return (self.first - self.second).abs()


@dataclass(frozen=True)
class Rules:
    """Learning rate eta and threshold tau of each step; ``mixed`` is a mask of coordinates (P,), None for all."""

    mixing: Mixing
    rates: Sequence[float]
    thresholds: Sequence[float]
    divisor: float
    decay: float
    mixed: Tensor | None

    def ends(self, step: int, current: Tensor, unreleased: Tensor) -> Ends:
        """The released model and the kept one, (P,) float64 each, with a gap of at least the threshold."""
        threshold, difference = self.thresholds[step - 1], current - unreleased
        sign = torch.sign(difference)
        if not self.mixing.zero_ties:
            sign = torch.where(difference == 0, torch.ones_like(sign), sign)
        small = difference.abs() < threshold
        if self.mixed is not None:
            small = small & self.mixed
        half = 0.5 * threshold * (1.0 + _ROOM) * sign
        middle = 0.5 * (current + unreleased)
        first, second = (current, unreleased) if self.mixing.literal else (middle, middle)
        first, second = torch.where(small, first + half, current), torch.where(small, second - half, unreleased)
        if self.mixed is not None:
            second = torch.where(self.mixed, second, current)
        return Ends(first, second, small)


class MixingUpdate(Remembering):
    """The part ``update`` of the loop. A separate generator draws the weights, which are never released.

    Attributes:
        gaps: Minimum gap / tau per step; NaN if tau is 0.
    """

    kept = ("_step", "_kept", "_source", "gaps")
    gaps: SyncedAttribute[list[float]] = SyncedAttribute()

    def __init__(self, rules: Rules, seed: int, device: str | torch.device) -> None:
        self._rules = rules
        self._step = 0
        self._kept: Tensor | None = None
        self._source = generator(seed, "mixing", device)
        # Indices instead of a mask: indexing by a mask synchronizes with the GPU.
        self._mixed = None if rules.mixed is None else rules.mixed.nonzero().squeeze(1)
        self.transfers = TransferQueue()
        self.gaps = []

    def __call__(self, state: Tensor, noisy: Tensor) -> Tensor:
        self._step += 1
        rules, current = self._rules, state.double()
        ends = rules.ends(self._step, current, current if self._kept is None else self._kept.to(current))
        shape = (1,) if rules.mixing.shared else current.shape
        weights = torch.rand(shape, generator=self._source, device=current.device, dtype=torch.float64)
        descent = rules.rates[self._step - 1] / rules.divisor * (noisy.double() + rules.decay * rules.divisor * current)
        self._kept = ends.first
        gap = ends.gap if self._mixed is None else ends.gap[self._mixed]
        self.transfers.add(self._keep, gap.min(), rules.thresholds[self._step - 1] or float("nan"))
        return (weights * ends.first + (1.0 - weights) * ends.second - descent).to(state.dtype)

    def _keep(self, least: Array, tau: float) -> None:
        self.gaps.append(float(least) / tau)


def make_job(inputs: dps.FrozenMap, context: dps.Context, index: int, purpose: str) -> dps.TrainingJob:
    phases = _phases(inputs)
    options = dps.FrozenMap(
        {**inputs["training"], "reduction": "mean" if PhaseOptions.of(phases[0]).by_mean else "sum"}
    )
    return kit.training_job(inputs, context, index, purpose, phases=phases, options=options, progress=purpose)


def train(job: dps.TrainingJob, clipping: RowClip | None, rules: Rules | None) -> Array:
    """Train with ModelMix, or with plain DP-SGD without ``rules``; return the gaps of :class:`MixingUpdate`."""
    loop_parts = native.parts_of(job)
    if clipping is not None:
        embedding = PhaseOptions.of(job.phases[0]).embedding
        contributions = WrittenOut(
            FlatModel.of(job),
            *native.tensors(job.x, job.y, job.device),
            clipping,
            job.canaries,
            seed=job.seed,
            deviation=0.0 if embedding is None else embedding.deviation,
        )
        loop_parts = replace(loop_parts, contributions=contributions)
    if rules is None:
        native.train_with(job, loop_parts)
        return np.zeros(0)
    update = MixingUpdate(rules, job.seed, job.device)
    native.train_with(job, replace(loop_parts, update=update))
    return np.array(update.gaps, dtype=np.float64)


def twin_accuracies(
    inputs: dps.FrozenMap, context: dps.Context, index: int, twins: Twins
) -> tuple[dict[str, dps.Json], dict[str, dps.Json]]:
    """Train without canaries: ModelMix, DP-SGD with the same noise, and DP-SGD with the same epsilon."""
    job = make_job(inputs, context, index, "modelmix twin")
    layout = Layout.of(job.model)
    phases = _phases(inputs)
    train(
        job,
        make_row_clip(job, context, index),
        rules_of(job.phases, job.options, job.expected_batch_size, layout, job.device),
    )
    counts: dict[str, dps.Json] = {"modelmix": right_answers(job.model, context.data, context.device)}
    factor, epsilon = 1.0, float("inf")
    segments = segments_of(phases, inputs["training"], context.facts)
    if segments is not None:
        amplified = not unmet_in(phases, inputs["training"])
        factor, epsilon = equal_epsilon_noise(segments, twins.delta, amplified=amplified)
    rate = twins.learning_rate
    if rate is None:
        rate = 2.0 / 3.0 * float(job.options["learning_rate"])
    about: dict[str, dps.Json] = {"epsilon": epsilon, "noise_factor": factor, "learning_rate": rate}
    for name, times in (("same-noise", 1.0), ("same-epsilon", factor)):
        plain = make_job(inputs, context, index, f"{name} twin")
        louder = []
        for phase in phases:
            changed: dict[str, Any] = {"noise_multiplier": times * phase.noise_multiplier}
            embedding = PhaseOptions.of(phase).embedding
            if embedding is not None:
                changed["embedding"] = {**phase["embedding"], "noise_multiplier": times * embedding.noise_multiplier}
            louder.append(phase.replace(**changed))
        plain = replace(plain, phases=tuple(louder), options=dps.FrozenMap({**plain.options, "learning_rate": rate}))
        train(plain, make_row_clip(plain, context, index), None)
        counts[name] = right_answers(plain.model, context.data, context.device)
    return counts, about


def rules_of(
    phases: Sequence[dps.FrozenMap], training: Mapping[str, Any], batch_size: float, layout: Layout, device: str
) -> Rules:
    schedule = rates_of(training, sum(int(phase["steps"]) for phase in phases))
    rates: list[float] = []
    thresholds: list[float] = []
    for phase in phases:
        mixing = PhaseOptions.of(phase).mixing
        for step in range(len(rates) + 1, len(rates) + int(phase["steps"]) + 1):
            rates.append(schedule(step))
            thresholds.append(mixing.threshold * (rates[-1] if mixing.relative else 1.0))
    rule, mixed = PhaseOptions.of(phases[0]).mixing, None
    if rule.unmixed:
        left, pieces = set(rule.unmixed), []
        for name, size in zip(layout.names, layout.sizes, strict=True):
            hits = {u for u in rule.unmixed if name == u or name.startswith(f"{u}.")}
            left -= hits
            pieces.append(torch.full((size,), not hits))
        if left:
            raise ValueError(f"unknown parameter {', '.join(sorted(left))}; the model has {', '.join(layout.names)}")
        mixed = torch.cat(pieces).to(device)
    return Rules(
        mixing=rule,
        rates=rates,
        thresholds=thresholds,
        divisor=batch_size if PhaseOptions.of(phases[0]).by_mean else 1.0,
        decay=float((training.get("optimizer") or {}).get("weight_decay") or 0.0),
        mixed=mixed,
    )


def _phases(inputs: dps.FrozenMap) -> tuple[dps.Phase, ...]:
    phases = []
    for phase in dps.Phase.all_of(inputs["mechanism"]):
        sparsity = PhaseOptions.of(phase).sparsity
        bound = {"scheme": "truncated", "coordinate_bound": mixed_norm(phase) / sparsity**0.5}
        phases.append(phase if sparsity == 1 else phase.replace(clipping=bound))
    return tuple(phases)
