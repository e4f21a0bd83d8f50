"""Inputs, training runs, chunks and costs of trials, and validated reading of their evidence.

Costs are rough estimates for ``Plan``. Stored trials are untrusted: values that no run writes raise ``ValueError``, and
the trial is repeated.

>>> chunks(5, together=2)
((0, 1), (2, 3), (4,))
>>> fair_coins("0120", 4)
Traceback (most recent call last):
...
ValueError: coins must be 4 characters 0 or 1, got '0120'
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import dpspec.contract as dps
from dpspec.contract.frozen import without
from dpspec.json_records import Record, read
from dpspec.kit.users import by_user, drawn, draws_users

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "canary_free_accuracy",
    "chunks",
    "coins_by_size",
    "expected_checks",
    "fair_coins",
    "recorded",
    "recorded_number",
    "recorded_part",
    "runs_together",
    "scored_coins",
    "select_inputs",
    "shard_notes",
    "training_bytes",
    "training_job",
    "training_seconds",
    "whole_number",
]

#: Floating-point operations per second and core of an audited run, a low estimate. Without observers, logs and scores
#: training reaches 9e9 to 1.3e11 (linear models and perceptrons with 8e3 to 4e5 parameters, batches of 200 to 2000).
FLOPS = 4e9

#: Additional seconds per step for any model. Sampling and noise take 6e-4.
STEP_SECONDS = 4e-3


#: Additional seconds per gradient for any model. A step of ``group`` with 4e6 gradients of 6 parameters takes 2.3 s.
GRADIENT_SECONDS = 6e-7

#: Additional bytes per record for any model: its places in batches and logs. 2e6 records of one column take 190 bytes
#: each, 2e7 records 97.
RECORD_BYTES = 200


def training_seconds(parameters: int, gradients: float, steps: float) -> float:
    """Seconds on one core: (6 * parameters / FLOPS + GRADIENT_SECONDS) * gradients + steps * STEP_SECONDS.

    A gradient takes 2 operations per parameter for the forward and 4 for the backward pass. ``gradients`` is the number
    of per-record gradients over all steps.
    """
    return (6.0 * parameters / FLOPS + GRADIENT_SECONDS) * gradients + steps * STEP_SECONDS


def training_bytes(facts: dps.Facts) -> int:
    """Memory of one run in bytes: gradients of up to 4096 records in float32, rows in float64, RECORD_BYTES."""
    gradients = 4 * (facts.parameters or 0) * min(facts.records, 4096)
    return gradients + (8 * facts.features + RECORD_BYTES) * facts.records


def runs_together(facts: dps.Facts, *, most: int) -> int:
    """Number of runs per batch that fit into 512 MiB, from 1 to ``most``.

    A run needs its rows and eight parameter vectors at 8 bytes per number.
    """
    bytes_of_run = 8 * (facts.records * max(1, facts.features) + 8 * (facts.parameters or 0))
    return max(1, min(most, 2**29 // bytes_of_run))


def chunks(runs: int, together: int = 1) -> tuple[tuple[int, ...], ...]:
    """Split the indices 0 to ``runs`` - 1 into chunks of ``together``, except possibly the last.

    >>> chunks(5, 2)
    ((0, 1), (2, 3), (4,))
    """
    return tuple(tuple(range(start, min(runs, start + together))) for start in range(0, runs, together))


#: Minimum core seconds for the note on sharing runs, and per resulting task.
_LONG, _TASK = 600.0, 60.0

#: Smaller blocks of small models lose more than two workers gain (docs/explanation/scale.md).
_FEWEST = 32


def shard_notes(runs: int, chunks: int, seconds: float) -> tuple[str, ...]:
    """A sentence for ``Plan.notes`` on runs that one task trains although workers could share them.

    ``audit.shard_runs`` increases the number of ``chunks`` of the ``runs``, which take ``seconds`` in total.
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
    """Restrict the default trial inputs to the keys that trials read; other changes then keep stored trials valid.

    Args:
        inputs: The default inputs.
        mechanism_without: Mechanism keys that only bounds read.
        threat_model: Threat model keys that trials read, None for absent ones. Default: all.
        audit_without: Audit keys that only plans and conclusions read.
    """
    selected: dict[str, dps.Json] = dict(inputs)
    selected["mechanism"] = without(inputs["mechanism"], mechanism_without)
    if threat_model is not None:
        selected["threat_model"] = {key: inputs["threat_model"].get(key) for key in threat_model}
    if audit_without is not None:
        selected["audit"] = without(inputs.get("audit", {}), audit_without)
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
    """The declared run of trial ``index``, without canaries and observers, which ``replace`` adds.

    Args:
        inputs: The trial's inputs with the blocks ``mechanism`` and ``training``.
        context: The context of the audit.
        index: The trial.
        purpose: Purpose of the run's seed, different for each run of a trial.
        rows: Training records (n, ...) and labels (n,). Default: the spec's, grouped by user if users are drawn.
        phases: Default: the mechanism's.
        options: Default: the training block's.
        records: Public number of records, which determines rates and divisor. Default: the spec's.
        model_seed: Seed of the initial weights. Default: the trial's seed for ``model``.
        progress: Description of the run for progress reports; empty for none.
        part: Number of the run within the trial, from 0.
        parts: Number of equal runs of the trial.
        resumable: Whether the run stores its state to resume after a kill.
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
        loss=context.loss,
    )


def canary_free_accuracy(job: dps.TrainingJob, context: dps.Context) -> dict[str, dict[str, int]]:
    """Train the canary-free ``job`` and count correct predictions per split: ``{train: {right, records}, ...}``."""
    from dpspec.training.measure.scores import right_answers

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
    canary_free_run: bool = False,
    estimated: int | None = None,
) -> tuple[dps.Check, ...]:
    """Planned conformance checks of the runs of ``spec`` with their detection limits, for ``Plan.checks``.

    Args:
        spec: The spec.
        facts: The public facts.
        trials: Number of logged runs.
        undone: Whether updates are inverted, so that released models are measured.
        looks: Number of measured steps; None for all.
        phases: The trained phases. Default: the spec's.
        planted: Mean number of inserted canaries.
        groups: Number of groups of gradient canaries per group size.
        canary_free_run: Whether each run is accompanied by one without canaries.
        estimated: Number of records that estimate the contribution of all at each step; None for no estimate.
    """
    from dpspec.stats.conformance import table

    run = table.Run(
        phases=spec.phases if phases is None else phases,
        records=facts.records + planted,
        parameters=facts.parameters or 0,
        groups=groups or {},
        capabilities=facts.capabilities,
        trials=trials,
        twin=canary_free_run,
        looks=looks,
        undone=undone,
        estimated=estimated,
        told=spec.threat_model.access == "transcript",
    )
    return tuple(table.foresee(run))


R = TypeVar("R", bound=Record)


def recorded(trial: dps.Trial, key: str) -> Any:
    """Value of ``key`` in a trial's evidence, which must be present."""
    if key not in trial.evidence:
        raise ValueError(f"{key} is missing")
    return trial.evidence[key]


