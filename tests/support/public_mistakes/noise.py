"""Noise of another size, shape or seed than the accountant assumes."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from support.public_mistakes.parts import SECRET, OpacusTraining, OwnLoop, PublicMistake, norms_of


def noise_of_the_sum_on_the_mean(folder: Path, mistaken: bool) -> float:
    """Noise for the sum is added to the mean: more than the accountant assumes, which costs accuracy only."""
    loop = OwnLoop()
    with loop.recorder(folder) as run:
        for _ in range(20):
            drawn = loop.poisson()
            norms, total = loop.clipped(loop.rows(drawn))
            loop.step(run, drawn, norms, total, loop.noise(30.0 if mistaken else 1.0))
    return loop.epsilon(20)


def a_share_of_the_noise_is_missing(folder: Path, mistaken: bool) -> float:
    """Two workers add noise of sigma / sqrt(2) each, and one of them fails to."""
    loop = OwnLoop()
    with loop.recorder(folder) as run:
        for _ in range(20):
            drawn = loop.poisson()
            norms, total = loop.clipped(loop.rows(drawn))
            shares = [loop.noise(math.sqrt(0.5)) for _ in range(1 if mistaken else 2)]
            loop.step(run, drawn, norms, total, [sum(parts[1:], parts[0]) for parts in zip(*shares, strict=True)])
    return loop.epsilon(20)


def seed_in_each_round(folder: Path, mistaken: bool) -> float:
    """A node sets the global seed at the beginning of each round, so that its noise repeats."""
    training = OpacusTraining()
    with training.recorder(folder):
        for _ in range(4):
            if mistaken:
                torch.manual_seed(SECRET + 1)
            for number, (x, y) in enumerate(training.loader):
                training.step(cross_entropy(training.model(x), y))
                if number == 4:
                    break
    return training.epsilon()


def _percentile_filter(values: list[Tensor], gamma: float) -> list[Tensor]:
    """Zero all but the largest tenth of the coordinates, and cut the rest at gamma."""
    cutoff = torch.cat([value.flatten() for value in values]).abs().quantile(0.9)
    return [torch.where(value.abs() > cutoff, value, 0.0).clamp(-gamma, gamma) for value in values]


def percentile_and_uniform_noise(folder: Path, mistaken: bool) -> float:
    """The largest coordinates of the mean are cut at gamma and get tiny uniform noise, which a page calls private."""
    loop = OwnLoop()
    with loop.recorder(folder) as run:
        for _ in range(20):
            drawn = loop.poisson()
            rows = loop.rows(drawn)
            norms, total = loop.clipped(rows)
            noise = loop.noise()
            if mistaken:
                norms, total = (
                    norms_of(rows),
                    [30 * part for part in _percentile_filter([r.mean(0) for r in rows], 0.01)],
                )
                noise = [0.03 * (2 * torch.rand_like(p) - 1) for p in loop.parameters]
            loop.step(run, drawn, norms, total, noise)
    return loop.epsilon(20)


def percentile_without_noise(folder: Path, mistaken: bool) -> float:
    """The same filter, and no noise."""
    loop = OwnLoop()
    with loop.recorder(folder) as run:
        for _ in range(20):
            drawn = loop.poisson()
            rows = loop.rows(drawn)
            norms, total = loop.clipped(rows)
            noise = loop.noise()
            if mistaken:
                total = [30 * part for part in _percentile_filter([row.mean(0) for row in rows], 0.001)]
                noise = [torch.zeros_like(p) for p in loop.parameters]
            loop.step(run, drawn, norms, total, noise)
    return loop.epsilon(20)


MISTAKES = (
    PublicMistake(
        script=noise_of_the_sum_on_the_mean,
        source="google-deepmind/jax_privacy/issues/383",
        says="deviates",
        words="All noise has 30",
    ),
    PublicMistake(
        script=a_share_of_the_noise_is_missing, source="meta-pytorch/opacus/issues/191", says="deviates", words="0.7"
    ),
    PublicMistake(script=seed_in_each_round, source="fedbiomed/fedbiomed/pull/794", says="deviates", words="repeats"),
    PublicMistake(
        script=percentile_and_uniform_noise, source="KatherLab/MediSwarm/pull/258", says="deviates", words="noise"
    ),
    PublicMistake(
        script=percentile_without_noise, source="londonaicentre/FLIP/issues/1145", says="deviates", words="Add noise"
    ),
)
