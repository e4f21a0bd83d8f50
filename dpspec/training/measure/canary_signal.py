"""Projections on the directions of gradient canaries: moments per group size and inclusion bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.providers import TrainingJob
from dpspec.stats.attacks.independence import CANARIES_OF_STEPS, dependence_of_steps, moments
from dpspec.stats.conformance.canary_contributions import GroupSums, PlantedSums, StepDependence, StepTotals
from dpspec.stats.conformance.evidence import number
from dpspec.training.gradients.clipping import Flat, clipper
from dpspec.training.loop.dpsgd import Schedule
from dpspec.training.loop.samplers import inclusion_moments
from dpspec.training.measure.observers import ProjectionObserver
from dpspec.training.measure.update_statistics import replace_non_finite

Array: TypeAlias = np.ndarray[Any, Any]


def canary_sums(watcher: ProjectionObserver, job: TrainingJob, sizes: Array, coins: Array) -> PlantedSums | None:
    """Moments of projections on the canaries' directions, for groups of ``sizes`` with inclusion bits ``coins`` (m,).

    ``draws`` is the mean number of measured batches that include a canary, times its gradient's component along its
    direction. ``outside`` assumes that real records deviate equally in all directions.
    """
    schedule = Schedule.of(job.phases, len(job.x) + (0 if job.canaries is None else job.canaries.count))
    flat = all(isinstance(clipper(phase.clip), Flat) for phase in schedule.phases)
    if not flat or job.canaries is None or job.canaries.count == 0:
        return None
    row = job.canaries.gradients(torch.tensor([0]))[0]
    along = float(watcher.directions.project(row).max() / row.norm())
    measured = watcher.looked & watcher.resolvable
    sums = watcher.projections[measured].double().sum(0).numpy()
    sums_of_groups: list[GroupSums] = []
    for size in np.unique(sizes):
        for coin in (0, 1):
            some = replace_non_finite(sums[(sizes == size) & (coins == coin)])
            sums_of_groups.append(GroupSums(int(size), coin, len(some), float(some.sum()), float((some**2).sum())))
    looked = [phase for phase, seen in zip(schedule, measured.tolist(), strict=True) if seen]
    ends = np.cumsum([phase.steps for phase in schedule.phases])[:-1]
    parts = zip(schedule.phases, np.split(measured.numpy(), ends), strict=True)
    means, variances = zip(*(inclusion_moments(phase.sampler, part) for phase, part in parts), strict=True)
    noise = sum(phase.noise_multiplier**2 for phase in looked)
    return PlantedSums(
        draws=along * float(np.concatenate(means).sum()),
        moments=tuple(sums_of_groups),
        outside=number(noise + float(watcher.spread[measured].sum()) / watcher.directions.parameters),
        inclusion=along**2 * float(np.concatenate(variances).sum()),
        rounding=number(float(watcher.rounding[measured].sum())),
        hidden=int((watcher.looked & ~watcher.resolvable).sum()),
        luck=tuple(_step_effects(watcher, measured, sizes, coins)),
        by_step=_step_totals(watcher, measured, sizes, coins, along),
    )


def _step_effects(
    watcher: ProjectionObserver, measured: Tensor, sizes: Array, coins: Array
) -> Iterator[StepDependence]:
    schedule = watcher.schedule
    noisy = np.array([phase.noise_multiplier > 0.0 for phase in schedule], dtype=bool)
    at = np.flatnonzero(measured.numpy() & noisy)
    numbers = np.repeat(np.arange(len(schedule.phases)), [phase.steps for phase in schedule.phases])[at]
    sampled = watcher.spread.numpy()[at] / watcher.directions.parameters
    for size in np.unique(sizes):
        for coin in (0, 1):
            which = torch.from_numpy(np.flatnonzero((sizes == size) & (coins == coin)))
            if len(which) < CANARIES_OF_STEPS:
                continue
            rows = (watcher.projections[step].index_select(0, which).double().numpy() for step in at)
            found = dependence_of_steps(len(which), [moments(row) for row in rows], sampled, numbers)
            if found is not None:
                degrees, means, spreads = found
                yield StepDependence(int(size), coin, len(which), degrees, number(means), number(spreads))


def _step_totals(
    watcher: ProjectionObserver, measured: Tensor, sizes: Array, coins: Array, along: float
) -> StepTotals | None:
    """Covariance over the ``measured`` (steps,) steps, if real records are drawn at random after the first step.

    A drawn canary contributes ``along`` clip norms along its direction.
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
