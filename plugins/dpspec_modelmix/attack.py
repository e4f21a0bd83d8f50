"""One trial: train with ModelMix and inserted canaries, and score each (``docs/explanation/proofs/modelmix.md``)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

import dpspec.contract as dps
from dpspec.stats.conformance.evidence import joined
from dpspec.training.canaries import CanaryGroups, StoredDirections
from dpspec.training.device import generator
from dpspec.training.gradients.flat_model import Layout
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.checkpoint import Remembering
from dpspec.training.loop.contributions import population
from dpspec.training.loop.native import Schedule, ScheduledPhase
from dpspec.training.loop.native import tensors as rows_on
from dpspec.training.measure.run_evidence import WatchedRun
from dpspec_modelmix import training
from dpspec_modelmix.options import Attack, PhaseOptions, mixed_norm
from dpspec_modelmix.theory import NARROW
from dpspec_modelmix.training import RowClip, Rules, TwoParts, WrittenOut

#: Norm of a canary's gradient in clip norms. Clipping always applies to it.
CANARY_NORM = 10.0


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    return (_trial(inputs, context, index, Attack.of(inputs["audit"])) for index in indices)


def place_canaries(
    attack: Attack, sparsity: int, pool: Tensor, seed: int, device: str, *, parameters: int, norm: float
) -> StoredDirections:
    """Gradients ``norm`` * signs / sqrt(width) on disjoint coordinates of ``pool`` (n,), before clipping.

    One-hot canaries have as few coordinates as the worst case, spread ones as many as fit.
    """
    width = sparsity if attack.kind == "one-hot" else len(pool) // attack.count
    if width < 1 or attack.count * width > len(pool):
        raise ValueError(f"{attack.count} canaries of {width} coordinates do not fit into {len(pool)}")
    source = generator(seed, "canaries")
    order = torch.randperm(len(pool), generator=source)[: attack.count * width]
    signs = torch.randint(0, 2, (attack.count, width), generator=source) * 2 - 1
    coordinates = pool.cpu()[order].view(attack.count, width).to(device)
    return StoredDirections(parameters, coordinates, norm / math.sqrt(width) * signs.to(device, torch.float32))


class Reader(Remembering, dps.Observer):
    """Scores canaries during training: log-likelihood ratios of inclusion, summed over steps, float64 (m,)."""

    kept = ("_current", "_kept", "scores", "steps")

    def __init__(
        self, job: dps.TrainingJob, rules: Rules, owned: StoredDirections, clipping: RowClip | None = None
    ) -> None:
        self._rules = rules
        self._owned, self._clipping = owned, clipping
        self._coordinates, values = owned.supports(torch.arange(owned.count))
        self._signs = values.sign()
        self._model = FlatModel.of(job)
        self._x, self._y = rows_on(job.x, job.y, job.device)
        self._phases = list(Schedule.of(job.phases, len(job.x)))
        self._current: Tensor | None = None
        self._kept: Tensor | None = None
        self.steps = 0
        self.scores = torch.zeros(owned.count, dtype=torch.float64, device=job.device)

    def released(self, step: int, state: Tensor) -> None:
        if step != (0 if self._current is None else self.steps + 1):
            raise ValueError(f"models must be released step by step: step {step} came after step {self.steps}")
        previous, self._current = self._current, state.double().clone()
        if previous is None:
            return
        previous = previous.to(state.device)
        self.steps = step
        rules, phase = self._rules, self._phases[step - 1]
        ends = rules.ends(step, previous, previous if self._kept is None else self._kept.to(previous))
        self._kept = ends.first
        if phase.deviation == 0.0:
            return
        scale = rules.divisor / rules.rates[step - 1]
        noisy = (0.5 * (ends.first + ends.second) - self._current) * scale - rules.decay * rules.divisor * previous
        model_row = previous.to(state.dtype)
        if self._clipping is None:
            total = population(self._model, model_row, self._x, self._y, phase.clip).sum
        else:  # this also prepares the clipping at the model
            everyone = torch.arange(len(self._x))
            total = (
                WrittenOut(self._model, self._x, self._y, self._clipping).clipped(model_row, everyone, phase.clip).sum
            )
        noise_row = noisy - phase.sampler.inclusion * total.double()
        gap = ends.gap * scale
        if rules.mixing.shared:
            line = ends.first - ends.second
            square = float(line.square().sum())
            noise_row = noise_row - line * (float(line @ noise_row) / square if square > 0.0 else 0.0)
            gap = torch.zeros_like(gap)
        # Outputs and widths of the uniform, (m, width) each, on the scale of the sum.
        noise_row, gap, unit = noise_row[self._coordinates], gap[self._coordinates], self._unit(phase)
        shift, signed = self._shift(phase) / unit, noise_row * self._signs / unit
        law = log_laplace_density if phase.noise == "laplace" else log_density
        ratio = (law(signed - shift, gap / unit) - law(signed, gap / unit)).sum(1)
        rate = phase.sampler.inclusion
        if rate < 1.0:
            ratio = torch.logaddexp(torch.full_like(ratio, math.log1p(-rate)), ratio + math.log(rate))
        self.scores += torch.nan_to_num(ratio, nan=0.0, posinf=1e6, neginf=-1e6)

    def _unit(self, phase: ScheduledPhase) -> Tensor:
        if phase.noise == "laplace":
            return self.scores.new_full((), phase.deviation / math.sqrt(2.0))
        if isinstance(self._clipping, TwoParts):
            within = self._clipping.basis.double().square().sum(1)[self._coordinates]
            return (phase.deviation**2 + self._clipping.rule.deviation**2 * within).sqrt()
        return self.scores.new_full((), phase.deviation)

    def _shift(self, phase: ScheduledPhase) -> Tensor:
        """Absolute contribution of a drawn canary to each of its coordinates, (m, width) or one number."""
        width = self._owned.block
        if isinstance(self._clipping, TwoParts):
            shifts = []
            for chunk in torch.split(torch.arange(self._owned.count), training.CANARY_CHUNK):
                rows, _ = self._clipping(self._owned.directions(chunk), phase.clip)
                shifts.append(rows.gather(1, self._coordinates[chunk]))
            return torch.cat(shifts).double() * self._signs
        return self.scores.new_full(
            (), phase.clip_norm / (width if isinstance(self._clipping, training.Absolute) else math.sqrt(width))
        )


def log_density(o: Tensor, width: Tensor) -> Tensor:
    """ln of the density of N(0, 1) + U of each ``width``, as :func:`dpspec_modelmix.theory.log_density`."""
    a, wide = o.abs(), width.clamp_min(NARROW)
    upper, lower = torch.special.log_ndtr(0.5 * wide - a), torch.special.log_ndtr(-0.5 * wide - a)
    mixed = upper + torch.log(-torch.expm1(lower - upper)) - wide.log()
    return torch.where(width < NARROW, -0.5 * o.square() - 0.5 * math.log(2.0 * math.pi), mixed)


def log_laplace_density(o: Tensor, width: Tensor) -> Tensor:
    """ln of the density of Laplace noise of scale 1 + U of each ``width``, around 0."""
    a, wide = o.abs(), width.clamp_min(NARROW)
    half = 0.5 * wide
    inside = torch.log(-torch.expm1(a - half) - torch.expm1(-a - half))
    outside = half - a + torch.log(-torch.expm1(-wide))
    mixed = torch.where(a < half, inside, outside) - (2.0 * wide).log()
    return torch.where(width < NARROW, -a - math.log(2.0), mixed)


def _trial(inputs: dps.FrozenMap, context: dps.Context, index: int, attack: Attack) -> dps.Trial:
    job = training.make_job(inputs, context, index, "training")
    layout = Layout.of(job.model)
    rules, size = training.rules_of(job.phases, job.options, job.expected_batch_size, layout, job.device), layout.size
    pool = torch.arange(size) if rules.mixed is None else (~rules.mixed).nonzero().squeeze(1)
    sparsity = max(PhaseOptions.of(phase).sparsity for phase in job.phases)
    norm = CANARY_NORM * max(mixed_norm(dps.Phase.of(phase)) for phase in job.phases)
    seed = context.seed(index, "directions")
    owned = place_canaries(attack, sparsity, pool, seed, context.device, parameters=size, norm=norm)
    coins = np.random.default_rng(context.seed(index, "coins")).integers(0, 2, size=attack.count, dtype=np.int64)
    reader = Reader(job, rules, owned, training.make_row_clip(job, context, index))
    job = replace(job, canaries=CanaryGroups(owned, torch.from_numpy(np.flatnonzero(coins)), 1.0))
    watched = WatchedRun(job)
    job = replace(job, observers=(reader, *watched.observers))
    least = training.train(job, training.make_row_clip(job, context, index), rules)
    scores = reader.scores.cpu().numpy()
    order = np.argsort(scores, kind="stable")
    internal: dict[str, dps.Json] = {
        "gap": {"least": float(least.min()) if np.isfinite(least).all() else None, "below": int((least < 1.0).sum())}
    }
    evidence: dict[str, dps.Json] = {"outcome": "".join(map(str, coins[order]))}
    if attack.twins is not None:
        internal["accuracy"], evidence["twins"] = training.twin_accuracies(inputs, context, index, attack.twins)
    evidence["internal"] = internal
    evidence = joined(evidence, watched.evidence())
    return dps.Trial(
        index=index, evidence=dps.FrozenMap(evidence), arrays={"scores": scores, "coins": coins.astype(np.int8)}
    )
