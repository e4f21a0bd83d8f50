"""The mean rule at three models along a run: every record's clipped gradient once, and one product of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.providers import Observer
from dpspec.training.persample import FlatModel
from dpspec_per_instance import mean_rule
from dpspec_per_instance.mean_rule import Array

if TYPE_CHECKING:
    from dpspec_per_instance.runs import Bench

#: The first model, one in the middle, and the one before the last step.
STAGES = ("initial", "middle", "final")


class _Snapshots(Observer):
    def __init__(self, total: int) -> None:
        self.steps = (0, (total - 1) // 2, total - 1)
        self.states: dict[int, Tensor] = {}

    def released(self, step: int, state: Tensor) -> None:
        if step in self.steps:
            self.states[step] = state.clone()


def estimate(bench: Bench, asked: Mapping[str, Any]) -> dict[str, Array]:
    """Estimates (stages, batches, orders, kinds, points), and how many tuples effectively made each.

    Also, for each of the batches, what records would change of means of typical sizes, (stages, sizes, draws, points)
    in clip norms, and the records' clipped norms, (stages, points).
    """
    from dpspec_per_instance.runs import train

    job = bench.job(0, "mean rule")
    total = sum(int(phase["steps"]) for phase in job.phases)
    keeper = _Snapshots(total)
    train(bench.context, [bench.told(replace(job, observers=(keeper,)), "training for the mean rule")])
    model = FlatModel(job.model, device=job.device)
    ends = np.cumsum([int(phase["steps"]) for phase in job.phases])
    count, points = min(int(asked["points"]), len(bench.audited.points)), bench.audited.points
    inside = np.array(points[:count]) if bench.audited.population == "train" else None
    shape = (len(STAGES), len(asked["batches"]), len(asked["orders"]), 3, count)
    values, sizes = np.zeros(shape), np.zeros(shape)
    moved: list[list[Array]] = [[] for _ in asked["batches"]]
    norms = []
    x, y = bench.points
    for stage, step in enumerate(keeper.steps):
        state = keeper.states[step]
        phase = job.phases[int(np.searchsorted(ends, step, side="right"))]
        clip = float(phase["clip_norm"])
        gradients = _clipped(model, state, job.x, job.y, clip)
        own = gradients[inside] if inside is not None else _clipped(model, state, x[:count], y[:count], clip)
        norms.append(np.linalg.norm(own, axis=1) / clip)
        others = len(job.x) - (inside is not None)
        for b, batch in enumerate(asked["batches"]):
            rng = np.random.default_rng(bench.context.seed(0, "mean rule", str(stage), str(batch)))
            typical = mean_rule.typical_sizes(others, float(batch) / len(job.x))
            moved[b].append(mean_rule.changes(rng, gradients, own, inside, typical, int(asked["outer"])) / clip)
            for o, order in enumerate(asked["orders"]):
                rng = np.random.default_rng(bench.context.seed(0, "mean rule", str(stage), str(batch), str(order)))
                rate, counts = float(batch) / len(job.x), (int(asked["outer"]), int(asked["inner"]), int(order))
                batches = mean_rule.draw(rng, len(job.x), rate, *counts)
                coins = mean_rule.draw(rng, count, rate, *counts) if inside is None else None
                sigma = float(phase["noise_multiplier"]) * clip
                found = mean_rule.estimates(gradients, own, inside, batches, coins, sigma)
                for kind, one in enumerate(found):
                    values[stage, b, o, kind], sizes[stage, b, o, kind] = one.value, one.inner_size
    changes: dict[str, Array] = {f"mean_changes_{b}": np.stack(one).astype(np.float32) for b, one in enumerate(moved)}
    return {"mean_rule": values, "mean_rule_sizes": sizes, "mean_norms": np.stack(norms), **changes}


def _clipped(model: FlatModel, state: Tensor, x: Array, y: Array, clip: float) -> Array:
    """Clipped gradients (n, P) float32."""
    from dpspec.training.native import tensors

    found = []
    for some_x, some_y in zip(*(torch.split(t, 1024) for t in tensors(x, y, model.device)), strict=True):
        rows = model.rows(state, some_x, some_y)
        found.append((rows * (clip / rows.norm(dim=1, keepdim=True).clamp(min=clip))).cpu())
    made: Array = torch.cat(found).numpy()
    return made
