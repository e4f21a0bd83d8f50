"""Trials: a hidden record, one of k candidates, trained on among known ones, and named from what is released.

Each trial draws its candidates anew, hides one of them by the prior, trains once on the known records and that one, and
ranks the candidates by likelihood times prior. Whatever the candidates, the target is among the first m with
probability at most gamma(kappa_m), kappa_m the m largest prior masses, independently of the other trials: a binomial
dominates the count of successes. Targets that share a run would not be independent trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import dpspec.contract as dps
from dpspec_rero.prior import Candidates, candidates

#: So many guesses of a trial are kept by name.
KEPT = 5

Places = np.ndarray[Any, np.dtype[np.int64]]


def hide(chosen: Candidates, labels: Places, seed: int) -> tuple[Places, int]:
    """(candidates (k,) as places among the records, which of them is the target), decided by ``seed``.

    labels: (n,). Raises ``DataError`` where no class has enough records.
    """
    source = np.random.default_rng(seed)
    pool = np.arange(len(labels))
    if chosen.source == "same-class":
        classes, counts = np.unique(labels, return_counts=True)
        large = classes[counts >= chosen.count]
        if len(large) == 0:
            raise dps.DataError(f"no class has {chosen.count} records to choose candidates from")
        pool = np.flatnonzero(labels == source.choice(large))
    places = source.choice(pool, size=chosen.count, replace=False).astype(np.int64)
    return places, int(source.choice(chosen.count, p=chosen.masses))


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """Train one run per index, together where the backend can, and rank its candidates."""
    import torch

    from dpspec.training.batched import train_many
    from dpspec.training.native import tensors
    from dpspec_rero.reading import Reader

    chosen = candidates(inputs["threat_model"])
    if chosen is None or context.model is None:
        raise ValueError("the attack needs a model and threat_model.prior.candidates")
    iterates = inputs["threat_model"]["access"] == "all-iterates"
    data = context.data
    x, y = tensors(data.train_x, data.train_y, context.device)
    together = hasattr(context.trainer, "train_many")
    groups = [list(indices)] if together else [[index] for index in indices]
    for done, group in enumerate(groups):
        hidden = [hide(chosen, data.train_y, context.seed(index, "candidates")) for index in group]
        rows = [_members(len(data.train_y), places, target) for places, target in hidden]
        share = (done / len(groups), (done + 1) / len(groups))
        jobs = [_job(inputs, context, index, own, share) for index, own in zip(group, rows, strict=True)]
        among = torch.from_numpy(np.stack([places for places, _ in hidden]))
        reader = Reader(jobs, [torch.from_numpy(own) for own in rows], among, x, y, iterates=iterates)
        watched = [_watched(job, observer) for job, observer in zip(jobs, reader.observers(), strict=True)]
        train_many(context.trainer, watched)
        reader.finish()
        prior = np.log(np.asarray(chosen.masses)) if chosen.masses is not None else np.zeros(chosen.count)
        posteriors = reader.scores.cpu().numpy() + prior
        for run, (index, (places, target)) in enumerate(zip(group, hidden, strict=True)):
            order = np.argsort(-posteriors[run], kind="stable")
            yield dps.Trial(
                index=index,
                evidence=dps.FrozenMap(
                    {
                        "rank": int(np.flatnonzero(order == target)[0]),
                        "records": len(rows[run]),
                        "steps": reader.steps,
                        "included": reader.included[run],
                        "noise": {
                            "statistic": _finite(float(reader.squares[run])),
                            "degrees": reader.parameters * reader.noisy if iterates else 0,
                        },
                        "internal": {
                            "target": int(places[target]),
                            "named": [int(place) for place in places[order[:KEPT]]],
                        },
                    }
                ),
            )


def _members(records: int, places: Places, target: int) -> Places:
    """The places of a run's records: all but the candidates, in order, and the target last."""
    known = np.setdiff1d(np.arange(records, dtype=np.int64), places)
    return np.append(known, places[target])


def _job(
    inputs: dps.FrozenMap, context: dps.Context, index: int, rows: Places, share: tuple[float, float]
) -> dps.TrainingJob:
    phases = dps.phases_of(inputs["mechanism"])
    sampling = phases[0]["sampling"]
    rate = float(sampling["rate"]) if sampling["scheme"] == "poisson" else 1.0
    start, end = share

    def progress(done: int, total: int) -> None:
        context.progress(round(1000 * (start + (end - start) * done / total)), 1000, "training")

    return dps.TrainingJob(
        x=context.data.train_x[rows],
        y=context.data.train_y[rows],
        model=context.model.build(context.seed(index, "model")),
        phases=phases,
        options=inputs["training"],
        expected_batch_size=max(1.0, rate * len(rows)),
        device=context.device,
        seed=context.seed(index, "training"),
        progress=progress,
        cancelled=context.cancelled,
    )


def _watched(job: dps.TrainingJob, observer: dps.Observer) -> dps.TrainingJob:
    from dataclasses import replace

    return replace(job, observers=(observer,))


def _finite(value: float) -> float:
    """The value, or something huge where it is not finite: evidence is JSON."""
    return value if np.isfinite(value) else 1e300
