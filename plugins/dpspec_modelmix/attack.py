"""One trial: train by ModelMix with planted canaries, score them, and train canary-free runs for their accuracy.

Each canary is in the data or not by a fair coin of its own. The adversary sees every model, knows the data, the
canaries and the rules, but no coin, no batch, no weight and no noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_modelmix import declared, theory
from dpspec_modelmix.options import Attack, attack_of, batch_size, learning_rate, lost_in

#: Canary gradients are this many times the clip norm long, so that clipping is exercised and always bites.
CANARY_NORM = 10.0

#: At most so many steps are shown of what was measured at each.
SHOWN = 200

Array: TypeAlias = np.ndarray[Any, Any]


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

    job = _job(inputs, context, index, "training")
    rules = rules_of(job.phases, job.options, job.expected_batch_size, flat.Layout.of(job.model), job.device)
    size = flat.Layout.of(job.model).size
    pool = torch.arange(size) if rules.mixed is None else (~rules.mixed).nonzero().squeeze(1)
    sparsity = max(int(phase.get("linf_truncation", 1)) for phase in job.phases)
    owned = Owned(attack, sparsity, pool, context.seed(index, "directions"), context.device)
    coins = np.random.default_rng(context.seed(index, "coins")).integers(0, 2, size=attack.count, dtype=np.int64)
    longest = max(float(phase["clip_norm"]) for phase in job.phases)
    planted = Planted(owned, torch.from_numpy(coins == 1), size, CANARY_NORM * longest)
    reader = Reader(job, rules, owned)
    job = replace(job, canaries=planted)
    logs = RunLogs(job)
    gaps = _mixed(replace(job, observers=(reader, *logs.observers)), rules)
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
        internal["accuracy"], evidence["twins"] = _accuracies(inputs, context, index, twins)
    evidence["internal"] = internal
    evidence = joined(evidence, reported(logs))
    return dps.Trial(
        index=index,
        evidence=dps.FrozenMap(evidence),
        arrays={"scores": scores, "coins": coins.astype(np.int8), "gaps": gaps},
    )


def _job(inputs: dps.FrozenMap, context: dps.Context, index: int, purpose: str) -> dps.TrainingJob:
    """The declared run without canaries, its phases with the clipping of Algorithm 2."""
    phases = tuple(_clipped(phase) for phase in dps.phases_of(inputs["mechanism"]))
    seed = context.seed(index, purpose)
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
        seed=seed,
        progress=progress,
        cancelled=context.cancelled,
    )


def _clipped(phase: dps.FrozenMap) -> dps.FrozenMap:
    sparsity = int(phase.get("linf_truncation", 1))
    if sparsity == 1:
        return phase
    bound = float(phase["clip_norm"]) / sparsity**0.5
    return dps.FrozenMap({**phase, "clipping": {"scheme": "truncated", "coordinate_bound": bound}})


def _mixed(job: dps.TrainingJob, rules: Any) -> Array:
    """Train by ModelMix; the gaps (steps, 3): least / tau, share enforced, mean square / tau^2."""
    from dpspec.training.native import parts_of, train_with
    from dpspec_modelmix.mixing import MixingUpdate

    update = MixingUpdate(rules, job.seed, job.device)
    train_with(job, replace(parts_of(job), update=update))
    return np.array(update.gaps, dtype=np.float64)


def _accuracies(
    inputs: dps.FrozenMap, context: dps.Context, index: int, twins: dps.FrozenMap
) -> tuple[dict[str, dps.Json], dict[str, dps.Json]]:
    """Counts of right answers by run and split, and what the twins are."""
    from dpspec.training import flat
    from dpspec.training.accuracy import right_answers
    from dpspec.training.native import parts_of, train_with
    from dpspec_modelmix.mixing import rules_of

    job = _job(inputs, context, index, "modelmix twin")
    rules = rules_of(job.phases, job.options, job.expected_batch_size, flat.Layout.of(job.model), job.device)
    _mixed(job, rules)
    found: dict[str, dps.Json] = {"modelmix": right_answers(job.model, context.data, context.device)}
    factor, epsilon = _equal_epsilon(inputs, context, job.phases, float(twins.get("delta", 1e-5)))
    rate = float(twins.get("learning_rate", 2.0 / 3.0 * learning_rate(job.phases[0], job.options)))
    about: dict[str, dps.Json] = {"epsilon": epsilon, "noise_factor": factor, "learning_rate": rate}
    for name, times in (("same-noise", 1.0), ("same-epsilon", factor)):
        plain = _job(inputs, context, index, f"{name} twin")
        phases = tuple(
            dps.FrozenMap({**phase, "noise_multiplier": times * float(phase["noise_multiplier"])})
            for phase in plain.phases
        )
        plain = replace(plain, phases=phases, options=dps.FrozenMap({**plain.options, "learning_rate": rate}))
        train_with(plain, parts_of(plain))
        found[name] = right_answers(plain.model, context.data, context.device)
    return found, about


def _equal_epsilon(
    inputs: dps.FrozenMap, context: dps.Context, phases: Sequence[dps.FrozenMap], delta: float
) -> tuple[float, float]:
    """By what to multiply the noise of DP-SGD for the epsilon of ModelMix, and that epsilon: both at integer orders."""
    found = declared.segments(phases, inputs["training"], context.facts.records, context.facts.parameters)
    if found is None:
        return 1.0, float("inf")
    amplified = not lost_in(phases, inputs["training"])
    mine = found if amplified else theory.without_mixing(found)
    wanted = theory.epsilon(mine, delta, "improved").epsilon

    def plain(factor: float) -> float:
        louder = [replace(s, effect=s.effect / factor) for s in theory.without_mixing(found)]
        return theory.gaussian_epsilon(louder, delta, conversion="improved").epsilon

    low, high = 1.0, 2.0
    if plain(low) <= wanted:
        return 1.0, wanted
    while plain(high) > wanted:
        low, high = high, 2.0 * high
    while high - low > 1e-4 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if plain(middle) > wanted else (low, middle)
    return high, wanted


def _thinned(gaps: Array) -> list[dps.Json]:
    """[step, least / tau, share enforced, mean square / tau^2] at up to so many steps, spread evenly."""
    steps = np.unique(np.linspace(0, len(gaps) - 1, min(SHOWN, len(gaps))).round().astype(int))
    shown = np.nan_to_num(gaps[steps], nan=0.0, posinf=1e300)
    return [[int(s) + 1, *(float(f"{v:.6g}") for v in row)] for s, row in zip(steps, shown, strict=True)]
