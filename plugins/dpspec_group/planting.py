"""What is planted in one run, who watches it, and how the canaries are scored afterwards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_group import scores
from dpspec_group.options import Attack

if TYPE_CHECKING:
    from dpspec.training.residuals import Residuals

#: Canary gradients are this many times the clip norm long, so that clipping is exercised and always bites.
CANARY_NORM = 10.0

#: So many steps are measured where the adversary sees the final model alone, so that only conformance needs them.
LOOKS = 16

Array: TypeAlias = np.ndarray[Any, Any]


def looks(attack: Attack) -> int | None:
    """How many steps the watcher of a run measures; None for all."""
    return None if attack.white_box else LOOKS


def watched(attack: Attack, capabilities: Collection[str], options: Mapping[str, Any]) -> bool:
    """Whether released models can be looked at; an adversary of the final model can do without.

    ``options``: how the run is trained.
    """
    undone = (options.get("optimizer") or {}).get("kind") != "adam"
    return attack.white_box or ("iterates" in capabilities and undone)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One run with its canaries in place.

    records: real and planted ones together. watcher: sees the released models; None where the backend shows none.
    score: called once the job is trained, (m,).
    """

    job: dps.TrainingJob
    records: int
    watcher: Residuals | None
    score: Callable[[], Array]


def plant(
    attack: Attack, context: dps.Context, index: int, job: dps.TrainingJob, sizes: Array, coins: Array
) -> Planted:
    """Plant the groups whose coins are 1 in a job that has no canaries; ``sizes`` and ``coins`` (m,)."""
    return (_gradients if attack.space == "gradient" else _records)(attack, context, index, job, sizes, coins)


def _gradients(
    attack: Attack, context: dps.Context, index: int, job: dps.TrainingJob, sizes: Array, coins: Array
) -> Planted:
    import torch

    from dpspec.training import flat
    from dpspec.training.canaries import CanaryGroups, SignBlocks
    from dpspec.training.observers import ProjectionObserver

    initial = flat.flatten(job.model)
    directions = SignBlocks(len(initial), len(sizes), seed=context.seed(index, "directions"), device=context.device)
    longest = max(float(phase["clip_norm"]) for phase in job.phases)
    canaries = CanaryGroups(
        directions,
        torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes * coins)),
        norm=CANARY_NORM * longest,
        spread=attack.spread,
        seed=context.seed(index, "rotations"),
    )
    job = replace(job, canaries=canaries)
    expected = attack.records_on_average
    watcher: ProjectionObserver | None = None
    if watched(attack, context.facts.capabilities, job.options):
        watcher = ProjectionObserver(job, directions, planted=expected, looks=looks(attack))

    def score() -> Array:
        present = len(job.x) + expected
        if attack.white_box:
            assert watcher is not None
            seen = scores.tame(watcher.projections.numpy())
            return scores.step_by_step(job.phases, attack, present, sizes, seen)
        moved = directions.project((initial - flat.flatten(job.model)).to(context.device)).cpu().numpy()
        divisor = job.expected_batch_size if job.options["reduction"] == "mean" else 1.0
        sums = scores.tame(moved) * divisor / float(job.options["learning_rate"])
        return scores.along(job.phases, attack, present, sizes, sums)

    return Planted(job=job, records=len(job.x) + canaries.count, watcher=watcher, score=score)


def _records(
    attack: Attack, context: dps.Context, index: int, job: dps.TrainingJob, sizes: Array, coins: Array
) -> Planted:
    from dpspec.training import flat, input_canaries
    from dpspec.training.record_scores import RecordScores, margins
    from dpspec.training.residuals import Residuals

    # Many runs look for the same records in each; one run draws its own.
    which = 0 if attack.method == "many-run" else index
    canaries = input_canaries.make(
        attack.kind, len(sizes), job.x, job.y, context.facts.classes, context.seed(which, "records")
    )
    initial, expected = flat.flatten(job.model), attack.records_on_average
    watcher: Residuals | None = None
    if attack.white_box:
        watcher = RecordScores(job, canaries, sizes, expected)
    elif watched(attack, context.facts.capabilities, job.options):
        watcher = Residuals(job, expected, looks=looks(attack))
    rows = input_canaries.plant(job.x, job.y, canaries, sizes, coins)
    job = replace(job, x=rows.x, y=rows.y)

    def score() -> Array:
        if isinstance(watcher, RecordScores):
            return watcher.scores.cpu().numpy()
        before, after = (
            scores.tame(margins(job.model, state, canaries, device=context.device))
            for state in (initial, flat.flatten(job.model))
        )
        if attack.score != "likelihood-ratio":
            return scores.by_loss(attack.score, before, after)
        found = np.zeros(len(sizes))
        for size in attack.sizes:
            at = np.flatnonzero(sizes == size)
            found[at] = scores.calibrated(before[at], after[at], coins[at], ~scores.tested(len(at)))
        return found

    return Planted(job=job, records=len(rows.x), watcher=watcher, score=score)


def observers(planted: Planted, logs: Sequence[dps.Observer]) -> tuple[dps.Observer, ...]:
    """Everybody who looks on."""
    return tuple(o for o in (planted.watcher, *logs) if o is not None)
