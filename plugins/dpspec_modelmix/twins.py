"""Runs without canaries for their accuracy: ModelMix, and DP-SGD with the same noise and with the same epsilon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dpspec.contract as dps
from dpspec_modelmix import declared, laplace, theory
from dpspec_modelmix.options import embedding_of, learning_rate, lost_in
from dpspec_modelmix.running import job_of, row_clip, train
from dpspec_modelmix.theory import Segment


def accuracies(
    inputs: dps.FrozenMap, context: dps.Context, index: int, twins: dps.FrozenMap
) -> tuple[dict[str, dps.Json], dict[str, dps.Json]]:
    """Counts of right answers by run and split, and what the twins are."""
    from dpspec.training import flat
    from dpspec.training.accuracy import right_answers
    from dpspec_modelmix.mixing import rules_of

    job = job_of(inputs, context, index, "modelmix twin")
    rules = rules_of(job.phases, job.options, job.expected_batch_size, flat.Layout.of(job.model), job.device)
    train(job, row_clip(job, context, index), rules)
    found: dict[str, dps.Json] = {"modelmix": right_answers(job.model, context.data, context.device)}
    factor, epsilon = equal_epsilon(job.phases, inputs["training"], context.facts, float(twins.get("delta", 1e-5)))
    rate = float(twins.get("learning_rate", 2.0 / 3.0 * learning_rate(job.phases[0], job.options)))
    about: dict[str, dps.Json] = {"epsilon": epsilon, "noise_factor": factor, "learning_rate": rate}
    for name, times in (("same-noise", 1.0), ("same-epsilon", factor)):
        plain = job_of(inputs, context, index, f"{name} twin")
        phases = tuple(dps.FrozenMap(_louder(phase, times)) for phase in plain.phases)
        plain = replace(plain, phases=phases, options=dps.FrozenMap({**plain.options, "learning_rate": rate}))
        train(plain, row_clip(plain, context, index), None)
        found[name] = right_answers(plain.model, context.data, context.device)
    return found, about


def _louder(phase: Mapping[str, Any], times: float) -> dict[str, Any]:
    """The phase with ``times`` the noise, within a subspace too."""
    louder = {**phase, "noise_multiplier": times * float(phase["noise_multiplier"])}
    if embedding_of(phase) is not None:
        block = phase["embedding"]
        louder["embedding"] = {**block, "noise_multiplier": times * float(block["noise_multiplier"])}
    return louder


def equal_epsilon(
    phases: Sequence[dps.FrozenMap], training: dps.FrozenMap, facts: dps.Facts, delta: float
) -> tuple[float, float]:
    """By what to multiply the noise of DP-SGD for the epsilon of ModelMix, at least 1, and that epsilon.

    Both are at integer orders; where the noise is Laplace, by Freedman's total and by the privacy loss.
    """
    found = declared.segments(phases, training, facts.records, facts.parameters)
    if found is None:
        return 1.0, float("inf")
    bare = theory.without_mixing(found)
    mixed, plain = _epsilons(found, delta)

    def louder(factor: float) -> float:
        return plain([replace(s, effect=s.effect / factor) for s in bare])

    wanted = louder(1.0) if lost_in(phases, training) else mixed
    low, high = 1.0, 2.0
    if louder(low) <= wanted:
        return 1.0, wanted
    while louder(high) > wanted:
        low, high = high, 2.0 * high
    while high - low > 1e-4 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if louder(middle) > wanted else (low, middle)
    return high, wanted


def _epsilons(found: Sequence[Segment], delta: float) -> tuple[float, Callable[[Sequence[Segment]], float]]:
    """ModelMix's epsilon, and how to find that of DP-SGD."""
    if found[0].noise == "laplace":
        return laplace.epsilon(found, delta), lambda bare: laplace.plain(bare, [delta])[0].upper
    mixed = theory.epsilon(found, delta, "improved").epsilon
    return mixed, lambda bare: theory.gaussian_epsilon(bare, delta, conversion="improved").epsilon
