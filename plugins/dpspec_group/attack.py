"""One trial: train with planted groups, score every group by what the iterates show, and train a twin without them.

Each of m groups has a direction of its own in parameter space and enters the data as a whole, all its k members or
none, by a fair coin. The adversary knows the data, the directions and every iterate, but no coin, no batch and no
noise. It subtracts the update that the real records are expected to make and scores each group by the
log-likelihood ratio of what is left along its direction, summed over the steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import dpspec.contract as dps
from dpspec_group import theory

#: Canary gradients are this many times the clip norm long, so that clipping is exercised and always bites.
CANARY_NORM = 10.0


def layout(inputs: dps.FrozenMap) -> np.ndarray:
    """The group size of each canary, shape (m,): the sizes in order, each with an equal share of the canaries."""
    sizes = inputs["threat_model"]["group_size"]
    share = int(inputs["audit"]["canary"]["count"]) // len(sizes)
    return np.repeat(np.asarray(sizes, dtype=np.int64), share)


def run_trial(inputs: dps.FrozenMap, context: dps.Context, index: int) -> dps.Trial:
    """Train once with canaries and once without; the trial's evidence holds scores, coins and what was measured."""
    from dpspec.training.accuracy import correct_predictions
    from dpspec.training.canaries import CanaryGroups, SignBlocks
    from dpspec.training.observers import NoiseLog, ProjectionObserver, SamplingLog

    data, facts = context.data, context.facts
    phases = dps.phases_of(inputs["mechanism"])
    options = dps.FrozenMap(inputs["training"])
    sizes = layout(inputs)
    m, records = len(sizes), facts.records
    coins = np.random.default_rng(context.seed(index, "coins")).integers(0, 2, size=m, dtype=np.int64)

    assert facts.parameters is not None
    blocks = SignBlocks(facts.parameters, m, context.seed(index, "directions"), device=context.device)
    owner = np.repeat(np.arange(m), sizes * coins)
    clip_norms = {float(phase["clip_norm"]) for phase in phases}
    canaries = CanaryGroups(blocks, owner, norm=CANARY_NORM * max(clip_norms))

    total = 2 * sum(int(phase["steps"]) for phase in phases)

    def progress(offset: int) -> Callable[[int, int], None]:
        return lambda done, _: context.progress(offset + done, total, "training")

    def job(model: object, seed: int, offset: int, **more: object) -> dps.TrainingJob:
        return dps.TrainingJob(
            x=data.train_x,
            y=data.train_y,
            model=model,  # type: ignore[arg-type]
            phases=phases,
            options=options,
            expected_batch_size=max(1.0, theory.sampling_rate(phases[0], records) * records),
            device=context.device,
            seed=seed,
            progress=progress(offset),
            cancelled=context.cancelled,
            **more,  # type: ignore[arg-type]
        )

    model = context.model.build(context.seed(index, "model"))
    projections = ProjectionObserver(blocks, ...)  # type: ignore[call-arg]
    return dps.Trial(index=index, evidence=dps.FrozenMap())
