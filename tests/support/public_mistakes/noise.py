"""Noise of another size, shape or seed than the accountant assumes."""

import math
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from support.public_mistakes.parts import SECRET, OpacusTraining, OwnLoop, mistake, norms_of


@mistake("google-deepmind/jax_privacy/issues/383", "deviates", "All noise has 30")
def noise_of_the_sum_on_the_mean(folder: Path, mistaken: bool) -> float:
    """Noise for the sum is added to the mean: more than the accountant assumes, which costs accuracy only."""
    loop = OwnLoop()
    for run, drawn in loop.recorded(folder, 20):
        loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise(30.0 if mistaken else 1.0))
    return loop.epsilon(20)


@mistake("meta-pytorch/opacus/issues/191", "deviates", "0.7")
def a_share_of_the_noise_is_missing(folder: Path, mistaken: bool) -> float:
    """Two workers add noise of sigma / sqrt(2) each, and one of them fails to."""
    loop = OwnLoop()
    for run, drawn in loop.recorded(folder, 20):
        norms, total = loop.clipped(loop.rows(drawn))
        shares = [loop.noise(math.sqrt(0.5)) for _ in range(1 if mistaken else 2)]
        loop.step(run, drawn, norms, total, [sum(parts[1:], parts[0]) for parts in zip(*shares, strict=True)])
    return loop.epsilon(20)


@mistake("fedbiomed/fedbiomed/pull/794", "deviates", "repeats")
def seed_in_each_round(folder: Path, mistaken: bool) -> float:
    """A node sets the global seed at the beginning of each round, so that its noise repeats."""
    training = OpacusTraining()
    with training.recorder(folder):
        for _ in range(4):
            if mistaken:
                torch.manual_seed(SECRET + 1)
            for x, y in islice(training.loader, 5):
                training.step(cross_entropy(training.model(x), y))
    return training.epsilon()


def _percentile_filter(values: list[Tensor], gamma: float) -> list[Tensor]:
    """Zero all but the largest tenth of the coordinates, cut the others at gamma, and multiply by 30."""
    cutoff = torch.cat([value.flatten() for value in values]).abs().quantile(0.9)
    return [30 * torch.where(value.abs() > cutoff, value, 0.0).clamp(-gamma, gamma) for value in values]


def _percentile(folder: Path, mistaken: bool, gamma: float, uniform: float) -> float:
    loop = OwnLoop()
    for run, drawn in loop.recorded(folder, 20):
        rows = loop.rows(drawn)
        norms, total = loop.clipped(rows)
        noise = loop.noise()
        if mistaken:
            norms = norms_of(rows) if uniform else norms
            total = _percentile_filter([row.mean(0) for row in rows], gamma)
            noise = [uniform * (2 * torch.rand_like(p) - 1) for p in loop.parameters]
        loop.step(run, drawn, norms, total, noise)
    return loop.epsilon(20)


@mistake("KatherLab/MediSwarm/pull/258", "deviates", "noise")
def percentile_and_uniform_noise(folder: Path, mistaken: bool) -> float:
    """The largest coordinates of the mean are cut at gamma and get tiny uniform noise, which a page calls private."""
    return _percentile(folder, mistaken, 0.01, 0.03)


@mistake("londonaicentre/FLIP/issues/1145", "deviates", "Add noise")
def percentile_without_noise(folder: Path, mistaken: bool) -> float:
    """The same filter, and no noise."""
    return _percentile(folder, mistaken, 0.001, 0.0)
