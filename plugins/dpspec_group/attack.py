"""One trial: train with planted groups, score every group by what is released, and train a twin without them, which
tells how accurate the pipeline is and whether two runs add the same noise, unless ``audit.twin`` is false.

Each of m groups enters the data as a whole, all its k members or none, by a fair coin. A group of gradient canaries has
a direction of its own in parameter space, a group of input canaries is k equal records. The adversary knows the data,
the canaries and what is released, but no coin, no batch and no noise. Where every iterate is released it subtracts the
update that the real records are expected to make and scores each group by the log-likelihood ratio of what is left,
summed over the steps; where only the final model is released, by how far the model moved along the direction, or by
what it makes of the records. How many records were planted follows from the coins, so that the adversary reckons with
half of all groups.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.attacks import Observed, Records
from dpspec_group import scores
from dpspec_group.options import EDGES, Attack

if TYPE_CHECKING:
    import torch

    from dpspec.training.measure.population import Sample
    from dpspec.training.measure.residuals import Residuals
    from dpspec.training.measure.run_evidence import WatchedRun

#: Canary gradients are this many times the clip norm long, so that clipping is exercised and always bites.
CANARY_NORM = 10.0

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One run with its canaries in place.

    records: real and planted ones together. watcher: sees the released models; None where the backend shows none.
    score: called once the job is trained, (m,). last: observers that come after all others.
    """

    job: dps.TrainingJob
    records: int
    watcher: Residuals | None
    score: Callable[[], Array]
    last: tuple[dps.Observer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run with its canaries in place, ready to be trained."""

    index: int
    sizes: Array
    coins: Array
    planted: Planted
    watched: WatchedRun
    job: dps.TrainingJob


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """Train with canaries, and without; the evidence holds the outcome of the attack and what was measured.

    Of many runs those of one chunk are trained together, and the first of all alone has a twin without canaries.
    """
    from dpspec.training.gradients.contributions import reuse_last_sum
    from dpspec.training.loop.native import train_many
    from dpspec.training.measure.population import SharedPopulations

    attack = Attack.chosen(inputs, context)
    if attack.method == "many-run":
        runs = [_prepared(attack, inputs, context, index) for index in indices]
        watchers = [run.planted.watcher for run in runs if run.planted.watcher is not None]
        # Those of users are looked at in turn, and so are those of an adversary who is told who was drawn.
        if watchers and not attack.others_drawn and not kit.draws_users(runs[0].job.phases):
            SharedPopulations(watchers, context.model.build(0))
        train_many(context.trainer, [run.job for run in runs])
        for run in runs:
            yield _concluded(attack, inputs, context, run)
        return
    for index in indices:
        run = _prepared(attack, inputs, context, index)
        watcher = run.planted.watcher
        with nullcontext() if watcher is None else reuse_last_sum(watcher.model):
            context.trainer.train(run.job)
        yield _concluded(attack, inputs, context, run)


def _prepared(attack: Attack, inputs: dps.FrozenMap, context: dps.Context, index: int) -> _Run:
    from dpspec.training.measure.run_evidence import WatchedRun

    sizes = np.repeat(np.asarray(attack.sizes, dtype=np.int64), attack.share)
    coins = np.random.default_rng(context.seed(index, "coins")).integers(0, 2, size=len(sizes), dtype=np.int64)
    parts = 2 if _has_twin(attack, index) else 1
    job = kit.training_job(inputs, context, index, "training", progress="training", parts=parts)
    planted = plant(attack, context, index, job, sizes, coins)
    # Of many runs the first two tell how the pipeline ran: what all of them kept would be too much to read.
    watched = WatchedRun(planted.job, planted.watcher, logged=attack.method == "one-run" or index < 2)
    job = replace(planted.job, observers=(*watched.observers, *planted.last))
    return _Run(index=index, sizes=sizes, coins=coins, planted=planted, watched=watched, job=job)


def _concluded(attack: Attack, inputs: dps.FrozenMap, context: dps.Context, run: _Run) -> dps.Trial:
    from dpspec.stats.conformance.run_checks import joined
    from dpspec.training.measure.run_evidence import RunLogs

    planted, twin_logs = run.planted, None
    values = scores.replace_non_finite(planted.score())
    evidence: dict[str, dps.Json] = {
        "records": run.job.public_records,
        "outcomes": _outcomes(attack, run.sizes, run.coins, values),
    }
    if _has_twin(attack, run.index):
        seed = context.seed(run.index, "twin")
        twin = kit.training_job(
            inputs, context, run.index, "twin", model_seed=seed, progress="training", part=1, parts=2
        )
        twin_logs = RunLogs(twin)  # of which its noise alone is held against the run's
        evidence["internal"] = {"accuracy": kit.twin_accuracy(replace(twin, observers=(twin_logs.noise,)), context)}
    ran = run.watched.evidence(twin_logs, run.sizes, run.coins)
    if run.index == 0 and "iterates" in context.facts.capabilities:
        ran = joined(ran, _replayed(inputs, context))
    evidence = evidence | ran if run.watched.logs is None else joined(evidence, ran)
    arrays: dict[str, Array] = {"scores": values, "coins": run.coins.astype(np.int8), "group_sizes": run.sizes}
    return dps.Trial(index=run.index, evidence=dps.FrozenMap(evidence), arrays=arrays)


def _replayed(inputs: dps.FrozenMap, context: dps.Context) -> dict[str, dps.Json]:
    """What the first trial looks at once for all: whether constants depend on the records that a step is taken on.

    Of backends that show their iterates, whose steps are known to be sums of gradients: others may do as they like.
    """
    from dpspec.stats.conformance.evidence.run import RunEvidence, write_run
    from dpspec.training.measure.replayed_step import replayed_step

    job = kit.training_job(inputs, context, 0, "replay", resumable=False)
    return write_run(RunEvidence(replayed=replayed_step(context.trainer, job)))


def _has_twin(attack: Attack, index: int) -> bool:
    return attack.twin and (attack.method == "one-run" or index == 0)


def plant(
    attack: Attack, context: dps.Context, index: int, job: dps.TrainingJob, sizes: Array, coins: Array
) -> Planted:
    """Plant the groups whose coins are 1 in a job that has no canaries; ``sizes`` and ``coins`` (m,)."""
    return (_gradients if attack.space == "gradient" else _records)(attack, context, index, job, sizes, coins)


def _gradients(
    attack: Attack, context: dps.Context, index: int, job: dps.TrainingJob, sizes: Array, coins: Array
) -> Planted:
    import torch

    from dpspec.training.canaries import CanaryGroups, Intermittent
    from dpspec.training.gradients import flat_model
    from dpspec.training.measure.observers import ProjectionObserver
    from dpspec.training.measure.residuals import Residuals

    initial, phases = flat_model.flatten(job.model), [dps.Phase.of(phase) for phase in job.phases]
    directions = context.attack.directions(len(sizes), context.seed(index, "directions"))
    longest = max(phase.clip_norm for phase in phases)
    canaries = CanaryGroups(
        directions,
        torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes * coins)),
        norm=CANARY_NORM * longest,
        spread=attack.spread,
        seed=context.seed(index, "rotations"),
    )
    job = replace(job, canaries=canaries)
    expected = attack.records_on_average
    watcher: Residuals | None = None
    if attack.watched(context.facts.capabilities, job.options):
        if attack.every == 1:
            watcher = ProjectionObserver(
                job,
                directions,
                planted=expected,
                looks=attack.looks,
                drawn=attack.others_drawn,
                sample=_sample(attack, context, index),
            )
        else:  # what canaries add on average over the steps is no check of what each adds
            watcher = Residuals(job, expected, looks=attack.looks, sample=_sample(attack, context, index))
            watcher.directions = directions

    def score() -> Array:
        present = len(job.x) + expected
        if attack.white_box:
            assert isinstance(watcher, ProjectionObserver)
            seen = scores.replace_non_finite(watcher.projections.numpy())
            return scores.step_by_step(phases, attack, present, sizes, seen)
        moved = directions.project((initial - flat_model.flatten(job.model)).to(context.device)).cpu().numpy()
        divisor = job.expected_batch_size if job.options["reduction"] == "mean" else 1.0
        sums = scores.replace_non_finite(moved) * divisor / float(job.options["learning_rate"])
        return scores.along(phases, attack, present, sizes, sums)

    last = (Intermittent(canaries, attack.every),) if attack.every > 1 else ()
    return Planted(job=job, records=len(job.x) + canaries.count, watcher=watcher, score=score, last=last)


def _records(
    attack: Attack, context: dps.Context, index: int, job: dps.TrainingJob, sizes: Array, coins: Array
) -> Planted:
    from dpspec.training import canaries as input_canaries
    from dpspec.training.gradients import flat_model
    from dpspec.training.measure.observers import RecordScores
    from dpspec.training.measure.residuals import Residuals

    # Many runs look for the same records in each; one run draws its own.
    which = 0 if attack.method == "many-run" else index
    canaries = context.attack.records(len(sizes), context.seed(which, "records"))
    initial, expected = flat_model.flatten(job.model), attack.records_on_average
    watcher: Residuals | None = None
    if attack.white_box:
        sample = _sample(attack, context, index)
        watcher = RecordScores(job, canaries, sizes, expected, drawn=attack.others_drawn, sample=sample)
    elif attack.watched(context.facts.capabilities, job.options):
        watcher = Residuals(job, expected, looks=attack.looks, sample=_sample(attack, context, index))
    known = _known(attack, sizes, coins)
    declared = _without_luck(job) if attack.by_final_model else job
    rows = input_canaries.plant(job.x, job.y, canaries, sizes, coins)
    job = replace(job, x=rows.x, y=rows.y)

    def score() -> Array:
        if isinstance(watcher, RecordScores):
            return watcher.scores.cpu().numpy()
        final = flat_model.flatten(job.model)
        return context.attack.scores(_observed(attack, context, declared, canaries, sizes, known, (initial, final)))

    return Planted(job=job, records=len(rows.x), watcher=watcher, score=score)


def _sample(attack: Attack, context: dps.Context, index: int) -> Sample | None:
    """The records by which a trial's adversary estimates what all of them add."""
    from dpspec.training.measure.population import Sample

    if attack.expected_from is None:
        return None
    return Sample(attack.expected_from, context.seed(index, "expected"))


def _without_luck(job: dps.TrainingJob) -> dps.TrainingJob:
    """The job of the real records as the adversary knows it: a model of its own, no seed, and no way to one."""
    return replace(job, model=copy.deepcopy(job.model), seed=0, progress=None, cancelled=None, resumable=None)


def _known(attack: Attack, sizes: Array, coins: Array) -> Array:
    """The coins (m,) of canaries that are not guessed, where there are some; -1 for those of all others."""
    known = np.full(len(coins), -1, dtype=np.int8)
    if attack.calibrated:
        for size in attack.sizes:
            at = np.flatnonzero(sizes == size)
            at = at[~scores.tested(len(at))]
            known[at] = coins[at]
    return known


def _observed(
    attack: Attack,
    context: dps.Context,
    job: dps.TrainingJob,
    canaries: Records,
    sizes: Array,
    known: Array,
    models: tuple[torch.Tensor, torch.Tensor],
) -> Observed:
    """What is seen of the first and the last model; ``job`` has neither planted records nor a seed."""
    from dpspec.training.measure.observers import margins

    device = context.device

    def ask(records: Records) -> tuple[Array, Array]:
        before, after = (margins(job.model, state, records, device=device) for state in models)
        return scores.replace_non_finite(before), scores.replace_non_finite(after)

    before, after = ask(canaries)
    divisor = job.expected_batch_size if job.options["reduction"] == "mean" else 1.0
    first, last = (state.detach().cpu().numpy().copy() for state in models)
    return Observed(
        canaries=canaries,
        copies=sizes,
        before=before,
        after=after,
        ask=ask,
        first=first,
        last=last,
        coins=known,
        unit=scores.unit_of_noise([dps.Phase.of(phase) for phase in job.phases], job.options, divisor),
        many=attack.method == "many-run",
        planted=attack.records_on_average,
        job=job,
    )


def _outcomes(attack: Attack, sizes: Array, coins: Array, values: Array) -> list[list[dps.Json]]:
    """All that tests need: [group size, coins from the lowest score to the highest], or of many runs
    [group size, coin, how many edges of the grid the score reaches].

    The scores themselves stay in the store: together with the published seed they would speak of the rows. Equal
    scores are ordered by position, which knows nothing of the coins. Canaries that were fitted to are left out.
    """
    outcomes: list[list[dps.Json]] = []
    for size in attack.sizes:
        at = np.flatnonzero(sizes == size)
        if attack.method == "many-run":
            outcomes += [[size, int(coins[i]), bisect_right(EDGES, float(values[i]))] for i in at]
            continue
        if attack.calibrated:
            at = at[scores.tested(len(at))]
        ordered = coins[at][np.argsort(values[at], kind="stable")]
        outcomes.append([size, "".join(map(str, ordered))])
    return outcomes
