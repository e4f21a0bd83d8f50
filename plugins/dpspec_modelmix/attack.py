"""One trial: train by ModelMix with planted canaries, score them, and train canary-free runs for their accuracy.

Each canary is in the data or not by a fair coin of its own. The adversary sees every model, knows the data, the
canaries and the rules, but no coin, no batch, no weight and no noise. A trial that is killed goes on where its run was
last saved, the adversary with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

import dpspec.contract as dps
from dpspec_modelmix.options import Attack, attack_of, floor_of
from dpspec_modelmix.running import Array, job_of, row_clip, train
from dpspec_modelmix.twins import accuracies

#: Canary gradients are this many times the clip norm long, so that clipping is exercised and always bites.
CANARY_NORM = 10.0

#: At most so many steps are shown of what was measured at each.
SHOWN = 200


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """One trial for each index."""
    for index in indices:
        yield _trial(inputs, context, index, attack_of(inputs["audit"]))


def _trial(inputs: dps.FrozenMap, context: dps.Context, index: int, attack: Attack) -> dps.Trial:
    import torch

    from dpspec.stats.conformance import joined
    from dpspec.training import flat
    from dpspec.training.conformance import RunLogs, reported
    from dpspec_modelmix.canaries import Owned, Planted
    from dpspec_modelmix.mixing import rules_of
    from dpspec_modelmix.reading import Reader

    job = job_of(inputs, context, index, "training")
    rules = rules_of(job.phases, job.options, job.expected_batch_size, flat.Layout.of(job.model), job.device)
    size = flat.Layout.of(job.model).size
    pool = torch.arange(size) if rules.mixed is None else (~rules.mixed).nonzero().squeeze(1)
    sparsity = max(int(phase.get("linf_truncation", 1)) for phase in job.phases)
    owned = Owned(attack, sparsity, pool, context.seed(index, "directions"), context.device)
    coins = np.random.default_rng(context.seed(index, "coins")).integers(0, 2, size=attack.count, dtype=np.int64)
    norm = CANARY_NORM * max(floor_of(phase) for phase in job.phases)
    planted = Planted(owned, torch.from_numpy(coins == 1), size, norm)
    everyone = Planted(owned, torch.ones(attack.count, dtype=torch.bool), size, norm)
    reader = Reader(job, rules, owned, everyone, row_clip(job, context, index))
    job = replace(job, canaries=planted)
    logs = RunLogs(job)
    job = replace(job, observers=(reader, *logs.observers))
    gaps = train(job, row_clip(job, context, index), rules)
    scores = reader.scores.cpu().numpy()
    order = np.argsort(scores, kind="stable")
    least = gaps[:, 0]
    internal: dict[str, dps.Json] = {
        "gaps": _thinned(gaps),
        "gap": {"least": float(least.min()) if np.isfinite(least).all() else None, "below": int((least < 1.0).sum())},
    }
    evidence: dict[str, dps.Json] = {
        "outcome": "".join(map(str, coins[order])),
        "steps": reader.steps,
    }
    twins = inputs["audit"].get("twins")
    if twins is not None:
        internal["accuracy"], evidence["twins"] = accuracies(inputs, context, index, twins)
    evidence["internal"] = internal
    evidence = joined(evidence, reported(logs))
    return dps.Trial(
        index=index,
        evidence=dps.FrozenMap(evidence),
        arrays={"scores": scores, "coins": coins.astype(np.int8), "gaps": gaps},
    )


def _thinned(gaps: Array) -> list[dps.Json]:
    """[step, least / tau, share enforced, mean square / tau^2] at up to so many steps, spread evenly."""
    steps = np.unique(np.linspace(0, len(gaps) - 1, min(SHOWN, len(gaps))).round().astype(int))
    shown = np.nan_to_num(gaps[steps], nan=0.0, posinf=1e300)
    return [[int(s) + 1, *(float(f"{v:.6g}") for v in row)] for s, row in zip(steps, shown, strict=True)]