def recorded_number(trial: dps.Trial, key: str, *, least: int = 1, most: int = 2**63 - 1) -> int:
    """Integer from ``least`` to ``most`` in a trial's evidence."""
    return whole_number(recorded(trial, key), key, least=least, most=most)


def recorded_part(trial: dps.Trial, kind: type[R], *path: str) -> R | None:
    """Typed record at ``path`` of a trial's evidence; None if absent."""
    value: Any = trial.evidence
    for depth, key in enumerate(path):
        if not isinstance(value, Mapping):
            raise ValueError(f"{'.'.join(path[:depth])} must be a mapping, got {str(value)[:40]!r}")
        if value.get(key) is None:
            return None
        value = value[key]
    return read(kind, value, ".".join(path))


def fair_coins(value: object, count: int) -> str:
    """Validate a string of ``count`` characters 0 or 1."""
    if not isinstance(value, str) or len(value) != count or not set(value) <= {"0", "1"}:
        raise ValueError(f"coins must be {count} characters 0 or 1, got {str(value)[:40]!r}")
    return value


def coins_by_size(trial: dps.Trial, counts: Mapping[int, int]) -> dict[int, str]:
    """Inclusion bits per group size by ascending score, from evidence ``[[size, coins], ...]`` with ``counts``."""
    rows = _rows(recorded(trial, "outcomes"), "a size and its coins")
    if [size for size, _ in rows] != list(counts):
        raise ValueError(f"outcomes must have the group sizes {', '.join(map(str, counts))}, in order")
    return {size: fair_coins(coins, counts[size]) for size, coins in rows}


def scored_coins(value: object, count: int, edges: int) -> list[tuple[int, int]]:
    """Validate ``count`` pairs of an inclusion bit and the number of ``edges`` reached."""
    pairs = _rows(value, "a coin and the number of edges that its score reaches")
    if len(pairs) != count:
        raise ValueError(f"scores must be {count}, got {len(pairs)}")
    return [(whole_number(c, "a coin", most=1), whole_number(s, "a score", most=edges)) for c, s in pairs]


def whole_number(value: object, name: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """Validate an integer from ``least`` to ``most``."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be an integer from {least} to {most}, got {str(value)[:40]!r}")
    return value


def _rows(value: object, pair_text: str) -> list[Any]:
    rows = value if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(row, list | tuple) and len(row) == 2 for row in rows):
        raise ValueError(f"outcomes must be a list, each {pair_text}")
    return list(rows)
