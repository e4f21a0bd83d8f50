"""One trial: train with planted groups, score every group by what the iterates show, and train a twin without them.

Each of m groups has a direction of its own in parameter space and enters the data as a whole, all its k members or
none, by a fair coin. The adversary knows the data, the directions and what is released, but no coin, no batch and no
noise. Where every iterate is released it subtracts the update that the real records are expected to make and scores
each group by the log-likelihood ratio of what is left along its direction, summed over the steps; where only the
final model is released, by how far the model moved along the direction. How many records were planted follows from the
coins, so that the adversary reckons with half of all groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import dpspec.contract as dps
from dpspec_group import theory

if TYPE_CHECKING:
    import torch

#: Canary gradients are this many times the clip norm long, so that clipping is exercised and always bites.
CANARY_NORM = 10.0

#: What stands for numbers that are not finite, in scores and in measurements: evidence is JSON, which has none.
_LARGE, _HUGE = 1e30, 1e300


def layout(inputs: dps.FrozenMap) -> np.ndarray[Any, Any]:
    """The group size of each canary, (m,): the sizes in order, each with an equal share of the canaries."""
    sizes = inputs["threat_model"]["group_size"]
    share = int(inputs["audit"]["canary"]["count"]) // len(sizes)
    return np.repeat(np.asarray(sizes, dtype=np.int64), share)


def run_trial(inputs: dps.FrozenMap, context: dps.Context, index: int) -> dps.Trial:
    """Train once with canaries and once without; the evidence holds the outcome of the attack and what was measured."""
    import torch

    from dpspec.training.canaries import CanaryGroups, SignBlocks
    from dpspec.training.observers import NoiseLog, NormLog, ProjectionObserver, SamplingLog

    parameters = context.facts.parameters
    if parameters is None:
        raise ValueError("the attack plants gradients, so it needs a model")
    sizes = layout(inputs)
    coins = np.random.default_rng(context.seed(index, "coins")).integers(0, 2, size=len(sizes), dtype=np.int64)
    directions = SignBlocks(parameters, len(sizes), seed=context.seed(index, "directions"), device=context.device)
    owner = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes * coins))

    job = _job(inputs, context, context.seed(index, "training"), share=(0.0, 0.6))
    longest = max(float(phase["clip_norm"]) for phase in job.phases)
    job = replace(
        job,
        model=context.model.build(context.seed(index, "model")),
        canaries=CanaryGroups(directions, owner, norm=CANARY_NORM * longest),
    )
    expected = theory.planted_on_average(len(sizes), inputs["threat_model"]["group_size"])
    seen = ProjectionObserver(job, directions, planted=expected)
    ends, sampling, noise, norms = _Ends(), SamplingLog(len(job.x) + len(owner)), NoiseLog(), NormLog()
    context.trainer.train(replace(job, observers=(seen, ends, sampling, noise, norms)))

    if inputs["threat_model"]["access"] == "all-iterates":
        scores = _white_box(job.phases, sizes, context.facts.records + expected, _tame(seen.projections.numpy()))
    else:
        scores = _tame(directions.project(ends.distance()).cpu().numpy())
    scale = seen.noise_scale()
    evidence: dict[str, dps.Json] = {
        "records": context.facts.records,
        "outcomes": _outcomes(sizes, coins, scores),
        "steps": seen.steps,
        "noise": {"statistic": _number(scale.statistic), "degrees": scale.degrees},
        "internal": {"accuracy": _twin(inputs, context, index)},
    }
    evidence |= _logs(job.phases, sampling, noise, norms)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "scores": np.asarray(scores, dtype=np.float64),
        "coins": coins.astype(np.int8),
        "group_sizes": sizes,
    }
    return dps.Trial(index=index, evidence=dps.FrozenMap(evidence), arrays=arrays)


class _Ends(dps.Observer):
    """Keeps the first and the last released state: all that an adversary sees of a final model."""

    def __init__(self) -> None:
        self._first: torch.Tensor | None = None
        self._last: torch.Tensor | None = None

    def released(self, step: int, state: torch.Tensor) -> None:
        if step == 0:
            self._first = state.clone()
        self._last = state.clone()

    def distance(self) -> torch.Tensor:
        """From the last state back to the first: the direction in which canaries pull is positive."""
        if self._first is None or self._last is None:
            raise ValueError("the backend released no state")
        return self._first - self._last


def _job(inputs: dps.FrozenMap, context: dps.Context, seed: int, *, share: tuple[float, float]) -> dps.TrainingJob:
    """The declared run without canaries; ``share`` is the piece of the trial's progress bar that it fills."""
    phases, records = dps.phases_of(inputs["mechanism"]), context.facts.records
    start, end = share

    def progress(done: int, total: int) -> None:
        context.progress(round(1000 * (start + (end - start) * done / total)), 1000, "training")

    return dps.TrainingJob(
        x=context.data.train_x,
        y=context.data.train_y,
        model=context.model.build(seed),
        phases=phases,
        options=inputs["training"],
        expected_batch_size=max(1.0, theory.sampling_rate(phases[0], records) * records),
        device=context.device,
        seed=seed,
        progress=progress,
        cancelled=context.cancelled,
    )


