"""What trials read, the training runs that they make, how they are divided into chunks, and what they cost.

Costs are rough figures for ``Plan``, which decide no result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dpspec.contract as dps
from dpspec.kit.user_rows import by_user, drawn, draws_users

if TYPE_CHECKING:
    import numpy as np


#: Floating-point operations per second, on one core, of a run that is audited. On the low side: training alone was
#: measured at 9e9 to 1.3e11 (linear models and perceptrons of 8e3 to 4e5 parameters, batches of 200 to 2000), and
#: observers, logs and scores take the rest.
FLOPS = 4e9

#: Seconds that a step takes besides, whatever the model: measured at 6e-4 for drawing and noise alone.
STEP_SECONDS = 4e-3


def training_seconds(parameters: int, gradients: float, steps: float) -> float:
    """Seconds on one core: 6 * parameters * gradients / FLOPS + steps * STEP_SECONDS.

    A gradient takes 6 operations per parameter: 2 for the model's output and 4 for the gradient itself.

    gradients: how many gradients of single records are taken, over all steps.
    """
    return 6.0 * parameters * gradients / FLOPS + steps * STEP_SECONDS


def training_bytes(facts: dps.Facts) -> int:
    """Memory in bytes of one run: gradients of up to 4096 records in float32, and the rows in float64."""
    return 4 * (facts.parameters or 0) * min(facts.records, 4096) + 8 * facts.records * facts.features


def runs_together(facts: dps.Facts, *, most: int, memory_bytes: int = 2**29) -> int:
    """How many runs are trained at once: as many as fit into ``memory_bytes``, at least 1 and at most ``most``.

    A run holds its rows, and eight vectors of parameters, in 8 bytes a number.
    """
    each = 8 * (facts.records * max(1, facts.features) + 8 * (facts.parameters or 0))
    return max(1, min(most, memory_bytes // each))


def chunks(runs: int, together: int = 1) -> tuple[tuple[int, ...], ...]:
    """The indices 0 to ``runs`` - 1 in order, ``together`` in each chunk but perhaps the last.

    >>> chunks(5, 2)
    ((0, 1), (2, 3), (4,))
    """
    return tuple(tuple(range(start, min(runs, start + together))) for start in range(0, runs, together))


#: Seconds of one core from which on it is said that runs can be shared out, and of what each task then has at least.
_LONG, _TASK = 600.0, 60.0

#: Blocks of fewer runs than this lost more than two workers gained, where models are small (docs/explanation/scale.md).
_FEWEST = 32


def shard_notes(runs: int, chunks: int, seconds: float) -> tuple[str, ...]:
    """A sentence for ``Plan.notes`` on runs that one task trains together although workers could share them.

    ``runs``, in so many ``chunks``, that take so many ``seconds``; with the key ``audit.shard_runs`` there are more
    chunks (:data:`dpspec.contract.fragments.SHARD_RUNS`).
    """
    tasks = min(runs // _FEWEST, int(seconds / _TASK))
    if chunks > 1 or seconds < _LONG or tasks < 2:
        return ()
    return (
        f"All {runs} runs are trained together and take some {seconds / 3600.0:.1f} hours of one core: "
        f"audit.shard_runs: {-(-runs // tasks)} shares them out among {tasks} tasks.",
    )


def select_inputs(
    inputs: dps.FrozenMap,
    *,
    mechanism_without: Collection[str] = (),
    threat_model: Collection[str] | None = None,
    audit_without: Collection[str] | None = None,
) -> dps.FrozenMap:
    """Trial inputs without what no trial reads: what ``Audit.trial_inputs`` returns, from what its default returns.

    Whatever is left out neither makes trials anew when it changes, nor is at hand when they are made.

    mechanism_without: keys of the mechanism that only bounds read.
    threat_model: the keys of the threat model that trials read, None standing for absent ones; by default all.
    audit_without: keys of the audit that only plan and conclusions read.
    """
    own = set(mechanism_without)
    selected: dict[str, dps.Json] = dict(inputs)
    selected["mechanism"] = {key: value for key, value in inputs["mechanism"].items() if key not in own}
    if threat_model is not None:
        selected["threat_model"] = {key: inputs["threat_model"].get(key) for key in threat_model}
    if audit_without is not None:
        left = set(audit_without)
        selected["audit"] = {key: value for key, value in inputs.get("audit", {}).items() if key not in left}
    return dps.FrozenMap(selected)


def training_job(
    inputs: dps.FrozenMap,
    context: dps.Context,
    index: int,
    purpose: str,
    *,
    rows: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None,
    phases: Sequence[dps.Phase] | None = None,
    options: Mapping[str, dps.Json] | None = None,
    records: int | None = None,
    model_seed: int | None = None,
    progress: str = "",
    part: int = 0,
    parts: int = 1,
    resumable: bool = True,
) -> dps.TrainingJob:
    """The run of trial ``index`` that the spec declares, without canaries and observers: add them by ``replace``.

    inputs: the trial's inputs, with the blocks ``mechanism`` and ``training``.
    purpose: what the run's seed is drawn for; runs of one trial have different ones.
    rows: the training records, (n, ...) and (n,); by default all of the spec's, laid out by users where these are
        drawn.
    phases, options: other ones than the mechanism's and the training block's.
    records: the public number of records, from which rates and the divisor follow; by default the spec's.
    model_seed: the seed of the initial weights; by default the trial's own for ``model``.
    progress: what is told of steps that are done; nothing where it is empty. The run is number ``part`` (from 0) of
        ``parts`` equal ones of its trial.
    resumable: whether the run keeps its state while it lasts, so that a killed trial goes on within it.
    """
    phases = dps.Phase.all_of(inputs["mechanism"]) if phases is None else phases
    training = inputs["training"] if options is None else dps.FrozenMap(options)
    count = drawn(phases, context.facts).records if records is None else records
    batch = dps.expected_batch_size(training, phases, count)

    def tell(done: int, total: int) -> None:
        context.progress(part * total + done, parts * total, progress, unit="steps", records=batch)

    if rows is None:
        data = context.data
        rows = by_user(data, context.facts.users) if draws_users(phases) else (data.train_x, data.train_y)
    x, y = rows
    return dps.TrainingJob(
        x=x,
        y=y,
        model=context.model.build(context.seed(index, "model") if model_seed is None else model_seed),
        phases=tuple(phases),
        options=training,
        expected_batch_size=batch,
        device=context.device,
        seed=context.seed(index, purpose),
        progress=tell if progress else None,
        cancelled=context.cancelled,
        resumable=context.resumable(index) if resumable else None,
        records=count,
    )


def twin_accuracy(job: dps.TrainingJob, context: dps.Context) -> dict[str, dict[str, int]]:
    """Train ``job``, which has no canaries, and count right answers per split: ``{train: {right, records}, ...}``."""
    from dpspec.training.measure.accuracy import right_answers

    context.trainer.train(job)
    return right_answers(job.model, context.data, context.device)


def expected_checks(
    spec: dps.Spec,
    facts: dps.Facts,
    *,
    trials: int,
    undone: bool,
    looks: int | None = None,
    phases: Sequence[dps.Phase] | None = None,
    planted: int = 0,
    groups: Mapping[int, int] | None = None,
    twin: bool = False,
    estimated: int | None = None,
) -> tuple[dps.Check, ...]:
    """The checks that the runs of ``spec`` will allow, each with the deviation that it would see: for ``Plan.checks``.

    trials: how many runs tell how they ran; twin: whether each has a second run beside it.
    undone: whether updates are undone, so that released models are measured at ``looks`` steps, None for all.
    phases: as they are trained; by default the spec's. planted: records that canaries add on average.
    groups: per group size, how many groups of gradient canaries are drawn for.
    estimated: from how many records what all of them add is estimated at each step; None if from all.
    """
    from dpspec.stats.conformance import expectations

    run = expectations.Run(
        phases=spec.phases if phases is None else phases,
        records=facts.records + planted,
        parameters=facts.parameters or 0,
        groups=groups or {},
        capabilities=facts.capabilities,
        trials=trials,
        twin=twin,
        looks=looks,
        undone=undone,
        estimated=estimated,
        told=spec.threat_model.access == "transcript",
    )
    return tuple(expectations.foresee(run))
