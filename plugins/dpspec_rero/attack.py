"""Reconstruction trials: the adversary identifies a hidden target record among k candidates from released models.

Each trial trains a separate run, so that a binomial distribution dominates the number of successes
(``docs/explanation/proofs/reconstruction.md``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import dpspec.contract as dps
from dpspec.stats.conformance.evidence import joined
from dpspec.training.loop.native import tensors
from dpspec.training.measure.residuals import Residuals
from dpspec.training.measure.run_evidence import WatchedRun
from dpspec.training.measure.scores import right_answers
from dpspec_rero.evidence import LOGGED, LOOKS, sums_are_tested
from dpspec_rero.options import Candidates, adds_laplace, read_candidates
from dpspec_rero.reader import Array, Reader, make_job, train_all
from dpspec_rero.tables import PICTURED_GUESSES, PICTURED_TRIALS, encode_pictures

#: Number of best candidates that a trial stores.
KEPT_GUESSES = 5

Places = np.ndarray[Any, np.dtype[np.int64]]


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    candidates = read_candidates(inputs["threat_model"])
    if candidates is None or context.model is None:
        raise ValueError("the attack needs a model and threat_model.prior.candidates")
    phases = dps.Phase.all_of(inputs["mechanism"])
    together = hasattr(context.trainer, "train_many") and not adds_laplace(phases)
    groups = [list(indices)] if together else [[index] for index in indices]
    for done, group in enumerate(groups):
        share = (done / len(groups), (done + 1) / len(groups))
        yield from _run_group(inputs, context, candidates, group, share)


@dataclass(frozen=True, kw_only=True)
class HiddenTarget:
    """One trial's k candidates and its target.

    ``x`` (m, ...) and ``y`` (m,) are synthetic records, which follow the n records of the dataset. ``places`` (k,) are
    the candidates' positions among all n + m, ``target`` is one of the k, and ``rows`` are the training records: the
    known ones in order, then the target.
    """

    x: Array
    y: Array
    places: Places
    target: int
    rows: Places


def hide_target(candidates: Candidates, x: Array, y: Array, classes: int, seed: int) -> HiddenTarget:
    source = np.random.default_rng(seed)
    made_x, made_y = x[:0], y[:0]
    if candidates.source == "planted":
        made_x, made_y = make_records(candidates.count, x, y, classes, source)
        places = len(y) + np.arange(candidates.count, dtype=np.int64)
    else:
        pool = _pool(candidates, y, source)
        places = source.choice(pool, size=candidates.count, replace=False).astype(np.int64)
    target = int(source.choice(candidates.count, p=candidates.masses))
    known = np.setdiff1d(np.arange(len(y), dtype=np.int64), places)
    return HiddenTarget(x=made_x, y=made_y, places=places, target=target, rows=np.append(known, places[target]))


def make_records(count: int, x: Array, y: Array, classes: int, source: np.random.Generator) -> tuple[Array, Array]:
    """Make ``count`` records that are zero except in one feature, with distinct pairs of feature and label.

    Their gradients in a first dense layer are orthogonal or opposed, the worst case of the bounds. Each has the norm of
    the longest training record.
    """
    features = int(np.prod(x.shape[1:]))
    if count > features * classes:
        raise dps.DataError(f"{features} features and {classes} classes tell {features * classes} records apart")
    feature, label = np.divmod(source.choice(features * classes, size=count, replace=False), classes)
    made = np.zeros((count, features), dtype=x.dtype)
    made[np.arange(count), feature] = np.linalg.norm(x.reshape(len(x), -1), axis=1).max()
    return made.reshape(count, *x.shape[1:]), label.astype(y.dtype)


def _pool(candidates: Candidates, labels: Array, source: np.random.Generator) -> Places:
    if candidates.source == "all":
        return np.arange(len(labels), dtype=np.int64)
    classes, counts = np.unique(labels, return_counts=True)
    large = classes[counts >= candidates.count]
    if len(large) == 0:
        raise dps.DataError(f"no class has {candidates.count} records to choose candidates from")
    return np.flatnonzero(labels == source.choice(large))


def _run_group(
    inputs: dps.FrozenMap, context: dps.Context, candidates: Candidates, group: list[int], share: tuple[float, float]
) -> Iterator[dps.Trial]:
    data, classes = context.data, context.facts.classes
    hidden = [
        hide_target(candidates, data.train_x, data.train_y, classes, context.seed(i, "candidates")) for i in group
    ]
    placed = _stack(hidden, len(data.train_y))
    x = np.concatenate([data.train_x, *(one.x for one in hidden)])
    y = np.concatenate([data.train_y, *(one.y for one in hidden)])
    jobs = [make_job(inputs, context, i, (x[one.rows], y[one.rows])) for i, one in zip(group, placed, strict=True)]

    def progress(done: int, total: int) -> None:
        start, end = share
        context.progress(round(1000 * (start + (end - start) * done / total)), 1000, "training")

    jobs[0] = replace(jobs[0], progress=progress)
    reader = Reader(
        jobs,
        [torch.from_numpy(one.rows) for one in placed],
        torch.from_numpy(np.stack([one.places for one in placed])),
        *tensors(x, y, context.device),
        iterates=inputs["threat_model"]["access"] == "all-iterates",
    )
    logs = []
    for index, job in zip(group, jobs, strict=True):
        logged = index < LOGGED  # later runs are checked by their released models only
        measured = Residuals(job, 0, looks=LOOKS) if logged and sums_are_tested(job.phases, job.options) else None
        logs.append(WatchedRun(job, measured, logged=logged))
    observed = zip(jobs, reader.observers(), logs, strict=True)
    train_all(context, [replace(job, observers=(observer, *log.observers)) for job, observer, log in observed])
    reader.finish()
    with np.errstate(divide="ignore"):
        prior = np.log(candidates.masses) if candidates.masses is not None else np.zeros(candidates.count)
    posteriors = reader.scores.cpu().numpy() + prior
    for run, index in enumerate(group):
        order = np.argsort(-posteriors[run], kind="stable")
        evidence = joined(_evidence(reader, run, hidden[run], order), logs[run].evidence())
        internal = evidence["internal"]
        if index < PICTURED_TRIALS:
            shown = [hidden[run].target, *order[:PICTURED_GUESSES]]
            pictures = encode_pictures(x[placed[run].places[shown]])
            internal |= {} if pictures is None else {"pictures": pictures}
        if index == 0:
            job = make_job(inputs, context, 0, (data.train_x, data.train_y), "twin")
            train_all(context, [job])
            internal["accuracy"] = right_answers(job.model, data, context.device)
        yield dps.Trial(index=index, evidence=dps.FrozenMap(evidence))


def _stack(hidden: Sequence[HiddenTarget], records: int) -> list[HiddenTarget]:
    """Shift positions so that the synthetic records of all trials follow the dataset in one array."""
    moved, start = [], 0
    for one in hidden:
        places, rows = (np.where(old < records, old, old + start) for old in (one.places, one.rows))
        moved.append(replace(one, places=places, rows=rows))
        start += len(one.y)
    return moved


def _evidence(reader: Reader, run: int, hidden: HiddenTarget, order: Array) -> dict[str, Any]:
    statistic = float(reader.noise[run])
    return {
        "rank": int(np.flatnonzero(order == hidden.target)[0]),
        "records": len(hidden.rows),
        "included": reader.included[run],
        # Evidence is JSON, which has no infinity.
        "noise": {"statistic": statistic if np.isfinite(statistic) else 1e300, "degrees": reader.degrees},
        "internal": {
            "target": int(hidden.places[hidden.target]),
            "named": [int(place) for place in hidden.places[order[:KEPT_GUESSES]]],
        },
    }