def _twin(inputs: dps.FrozenMap, context: dps.Context, index: int) -> dict[str, dict[str, int]]:
    """How many records a model gets right that was trained the same way without canaries."""
    from dpspec.training.accuracy import accuracy

    job = _job(inputs, context, context.seed(index, "twin"), share=(0.6, 1.0))
    context.trainer.train(job)
    data = context.data
    counts = {}
    for name, x, y in (("train", data.train_x, data.train_y), ("test", data.test_x, data.test_y)):
        if len(x):
            right = round(accuracy(job.model, x, y, device=context.device) * len(x))
            counts[name] = {"right": right, "records": len(x)}
    return counts


def _white_box(
    phases: Sequence[dps.FrozenMap], sizes: np.ndarray[Any, Any], records: int, seen: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Log-likelihood ratios (m,) of planted against not, from projections (steps, m) in units of the clip norm.

    records: how many the adversary takes to be in the run, planted ones included.
    Without declared noise there is no likelihood; the plain sum over the steps ranks the groups then.
    """
    scores = np.zeros(len(sizes))
    start = 0
    for phase in phases:
        rows = seen[start : start + int(phase["steps"])]
        start += int(phase["steps"])
        for size in np.unique(sizes):
            at = np.flatnonzero(sizes == size)
            if float(phase["noise_multiplier"]) == 0.0:
                scores[at] += rows[:, at].sum(axis=0)
            else:
                scores[at] += theory.planted_mixture(phase, int(size), records).log_ratio(rows[:, at]).sum(axis=0)
    return scores


def _outcomes(
    sizes: np.ndarray[Any, Any], coins: np.ndarray[Any, Any], scores: np.ndarray[Any, Any]
) -> list[list[dps.Json]]:
    """[[group size, its coins from the lowest score to the highest], ...]: all that guesses by rank need.

    The scores themselves stay in the store: together with the published seed they would speak of the rows. Equal
    scores are ordered by position, which knows nothing of the coins.
    """
    outcomes: list[list[dps.Json]] = []
    for size in np.unique(sizes):
        at = np.flatnonzero(sizes == size)
        ordered = coins[at][np.argsort(scores[at], kind="stable")]
        outcomes.append([int(size), "".join(map(str, ordered))])
    return outcomes


def _tame(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """In float64, 0 for what is not a number and finite where it is infinite: ranks that know nothing of the coins."""
    tame: np.ndarray[Any, Any] = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=_LARGE, neginf=-_LARGE)
    return tame


def _number(value: float) -> float:
    """The value, or ``_HUGE`` where it is not finite: more noise, or a longer gradient, than was ever declared."""
    return value if np.isfinite(value) else _HUGE


def _logs(phases: Sequence[dps.FrozenMap], sampling: Any, noise: Any, norms: Any) -> dict[str, dps.Json]:
    """What the backend reported, boiled down per phase; empty where it reports nothing."""
    logs: dict[str, dps.Json] = {}
    deviations = np.repeat(
        [float(p["noise_multiplier"]) * float(p["clip_norm"]) for p in phases], [int(p["steps"]) for p in phases]
    )
    clip_norms = np.repeat([float(p["clip_norm"]) for p in phases], [int(p["steps"]) for p in phases])
    if len(noise.squares) == len(deviations) and np.all(deviations > 0):
        logs["noise_log"] = {
            "statistic": _number(float(np.sum(np.asarray(noise.squares) / deviations**2))),
            "degrees": noise.count * len(deviations),
            "products": _number(float(np.sum(np.asarray(noise.products) / (deviations[1:] * deviations[:-1])))),
            "pairs": noise.count * len(noise.products),
        }
    if sampling.sizes:
        batches, at = [], 0
        for phase in phases:
            batch = np.asarray(sampling.sizes[at : at + int(phase["steps"])], dtype=np.int64)
            at += int(phase["steps"])
            batches.append({"steps": len(batch), "total": int(batch.sum()), "squares": int((batch**2).sum())})
        logs["sampling_log"] = {"records": len(sampling.inclusions), "batches": batches}
    if len(norms.largest) == len(clip_norms):
        logs["norm_log"] = {"largest": _number(float(np.max(np.asarray(norms.largest) / clip_norms)))}
    return logs
