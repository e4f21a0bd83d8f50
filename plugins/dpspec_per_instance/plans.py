"""How the runs are split into trials, what they cost, and what can be seen of them."""

from __future__ import annotations

import math

import dpspec.contract as dps
from dpspec_per_instance.options import (
    LOGGED,
    LOOKS,
    Audited,
    attack_of,
    audited_of_spec,
    observe_every,
    observed_steps,
)
from dpspec_per_instance.shards import MOST, Shards, shards_of

#: Rough cost of training on one core: floating-point operations per second reached, and overhead per step.
_FLOPS, _STEP_SECONDS = 4e9, 4e-3

#: At most so many runs are trained together, and so many bytes are held for them.
_TOGETHER, _CHUNK_BYTES = 16, 2**29

#: A run that takes more seconds than this on one core may be worth sharing out, into tasks of about so many.
_LONG, _TASK = 3600.0, 600.0

#: Sharing out is advised as long as training again adds no more than this to the work.
_AGAIN = 0.25


def plan(spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
    """One trial per run and shard; the first shard of a run has with it all that is trained beside it."""
    from dpspec.stats import foreseen

    assert spec.audit is not None
    runs, audited = spec.audit.runs, audited_of_spec(spec, facts)
    shards = shards_of(spec.audit.options, len(audited.points))
    chunks = _chunks(runs, facts, shards)
    parameters, attack = facts.parameters or 0, attack_of(spec.audit.options)
    batch = sum(_batch(phase, facts.records) * int(phase["steps"]) for phase in spec.phases)
    looks = len(observed_steps(spec.steps, observe_every(spec.mechanism.options)))
    points = len(audited.points)

    def seconds(trained: float, rows: float) -> float:
        """So many runs trained, and so many gradients of records beside them."""
        return 6.0 * parameters * (trained * batch + rows) / _FLOPS + trained * spec.steps * _STEP_SECONDS

    once = seconds(1.0, 0.0)
    looked = seconds(points if audited.own else 0.0, looks * points * (2.0 if audited.own else 1.0))
    total = runs * (shards.count * once + looked)
    total += min(LOGGED, runs) * seconds(0.0, float(min(LOOKS, spec.steps)) * facts.records)
    if attack is not None:
        attacked, scored = attack.targets * attack.runs, min(attack.looks or spec.steps, spec.steps)
        total += runs * seconds(attacked, float(attacked * scored) * facts.records)
        if attack.most or attack.least:
            total += min(runs, len(chunks)) * seconds(1.0, looks * points)
    return dps.Plan(
        chunks=chunks,
        seconds=total,
        memory_bytes=4 * parameters * min(facts.records, 4096)
        + 8 * facts.records * facts.features
        + (4 * facts.features + 5 * looks) * shards.largest,
        notes=(
            "Values per record speak of the data: reports leave them out unless asked, and training that is changed by "
            "them is not what was audited.",
            *_notes(audited, shards, runs, once, looked),
        ),
        checks=tuple(
            foreseen.foresee(
                foreseen.Run(
                    phases=spec.phases,
                    records=facts.records,
                    parameters=parameters,
                    groups={},
                    capabilities=facts.capabilities,
                    trials=min(LOGGED, runs),
                    twin=False,
                    looks=LOOKS,
                )
            )
        ),
    )


def _batch(phase: dps.FrozenMap, records: int) -> float:
    sampling = phase["sampling"]
    return float(sampling["rate"]) * records if sampling["scheme"] == "poisson" else float(records)


def _chunks(runs: int, facts: dps.Facts, shards: Shards) -> tuple[tuple[int, ...], ...]:
    """Runs that are trained together: as many as their rows and models take memory for, and no more than help.

    Shards are made one by one, so that what is made again of a run comes out as it would have together with the rest.
    """
    if shards.count > 1:
        return tuple((index,) for index in range(runs * shards.count))
    each = 8 * (facts.records * max(1, facts.features) + 8 * (facts.parameters or 0))
    together = max(1, min(_TOGETHER, _CHUNK_BYTES // each))
    return tuple(tuple(range(start, min(runs, start + together))) for start in range(0, runs, together))


def _notes(audited: Audited, shards: Shards, runs: int, once: float, looked: float) -> list[str]:
    """What is trained more than once, or could be shared out. once, looked: seconds of a run and its looks."""
    notes, points, together = [], len(audited.points), once + looked
    if audited.own:
        notes.append(f"Each of {points} records takes a run on data of its own in every one of {runs}.")
    if shards.count > 1:
        share = (shards.count - 1) * once / (shards.count * once + looked)
        notes.append(
            f"Each run is made {shards.count} times, to look at up to {shards.largest} records each time: "
            f"{share:.0%} of that work is training again."
        )
    elif together > _LONG:
        worth = min(MOST, points, int(together / _TASK), int(1.0 + _AGAIN * together / once))
        if worth > 1:
            notes.append(
                f"Training once and looking at all records takes some {together / 3600.0:.1f} hours of one core: "
                f"audit.shard_records: {math.ceil(points / worth)} shares that out among {worth} tasks."
            )
    return notes
