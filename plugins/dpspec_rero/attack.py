"""Trials: a hidden record, one of k candidates, trained on among known ones, and named from what is released.

Each trial draws its candidates anew, hides one of them by the prior, trains once on the known records and that one, and
ranks the candidates by likelihood times prior. Whatever the candidates, the target is among the first m with
probability at most gamma(kappa_m), kappa_m the m largest prior masses, independently of the other trials: a binomial
dominates the count of successes. Targets that share a run would not be independent trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import dpspec.contract as dps
from dpspec.stats.conformance.run_checks import joined
from dpspec.training.loop.native import tensors
from dpspec.training.measure.accuracy import right_answers
from dpspec.training.measure.residuals import Residuals
from dpspec.training.measure.run_evidence import WatchedRun
from dpspec_rero.evidence import LOGGED, LOOKS, sums_are_tested
from dpspec_rero.options import Candidates, adds_laplace, read_candidates
from dpspec_rero.reader import Reader
from dpspec_rero.tables import PICTURED_GUESSES, PICTURED_TRIALS, encode_pictures
from dpspec_rero.training import Array, make_job, train_all

#: So many guesses of a trial are kept by name.
KEPT_GUESSES = 5

Places = np.ndarray[Any, np.dtype[np.int64]]


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """Train one run per index, together where the backend can, and rank its candidates.

    The first run of all has a twin on all records, whose accuracy is measured.
    """
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
    """One trial's candidates, and which of them is hidden.

    x, y: the records that were made for this trial, (m, ...) and (m,); they stand behind the n records of the data.
    places: (k,), where each candidate stands among all n + m; target: which of the k is hidden.
    rows: the places of the records that the run trains on: the known ones in order, and the target last.
    """

    x: Array
    y: Array
    places: Places
    target: int
    rows: Places


def hide_target(candidates: Candidates, x: Array, y: Array, classes: int, seed: int) -> HiddenTarget:
    """Candidates from the records ``x`` (n, ...), ``y`` (n,), or made for the purpose; ``seed`` decides everything.

    Raises ``DataError`` where no class has enough records, or no more records can be told apart.
    """
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
    """``count`` records that are as unlike as records can be: all zero but for one feature, and a label.

    No two share both, so that their gradients in a first dense layer are orthogonal, or opposed: the worst case that
    bounds speak of, which natural records come near to only where they are few. They are as long as the longest
    record. Raises ``DataError`` where there are fewer pairs of features and labels.
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
    jobs[0] = replace(jobs[0], progress=_progress(context, *share))
    reader = Reader(
        jobs,
        [torch.from_numpy(one.rows) for one in placed],
        torch.from_numpy(np.stack([one.places for one in placed])),
        *tensors(x, y, context.device),
        iterates=inputs["threat_model"]["access"] == "all-iterates",
    )
    logs = [_watch(index, job) for index, job in zip(group, jobs, strict=True)]
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
            internal["accuracy"] = _accuracy(inputs, context)
        yield dps.Trial(index=index, evidence=dps.FrozenMap(evidence))


def _watch(index: int, job: dps.TrainingJob) -> WatchedRun:
    """What is kept of a run for conformance: of the first ones all that they tell, of the others what they release."""
    logged = index < LOGGED
    measured = logged and sums_are_tested(job.phases, job.options)
    return WatchedRun(job, Residuals(job, 0, looks=LOOKS) if measured else None, logged=logged)


def _stack(hidden: Sequence[HiddenTarget], records: int) -> list[HiddenTarget]:
    """The same with the records that were made for each trial behind those made for the trials before it."""
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


def _accuracy(inputs: dps.FrozenMap, context: dps.Context) -> dict[str, dict[str, int]]:
    """How many records a model gets right that was trained the same way on all of them."""
    job = make_job(inputs, context, 0, (context.data.train_x, context.data.train_y), "twin")
    train_all(context, [job])
    return right_answers(job.model, context.data, context.device)


def _progress(context: dps.Context, start: float, end: float) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        context.progress(round(1000 * (start + (end - start) * done / total)), 1000, "training")

    return progress
