"""Trials back to runs: the records of one run from all of its shards, and what was told once for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_per_instance.options import audited_of_spec
from dpspec_per_instance.shards import Shards, shards_of

Array: TypeAlias = np.ndarray[Any, Any]

#: The arrays whose last axis is the records.
PER_RECORD = ("ratios", "own", "right", "labels")


def whole_runs(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Sequence[dps.Trial]:
    """One trial for each run whose shards are all there: the first one, with the arrays of all.

    A record's values are over the runs that looked at it; those of all records are compared and counted together, and
    so over the same ones. Raises ``MissingArrayError`` where some shards have arrays that others lack.
    """
    shards = _shards(spec, trials)
    if shards.count == 1:
        return trials
    runs: dict[int, dict[int, dps.Trial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.index):
        run, shard = shards.place(trial.index)
        runs.setdefault(run, {})[shard] = trial
    whole = [list(parts.values()) for parts in runs.values() if len(parts) == shards.count]
    return [replace(parts[0], arrays=_joined(parts)) for parts in whole]


def told_once(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Sequence[dps.Trial]:
    """The trials that tell what there is once for each run: checks, accuracy, outcomes of attacks."""
    shards = _shards(spec, trials)
    return [trial for trial in trials if shards.place(trial.index)[1] == 0]


def at_hand(trials: Sequence[dps.Trial]) -> bool:
    """Whether the trials' arrays are here: results carry their evidence alone."""
    return all("ratios" in trial.arrays for trial in trials)


def sizes(trials: Sequence[dps.Trial]) -> dps.Facts:
    """How many records there are: all that conclusions need to know of the data."""
    records, test_records = trials[0].evidence["sizes"]
    return dps.Facts(records=int(records), features=0, classes=0, test_records=int(test_records))


def array(trial: dps.Trial, name: str) -> Array:
    """An array of a trial; raises ``MissingArrayError`` where it is not at hand."""
    arrays: Mapping[str, Array] = trial.arrays
    if name not in arrays:
        raise dps.MissingArrayError(
            f"per-record values need the array {name!r} of trial {trial.index}, which is in the store it was made in"
        )
    return arrays[name]


def _shards(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Shards:
    assert spec.audit is not None
    return shards_of(spec.audit.options, len(audited_of_spec(spec, sizes(trials)).points))


def _joined(parts: Sequence[dps.Trial]) -> dict[str, Array]:
    found = dict(parts[0].arrays)
    for name in PER_RECORD:
        if any(name in part.arrays for part in parts):
            found[name] = np.concatenate([array(part, name) for part in parts], axis=-1)
    return found
