"""One run as the spec declares it: its job, its clipping where core has none for it, and with mixing or without."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_modelmix.options import batch_size, embedding_of, floor_of, noise_of

if TYPE_CHECKING:
    from dpspec_modelmix.clips import RowClip
    from dpspec_modelmix.mixing import Rules

Array: TypeAlias = np.ndarray[Any, Any]


def job_of(inputs: dps.FrozenMap, context: dps.Context, index: int, purpose: str) -> dps.TrainingJob:
    """The declared run without canaries, its phases with the clipping of Algorithm 2."""
    phases = tuple(_clipped(phase) for phase in dps.phases_of(inputs["mechanism"]))
    batch = batch_size(phases, context.facts.records)
    options = dps.FrozenMap({**inputs["training"], "reduction": phases[0].get("reduction", "mean")})

    def progress(done: int, total: int) -> None:
        context.progress(done, total, purpose, unit="steps", records=batch)

    return dps.TrainingJob(
        x=context.data.train_x,
        y=context.data.train_y,
        model=context.model.build(context.seed(index, "model")),
        phases=phases,
        options=options,
        expected_batch_size=batch,
        device=context.device,
        seed=context.seed(index, purpose),
        progress=progress,
        cancelled=context.cancelled,
        resumable=context.resumable(index),
    )


def _clipped(phase: dps.FrozenMap) -> dps.FrozenMap:
    sparsity = int(phase.get("linf_truncation", 1))
    if sparsity == 1:
        return phase
    return dps.FrozenMap(
        {**phase, "clipping": {"scheme": "truncated", "coordinate_bound": floor_of(phase) / sparsity**0.5}}
    )


def row_clip(job: dps.TrainingJob, context: dps.Context, index: int) -> RowClip | None:
    """Clipping that needs gradients written out, where the job declares such: a new one for each who uses it."""
    from dpspec.training import flat
    from dpspec.training.native import tensors
    from dpspec.training.persample import FlatModel
    from dpspec_modelmix.clips import Absolute, Anchors, TwoParts

    if noise_of(job.phases[0]) == "laplace":
        return Absolute()
    embedding = embedding_of(job.phases[0])
    if embedding is None:
        return None
    anchors = None
    if embedding.anchors:
        public = context.data.test_x[: embedding.anchors], context.data.test_y[: embedding.anchors]
        anchors = Anchors(FlatModel(job.model, device=job.device), *tensors(*public, job.device))
    size = flat.Layout.of(job.model).size
    return TwoParts(embedding, size, anchors, context.seed(index, "subspace"), job.device)


def train(job: dps.TrainingJob, how: RowClip | None, rules: Rules | None) -> Array:
    """Train by ModelMix, or by plain DP-SGD where there are no ``rules``; ``job.model`` ends trained.

    Returns the gaps (steps, 3): least / tau, share enforced, mean square / tau^2; (0, 3) without mixing.
    """
    from dpspec.training.native import parts_of, tensors, train_with
    from dpspec.training.persample import FlatModel
    from dpspec_modelmix.clips import WrittenOut
    from dpspec_modelmix.mixing import MixingUpdate

    parts = parts_of(job)
    if how is not None:
        embedding = embedding_of(job.phases[0])
        contributions = WrittenOut(
            FlatModel(job.model, device=job.device),
            *tensors(job.x, job.y, job.device),
            how,
            job.canaries,
            seed=job.seed,
            deviation=0.0 if embedding is None else embedding.deviation,
        )
        parts = replace(parts, contributions=contributions)
    if rules is None:
        train_with(job, parts)
        return np.zeros((0, 3))
    update = MixingUpdate(rules, job.seed, job.device)
    train_with(job, replace(parts, update=update))
    return np.array(update.gaps, dtype=np.float64)
