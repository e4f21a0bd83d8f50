"""What gradient canaries of one size and coin share within a step: see ``stats.independence.step_luck``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpspec.stats.conformance.evidence.measured import GroupLuck
from dpspec.stats.independence import step_luck
from dpspec.training.measure.observers import ProjectionObserver
from dpspec.training.measure.update_statistics import number

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
