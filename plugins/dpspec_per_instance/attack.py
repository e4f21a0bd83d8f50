"""Attacks on single records: in each of many runs the record is there by a fair coin, and nothing else differs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

import dpspec.contract as dps
from dpspec_per_instance.options import Attack

if TYPE_CHECKING:
    from dpspec_per_instance.runs import Bench

#: Each score is told by how many of these edges it reaches: natural logarithms of likelihood ratios.
EDGES = tuple(number / 64 for number in range(-1024, 1025))

#: At most so many runs of one record are trained together.
_TOGETHER = 64


def targets(bench: Bench, asked: Attack) -> tuple[tuple[str, int], ...]:
    """Which records are attacked: a name that says why, and the place among the audited ones.

    The most and the least exposed are those of a pilot run that serves nothing else: no coin is seen when they are
    chosen.
    """
    from dpspec_per_instance.runs import train

    found = [(f"record {record}", bench.audited.points.index(record)) for record in asked.records]
    if asked.most or asked.least:
        job, watcher = bench.watched(bench.job(0, "pilot"), slice(0, len(bench.audited.points)))
        train(bench.context, [bench.told(job, "pilot run")])
        ranked = np.argsort(np.square(watcher.ratios.astype(np.float64)).mean(axis=0), kind="stable")
        found += [(f"most exposed {i + 1}", int(place)) for i, place in enumerate(ranked[::-1][: asked.most])]
        found += [(f"least exposed {i + 1}", int(place)) for i, place in enumerate(ranked[: asked.least])]
    return tuple(found)


def outcomes(bench: Bench, asked: Attack, chosen: Sequence[tuple[str, int]], index: int) -> list[dps.Json]:
    """One trial's attacks: [name, [[coin, how many edges the score reaches], ...]] for every target.

    The scores themselves are not kept: together with the published seed they would speak of the rows.
    """
    from dpspec.training.native import tensors
    from dpspec_per_instance.record_attack import RecordAttack, Target
    from dpspec_per_instance.runs import train

    found: list[dps.Json] = []
    for number, (name, place) in enumerate(chosen):
        present, absent = bench.neighbour(place)
        others = tensors(*absent, bench.context.device)
        x, y = bench.points
        record = tensors(x[place : place + 1], y[place : place + 1], bench.context.device)
        label = f"target {number}"
        coins = np.random.default_rng(bench.context.seed(index, label, "coins")).integers(0, 2, size=asked.runs)
        scores: list[float] = []
        for start in range(0, asked.runs, _TOGETHER):
            jobs, watchers = [], []
            target = Target(bench.job(index, label).model, others, record)
            for run in range(start, min(asked.runs, start + _TOGETHER)):
                job = bench.job(index, label, str(run), rows=present if coins[run] else absent)
                watchers.append(RecordAttack(job, target, asked.looks))
                jobs.append(replace(job, observers=(watchers[-1],)))
            jobs[0] = bench.told(jobs[0], f"attacking the {name} record" if "exposed" in name else f"attacking {name}")
            train(bench.context, jobs)
            scores += [watcher.score for watcher in watchers]
        told = [[int(coin), bisect_right(EDGES, score)] for coin, score in zip(coins, scores, strict=True)]
        found.append([name, told])
    return found
