"""Attack trials: train with canary groups and score every group, and train a canary-free run.

A fair coin decides for each of m groups whether all its k members or none are in the data. The adversary knows the
data, the canaries and the released models, but not coins, batches or noise, and assumes that half of all groups are
present. With all iterates it subtracts the expected update of the real records and scores each group by the
log-likelihood ratio of the residual, summed over steps. With the final model the score is the movement along the
group's direction, or a function of the model's outputs.
"""

import copy
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.attacks import Observed, Records
from dpspec.stats.conformance.evidence import RunEvidence, joined, write_run
from dpspec.training.adaptive_clipping import largest_clip_norm
from dpspec.training.canaries import CanaryGroups, Intermittent, plant
from dpspec.training.gradients import flat_model
from dpspec.training.loop.contributions import Sample
from dpspec.training.loop.native import train_many
from dpspec.training.measure.residuals import Residuals, SharedPopulations
from dpspec.training.measure.run_evidence import RunLogs, WatchedRun, replayed_step
from dpspec.training.measure.scores import ProjectionObserver, RecordScores, margins
from dpspec_group import scores
from dpspec_group.options import EDGES, Attack
from dpspec_group.scores import Array

#: Norm of canary gradients in clip norms, so that every canary is clipped.
CANARY_NORM = 10.0

#: A run with canaries, its observer of released models if there are any, and a function that returns scores (m,).
Planted: TypeAlias = tuple[dps.TrainingJob, Residuals | None, Callable[[], Array]]


class _Run(NamedTuple):
    number: int
    canary_free_run: bool
    sizes: Array
    coins: Array
    job: dps.TrainingJob
    watcher: Residuals | None
    score: Callable[[], Array]
    watched: WatchedRun


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """Many runs train together per chunk, and only the first one has a canary-free run."""
    attack = replace(Attack.of(inputs), scoring=context.attack.score)
    if attack.method == "many-run":
        runs = [_prepare_run(attack, inputs, context, index) for index in indices]
        watchers = [run.watcher for run in runs if run.watcher is not None]
        # Runs with sampled users or a transcript are observed one by one.
        if watchers and not attack.others_drawn and not kit.draws_users(runs[0].job.phases):
            SharedPopulations(watchers, context.model.build(0))
        train_many(context.trainer, [run.job for run in runs])
        yield from (_conclude_run(attack, inputs, context, run) for run in runs)
        return
    for index in indices:
        run = _prepare_run(attack, inputs, context, index)
        context.trainer.train(run.job)
        yield _conclude_run(attack, inputs, context, run)


def _prepare_run(attack: Attack, inputs: dps.FrozenMap, context: dps.Context, index: int) -> _Run:
    sizes = np.repeat(np.asarray(attack.sizes, dtype=np.int64), attack.share)
    coins = np.random.default_rng(context.seed(index, "coins")).integers(0, 2, size=len(sizes), dtype=np.int64)
    canary_free_run = attack.canary_free_run and (attack.method == "one-run" or index == 0)
    trainings = 2 if canary_free_run else 1
    job = kit.training_job(inputs, context, index, "training", progress="training", parts=trainings)
    insert = _gradients if attack.space == "gradient" else _records
    job, watcher, score = insert(attack, context, index, job, sizes, coins)
    # Only the first two of many runs are logged, because the logs are large.
    watched = WatchedRun(job, watcher, logged=attack.method == "one-run" or index < 2)
    job = replace(job, observers=(*watched.observers, *job.observers))
    return _Run(index, canary_free_run, sizes, coins, job, watcher, score, watched)


def _conclude_run(attack: Attack, inputs: dps.FrozenMap, context: dps.Context, run: _Run) -> dps.Trial:
    other_logs = None
    values = scores.replace_non_finite(run.score())
    evidence: dict[str, dps.Json] = {
        "records": run.job.public_records,
        "outcomes": _outcomes(attack, run.sizes, run.coins, values),
    }
    if run.canary_free_run:
        seed = context.seed(run.number, "twin")
        twin_job = kit.training_job(
            inputs, context, run.number, "twin", model_seed=seed, progress="training", part=1, parts=2
        )
        other_logs = RunLogs(twin_job)  # only its noise is compared with the run's
        evidence["internal"] = {
            "accuracy": kit.canary_free_accuracy(
                replace(twin_job, observers=(other_logs.counts, other_logs.noise)), context
            )
        }
    ran = run.watched.evidence(other_logs, run.sizes, run.coins)
    if run.number == 0 and "iterates" in context.facts.capabilities:
        # Whether constants depend on the records of a step; only of backends whose steps are sums of gradients.
        job = kit.training_job(inputs, context, 0, "replay", resumable=False)
        ran = joined(ran, write_run(RunEvidence(replayed=replayed_step(context.trainer, job))))
    evidence = evidence | ran if run.watched.logs is None else joined(evidence, ran)
    arrays: dict[str, Array] = {"scores": values, "coins": run.coins.astype(np.int8), "group_sizes": run.sizes}
    return dps.Trial(index=run.number, evidence=dps.FrozenMap(evidence), arrays=arrays)


