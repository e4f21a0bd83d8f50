"""The mean rule at three models of a run: clipped gradients of all records, and one matrix product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

import dpspec.contract as dps
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.native import tensors
from dpspec_per_instance.options import MeanRule
from dpspec_per_instance.printed import mean_rule
from dpspec_per_instance.printed.mean_rule import Array
from dpspec_per_instance.trials import RunSetup


class _Snapshots(dps.Observer):
    def __init__(self, total: int) -> None:
        self.steps = (0, (total - 1) // 2, total - 1)
        self.states: dict[int, Tensor] = {}

    def released(self, step: int, state: Tensor) -> None:
        if step in self.steps:
            self.states[step] = state.clone()


def estimate_mean_rule(setup: RunSetup, rule: MeanRule) -> dict[str, Array]:
    """Estimate the mean rule at the first, the middle and the last observed model of a separate run.

    Returns:
        ``mean_rule``: estimates, shape (stages, batches, orders, kinds, points), for means under removal, means under
        addition, and sums. ``mean_rule_sizes``: effective numbers of tuples. Per expected batch size, the change of
        means of typical sizes by each record in clip norms, shape (stages, sizes, draws, points). The records' clipped
        norms, shape (stages, points).
    """
    job = setup.job(0, "mean rule", progress="training for the mean rule")
    phases = dps.Phase.all_of(setup.inputs["mechanism"])
    total = sum(phase.steps for phase in phases)
    keeper = _Snapshots(total)
    setup.train([replace(job, observers=(keeper,))])
    model = FlatModel(job.model, device=job.device)
    ends = np.cumsum([phase.steps for phase in phases])
    count, points = min(rule.points, len(setup.audited.points)), setup.audited.points
    inside = np.array(points[:count]) if setup.audited.population == "train" else None
    shape = (len(mean_rule.STAGES), len(rule.batches), len(rule.orders), 3, count)
    values, sizes = np.zeros(shape), np.zeros(shape)
    by_batch: list[list[Array]] = [[] for _ in rule.batches]
    norms = []
    x, y = setup.points
    for stage, step in enumerate(keeper.steps):
        state = keeper.states[step]
        phase = phases[int(np.searchsorted(ends, step, side="right"))]
        clip = phase.clip_norm
        gradients = _clipped(model, state, job.x, job.y, clip)
        own = gradients[inside] if inside is not None else _clipped(model, state, x[:count], y[:count], clip)
        norms.append(np.linalg.norm(own, axis=1) / clip)
        others = len(job.x) - (inside is not None)
        for b, batch in enumerate(rule.batches):
            rng = np.random.default_rng(setup.context.seed(0, "mean rule", str(stage), str(batch)))
            typical = mean_rule.typical_sizes(others, float(batch) / len(job.x))
            by_batch[b].append(mean_rule.mean_changes(rng, gradients, own, inside, typical, rule.outer) / clip)
            for o, order in enumerate(rule.orders):
                rng = np.random.default_rng(setup.context.seed(0, "mean rule", str(stage), str(batch), str(order)))
                rate, counts = float(batch) / len(job.x), (rule.outer, rule.inner, int(order))
                batches = mean_rule.draw(rng, len(job.x), rate, *counts)
                coins = mean_rule.draw(rng, count, rate, *counts) if inside is None else None
                sigma = phase.deviation
                kinds = mean_rule.estimate_kinds(gradients, own, inside, batches, coins, sigma)
                for kind, estimate in enumerate(kinds):
                    values[stage, b, o, kind], sizes[stage, b, o, kind] = estimate.value, estimate.inner_size
    changes: dict[str, Array] = {
        f"mean_changes_{b}": np.stack(stages).astype(np.float32) for b, stages in enumerate(by_batch)
    }
    return {"mean_rule": values, "mean_rule_sizes": sizes, "mean_norms": np.stack(norms), **changes}


def _clipped(model: FlatModel, state: Tensor, x: Array, y: Array, clip: float) -> Array:
    """Clipped gradients, float32, shape (n, P)."""
    parts = []
    for part_x, part_y in zip(*(torch.split(t, 1024) for t in tensors(x, y, model.device)), strict=True):
        rows = model.rows(state, part_x, part_y)
        parts.append((rows * (clip / rows.norm(dim=1, keepdim=True).clamp(min=clip))).cpu())
    clipped: Array = torch.cat(parts).numpy()
    return clipped
