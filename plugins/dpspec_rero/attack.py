"""Trials: a hidden record, one of k candidates, trained on among known ones, and named from what is released.

Each trial draws its candidates anew, hides one of them by the prior, trains once on the known records and that one, and
ranks the candidates by likelihood times prior. Whatever the candidates, the target is among the first m with
probability at most gamma(kappa_m), kappa_m the m largest prior masses, independently of the other trials: a binomial
dominates the count of successes. Targets that share a run would not be independent trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import dpspec.contract as dps
from dpspec_rero import pictures
from dpspec_rero.candidates import Hidden, hide
from dpspec_rero.executed import job_of, laplace, train_all
from dpspec_rero.prior import Candidates, candidates

if TYPE_CHECKING:
    from dpspec_rero.reading import Reader

#: So many guesses of a trial are kept by name.
KEPT = 5

Array = np.ndarray[Any, Any]


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """Train one run per index, together where the backend can, and rank its candidates.

    The first run of all has a twin on all records, whose accuracy is measured.
    """
    chosen = candidates(inputs["threat_model"])
    if chosen is None or context.model is None:
        raise ValueError("the attack needs a model and threat_model.prior.candidates")
    phases = dps.phases_of(inputs["mechanism"])
    together = hasattr(context.trainer, "train_many") and not laplace(phases)
    groups = [list(indices)] if together else [[index] for index in indices]
    for done, group in enumerate(groups):
        share = (done / len(groups), (done + 1) / len(groups))
        yield from _run_group(inputs, context, chosen, group, share)


def _run_group(
    inputs: dps.FrozenMap, context: dps.Context, chosen: Candidates, group: list[int], share: tuple[float, float]
) -> Iterator[dps.Trial]:
    import torch

    from dpspec.training.native import tensors
    from dpspec_rero.reading import Reader

    data, classes = context.data, context.facts.classes
    hidden = [hide(chosen, data.train_x, data.train_y, classes, context.seed(i, "candidates")) for i in group]
    placed = _apart(hidden, len(data.train_y))
    x = np.concatenate([data.train_x, *(one.x for one in hidden)])
    y = np.concatenate([data.train_y, *(one.y for one in hidden)])
    jobs = [job_of(inputs, context, i, (x[one.rows], y[one.rows])) for i, one in zip(group, placed, strict=True)]
    jobs[0] = replace(jobs[0], progress=_progress(context, *share))
    reader = Reader(
        jobs,
        [torch.from_numpy(one.rows) for one in placed],
        torch.from_numpy(np.stack([one.places for one in placed])),
        *tensors(x, y, context.device),
        iterates=inputs["threat_model"]["access"] == "all-iterates",
    )
    watchers = reader.observers()
    train_all(context, [replace(job, observers=(watcher,)) for job, watcher in zip(jobs, watchers, strict=True)])
    reader.finish()
    with np.errstate(divide="ignore"):
        prior = np.log(chosen.masses) if chosen.masses is not None else np.zeros(chosen.count)
    posteriors = reader.scores.cpu().numpy() + prior
    for run, index in enumerate(group):
        order = np.argsort(-posteriors[run], kind="stable")
        evidence = _evidence(reader, run, hidden[run], order)
        internal = evidence["internal"]
        if index < pictures.TRIALS:
            kept = pictures.kept(x[placed[run].places[[hidden[run].target, *order[: pictures.NAMED]]]])
            internal |= {} if kept is None else {"pictures": kept}
        if index == 0:
            internal["accuracy"] = _accuracy(inputs, context)
        yield dps.Trial(index=index, evidence=dps.FrozenMap(evidence))


def _apart(hidden: Sequence[Hidden], records: int) -> list[Hidden]:
    """The same with the records that were made for each trial behind those made for the trials before it."""
    moved, start = [], 0
    for one in hidden:
        places, rows = (np.where(at < records, at, at + start) for at in (one.places, one.rows))
        moved.append(replace(one, places=places, rows=rows))
        start += len(one.y)
    return moved


def _evidence(reader: Reader, run: int, one: Hidden, order: Array) -> dict[str, Any]:
    return {
        "rank": int(np.flatnonzero(order == one.target)[0]),
        "records": len(one.rows),
        "steps": reader.steps,
        "included": reader.included[run],
        "noise": {"statistic": _finite(float(reader.noise[run])), "degrees": reader.degrees},
        "internal": {
            "target": int(one.places[one.target]),
            "named": [int(place) for place in one.places[order[:KEPT]]],
        },
    }


def _accuracy(inputs: dps.FrozenMap, context: dps.Context) -> dict[str, dict[str, int]]:
    """How many records a model gets right that was trained the same way on all of them."""
    from dpspec.training.accuracy import right_answers

    job = job_of(inputs, context, 0, (context.data.train_x, context.data.train_y), "twin")
    train_all(context, [job])
    return right_answers(job.model, context.data, context.device)


def _progress(context: dps.Context, start: float, end: float) -> Any:
    def progress(done: int, total: int) -> None:
        context.progress(round(1000 * (start + (end - start) * done / total)), 1000, "training")

    return progress


def _finite(value: float) -> float:
    """The value, or something huge where it is not finite: evidence is JSON."""
    return value if np.isfinite(value) else 1e300