def _gradients(
    attack: Attack, context: dps.Context, index: int, job: dps.TrainingJob, sizes: Array, coins: Array
) -> Planted:
    initial, phases = flat_model.flatten(job.model), [dps.Phase.of(phase) for phase in job.phases]
    directions = context.attack.directions(len(sizes), context.seed(index, "directions"))
    longest = max(map(largest_clip_norm, phases))
    canaries = CanaryGroups(
        directions,
        torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes * coins)),
        norm=CANARY_NORM * longest,
        spread=attack.spread,
        seed=context.seed(index, "rotations"),
    )
    observers = (Intermittent(canaries, attack.every),) if attack.every > 1 else ()
    job = replace(job, canaries=canaries, observers=observers)
    expected = attack.records_on_average
    watcher: Residuals | None = None
    if attack.watched(context.facts.capabilities, job.options):
        looks, sample = attack.looks, _sample(attack, context, index)
        if attack.every == 1:
            drawn = attack.others_drawn
            watcher = ProjectionObserver(job, directions, planted=expected, looks=looks, drawn=drawn, sample=sample)
        else:  # the mean over steps does not test the contribution of a step
            watcher = Residuals(job, expected, looks=looks, sample=sample)
            watcher.directions = directions

    def score() -> Array:
        present = len(job.x) + expected
        if attack.white_box:
            assert isinstance(watcher, ProjectionObserver)
            projections = scores.replace_non_finite(watcher.projections.numpy())
            scored = phases
            if attack.score_counts:
                scored = scores.counted_phases(phases, attack, len(job.x))
                projections = scores.with_counts(phases, scored, projections, watcher.counts.numpy())
            return scores.stepwise_scores(scored, attack, present, sizes, projections)
        moved = directions.project((initial - flat_model.flatten(job.model)).to(context.device)).cpu().numpy()
        divisor = job.expected_batch_size if job.options["reduction"] == "mean" else 1.0
        sums = scores.replace_non_finite(moved) * divisor / float(job.options["learning_rate"])
        return scores.along(phases, attack, present, sizes, sums)

    return job, watcher, score


def _records(
    attack: Attack, context: dps.Context, index: int, job: dps.TrainingJob, sizes: Array, coins: Array
) -> Planted:
    # Many runs share the same canaries.
    which = 0 if attack.method == "many-run" else index
    canaries = context.attack.records(len(sizes), context.seed(which, "records"))
    initial, expected = flat_model.flatten(job.model), attack.records_on_average
    watcher: Residuals | None = None
    if attack.white_box:
        sample = _sample(attack, context, index)
        watcher = RecordScores(job, canaries, sizes, expected, drawn=attack.others_drawn, sample=sample)
    elif attack.watched(context.facts.capabilities, job.options):
        watcher = Residuals(job, expected, looks=attack.looks, sample=_sample(attack, context, index))
    revealed_coins = np.full(len(coins), -1, dtype=np.int8)  # the coins of calibration canaries, -1 for guessed ones
    if attack.calibrated:
        for size in attack.sizes:
            of_size = np.flatnonzero(sizes == size)
            of_size = of_size[~scores.tested(len(of_size))]
            revealed_coins[of_size] = coins[of_size]
    # The adversary's view of the job has neither canaries nor a seed.
    observed_job = job
    if attack.by_final_model:
        model = copy.deepcopy(job.model)
        observed_job = replace(job, model=model, seed=0, progress=None, cancelled=None, resumable=None)
    rows = plant(job.x, job.y, canaries, sizes, coins)
    job = replace(job, x=rows.x, y=rows.y)

    def score() -> Array:
        if isinstance(watcher, RecordScores):
            return watcher.scores.cpu().numpy()
        models = initial, flat_model.flatten(job.model)

        def ask(records: Records) -> tuple[Array, Array]:
            before, after = (margins(observed_job.model, state, records, device=context.device) for state in models)
            return scores.replace_non_finite(before), scores.replace_non_finite(after)

        before, after = ask(canaries)
        divisor = observed_job.expected_batch_size if observed_job.options["reduction"] == "mean" else 1.0
        # The standard deviation of a parameter's noise, or 1 without noise; schedules and momentum are ignored.
        phases = [dps.Phase.of(phase) for phase in observed_job.phases]
        variance = sum(phase.steps * (phase.noise_multiplier * phase.clip_norm) ** 2 for phase in phases)
        unit = float(observed_job.options["learning_rate"]) * math.sqrt(variance) / divisor
        first, last = (state.detach().cpu().numpy().copy() for state in models)
        return context.attack.scores(
            Observed(
                canaries=canaries,
                copies=sizes,
                before=before,
                after=after,
                ask=ask,
                first=first,
                last=last,
                coins=revealed_coins,
                unit=unit if unit > 0.0 else 1.0,
                many=attack.method == "many-run",
                planted=expected,
                job=observed_job,
            )
        )

    return job, watcher, score


def _sample(attack: Attack, context: dps.Context, index: int) -> Sample | None:
    if attack.expected_from is None:
        return None
    return Sample(attack.expected_from, context.seed(index, "expected"))


def _outcomes(attack: Attack, sizes: Array, coins: Array, values: Array) -> list[list[dps.Json]]:
    """[size, coins by ascending score] or, for many runs, [size, coin, edges reached]; scores depend on the rows."""
    outcomes: list[list[dps.Json]] = []
    for size in attack.sizes:
        of_size = np.flatnonzero(sizes == size)
        if attack.method == "many-run":
            outcomes += [[size, int(coins[i]), bisect_right(EDGES, float(values[i]))] for i in of_size]
            continue
        if attack.calibrated:
            of_size = of_size[scores.tested(len(of_size))]
        ordered = coins[of_size][np.argsort(values[of_size], kind="stable")]
        outcomes.append([size, "".join(map(str, ordered))])
    return outcomes
