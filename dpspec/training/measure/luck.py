"""What gradient canaries of one size and coin share within a step, and what all of them show from step to step.

See ``stats.independence.step_luck``, and ``stats.conformance.canary_contributions``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpspec.stats.conformance.evidence.measured import GroupLuck, StepTotals
from dpspec.stats.independence import step_luck
from dpspec.training.measure.observers import ProjectionObserver
from dpspec.training.measure.update_statistics import number, replace_non_finite

Array: TypeAlias = np.ndarray[Any, Any]


def luck_of_steps(watcher: ProjectionObserver, measured: Tensor, sizes: Array, coins: Array) -> Iterator[GroupLuck]:
    """For each size and coin with enough groups, from the steps that are ``measured`` (steps,) and declare noise.

    sizes, coins: (m,) of the groups.
    """
    schedule = watcher.schedule
    noisy = np.array([phase.noise_multiplier > 0.0 for phase in schedule], dtype=bool)
    at = np.flatnonzero(measured.numpy() & noisy)
    numbers = np.repeat(np.arange(len(schedule.phases)), [phase.steps for phase in schedule.phases])[at]
    sampled = watcher.spread.numpy()[at] / watcher.directions.parameters
    for size in np.unique(sizes):
        for coin in (0, 1):
            which = torch.from_numpy(np.flatnonzero((sizes == size) & (coins == coin)))
            if len(which) < step_luck.LEAST_CANARIES:
                continue
            rows = (watcher.projections[step].index_select(0, which).double().numpy() for step in at)
            found = step_luck.of_steps(len(which), [step_luck.moments(row) for row in rows], sampled, numbers)
            if found is not None:
                yield GroupLuck(int(size), coin, found.count, found.degrees, number(found.means), number(found.spreads))


def totals_by_step(
    watcher: ProjectionObserver, measured: Tensor, sizes: Array, coins: Array, along: float
) -> StepTotals | None:
    """How the totals of all sizes and coins vary over the steps that are ``measured`` (steps,).

    sizes, coins: (m,) of the groups. along: what one drawn planted record adds along its direction, in clip norms.
    None where no draw of real records is left to chance, or that of the first step alone: its gradients were there
    before anything was planted.
    """
    at = np.flatnonzero(measured.numpy())
    if not np.any(watcher.spread.numpy()[at[at > 0]] != 0.0):
        return None
    rates = np.array([phase.sampler.inclusion for phase in watcher.schedule])[at]
    totals = []
    for size in np.unique(sizes):
        for coin in (0, 1):
            which = np.flatnonzero((sizes == size) & (coins == coin))
            rows = (watcher.projections[step].double().numpy()[which] for step in at)
            seen = np.array([replace_non_finite(row).sum() for row in rows])
            totals.append(seen - coin * len(which) * size * along * rates)
    apart = np.stack(totals) - np.mean(totals, axis=1, keepdims=True)
    products = apart @ apart.T
    return StepTotals(
        steps=len(at),
        products=tuple(tuple(number(value) for value in row[: i + 1]) for i, row in enumerate(products.tolist())),
    )
