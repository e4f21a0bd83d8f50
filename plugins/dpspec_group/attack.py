"""One trial: train with planted groups, score every group by what is released, and train a twin without them.

Each of m groups enters the data as a whole, all its k members or none, by a fair coin. A group of gradient canaries has
a direction of its own in parameter space, a group of input canaries is k equal records. The adversary knows the data,
the canaries and what is released, but no coin, no batch and no noise. Where every iterate is released it subtracts the
update that the real records are expected to make and scores each group by the log-likelihood ratio of what is left,
summed over the steps; where only the final model is released, by how far the model moved along the direction, or by
what it makes of the records. How many records were planted follows from the coins, so that the adversary reckons with
half of all groups.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_group import theory
from dpspec_group.options import EDGES, Attack, attack_of
from dpspec_group.planting import Planted, observers, plant
from dpspec_group.scores import tame, tested

if TYPE_CHECKING:
    from dpspec.training.conformance import RunLogs

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run with its canaries in place, ready to be trained. logs: what the backend reports, where anybody reads it."""

    index: int
    sizes: Array
    coins: Array
    planted: Planted
    logs: RunLogs | None
    job: dps.TrainingJob


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """Train with canaries, and without; the evidence holds the outcome of the attack and what was measured.

    Of many runs those of one chunk are trained together, and the first of all alone has a twin without canaries.
    """
    from dpspec.training.batched import train_many
    from dpspec.training.populations import Populations

    attack = attack_of(inputs)
    if attack.method == "many-run":
        runs = [_prepared(attack, inputs, context, index) for index in indices]
        watchers = [run.planted.watcher for run in runs if run.planted.watcher is not None]
        if watchers:
            Populations(watchers, context.model.build(0))
        train_many(context.trainer, [run.job for run in runs])
        for run in runs:
            yield _concluded(attack, inputs, context, run)
        return
    for index in indices:
        run = _prepared(attack, inputs, context, index)
        context.trainer.train(run.job)
        yield _concluded(attack, inputs, context, run)


def _prepared(attack: Attack, inputs: dps.FrozenMap, context: dps.Context, index: int) -> _Run:
    from dpspec.training.conformance import RunLogs

    sizes = np.repeat(np.asarray(attack.sizes, dtype=np.int64), attack.share)
    coins = np.random.default_rng(context.seed(index, "coins")).integers(0, 2, size=len(sizes), dtype=np.int64)
    job = _job(inputs, context, index, "training", part=0, parts=2 if _has_twin(attack, index) else 1)
    job = replace(job, model=context.model.build(context.seed(index, "model")))
    planted = plant(attack, context, index, job, sizes, coins)
    # Of many runs the first two tell how the pipeline ran: what all of them kept would be too much to read.
    logs = RunLogs(planted.job) if attack.method == "one-run" or index < 2 else None
    if logs is not None and planted.watcher is not None:
        planted.watcher.keep_log(planted.job)
    watching = observers(planted, logs.observers if logs is not None else ())
    job = replace(planted.job, observers=watching)
    return _Run(index=index, sizes=sizes, coins=coins, planted=planted, logs=logs, job=job)


def _concluded(attack: Attack, inputs: dps.FrozenMap, context: dps.Context, run: _Run) -> dps.Trial:
    from dpspec.stats.conformance import joined
    from dpspec.training.conformance import RunLogs, evidence_of

    planted, twin_logs = run.planted, None
    scores = tame(planted.score())
    evidence: dict[str, dps.Json] = {
        "records": context.facts.records,
        "outcomes": _outcomes(attack, run.sizes, run.coins, scores),
    }
    if _has_twin(attack, run.index):
        twin = _job(inputs, context, run.index, "twin", part=1, parts=2)
        twin_logs = RunLogs(twin)
        evidence["internal"] = {"accuracy": _twin(replace(twin, observers=twin_logs.observers), context)}
    if run.logs is not None:
        ran = evidence_of(run.logs, twin_logs, planted.watcher, planted.job, run.sizes, run.coins)
        evidence = joined(evidence, ran)
    elif planted.watcher is not None:
        evidence["steps"] = planted.watcher.steps
    arrays: dict[str, Array] = {"scores": scores, "coins": run.coins.astype(np.int8), "group_sizes": run.sizes}
    return dps.Trial(index=run.index, evidence=dps.FrozenMap(evidence), arrays=arrays)


def _has_twin(attack: Attack, index: int) -> bool:
    return attack.method == "one-run" or index == 0


def _job(
    inputs: dps.FrozenMap, context: dps.Context, index: int, purpose: str, *, part: int, parts: int
) -> dps.TrainingJob:
    """The declared run without canaries, one of ``parts`` equal runs of the trial."""
    phases, records = dps.phases_of(inputs["mechanism"]), context.facts.records
    batch, seed = max(1.0, theory.sampling_rate(phases[0], records) * records), context.seed(index, purpose)

    def progress(done: int, total: int) -> None:
        context.progress(part * total + done, parts * total, "training", unit="steps", records=batch)

    return dps.TrainingJob(
        x=context.data.train_x,
        y=context.data.train_y,
        model=context.model.build(seed),
        phases=phases,
        options=inputs["training"],
        expected_batch_size=batch,
        device=context.device,
        seed=seed,
        progress=progress,
        cancelled=context.cancelled,
        resumable=context.resumable(index),
    )


def _twin(job: dps.TrainingJob, context: dps.Context) -> dict[str, dict[str, int]]:
    """How many records a model gets right that was trained the same way without canaries."""
    from dpspec.training.accuracy import right_answers

    context.trainer.train(job)
    return right_answers(job.model, context.data, context.device)


def _outcomes(attack: Attack, sizes: Array, coins: Array, scores: Array) -> list[list[dps.Json]]:
    """All that tests need: [group size, coins from the lowest score to the highest], or of many runs
    [group size, coin, how many edges of the grid the score reaches].

    The scores themselves stay in the store: together with the published seed they would speak of the rows. Equal
    scores are ordered by position, which knows nothing of the coins. Canaries that were fitted to are left out.
    """
    outcomes: list[list[dps.Json]] = []
    for size in attack.sizes:
        at = np.flatnonzero(sizes == size)
        if attack.method == "many-run":
            outcomes += [[size, int(coins[i]), bisect_right(EDGES, float(scores[i]))] for i in at]
            continue
        if attack.calibrated:
            at = at[tested(len(at))]
        ordered = coins[at][np.argsort(scores[at], kind="stable")]
        outcomes.append([size, "".join(map(str, ordered))])
    return outcomes
