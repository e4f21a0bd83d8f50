"""Noise of another size, shape or seed than the accountant assumes."""

import math
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from support.public_mistakes.parts import SECRET, OpacusTraining, OwnLoop, mistake, norms_of, own_loop


@own_loop("google-deepmind/jax_privacy/issues/383", "deviates", "All noise has 30")
def noise_of_the_sum_on_the_mean(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """Noise for the sum is added to the mean: more than the accountant assumes, which costs accuracy only."""
    loop.honest(run, drawn, noise=30.0 if mistaken else 1.0)


@own_loop("meta-pytorch/opacus/issues/191", "deviates", "0.7")
def a_share_of_the_noise_is_missing(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """Two workers add noise of sigma / sqrt(2) each, and one of them fails to."""
    norms, total = loop.clipped(loop.rows(drawn))
    shares = [loop.noise(math.sqrt(0.5)) for _ in range(1 if mistaken else 2)]
    loop.step(run, drawn, norms, total, [sum(parts[1:], parts[0]) for parts in zip(*shares, strict=True)])


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


def _percentile(loop: OwnLoop, run: Any, drawn: Tensor, gamma: float, uniform: float) -> None:
    """Zero all but the largest tenth of the mean's coordinates, cut the others at gamma, and add uniform noise."""
    rows = loop.rows(drawn)
    means = [row.mean(0) for row in rows]
    cutoff = torch.cat([value.flatten() for value in means]).abs().quantile(0.9)
    total = [30 * torch.where(value.abs() > cutoff, value, 0.0).clamp(-gamma, gamma) for value in means]
    norms = norms_of(rows) if uniform else loop.clipped(rows)[0]
    loop.step(run, drawn, norms, total, [uniform * (2 * torch.rand_like(p) - 1) for p in loop.parameters])


@own_loop("KatherLab/MediSwarm/pull/258", "deviates", "noise")
def percentile_and_uniform_noise(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """The largest coordinates of the mean are cut at gamma and get tiny uniform noise, which a page calls private."""
    _percentile(loop, run, drawn, 0.01, 0.03) if mistaken else loop.honest(run, drawn)


@own_loop("londonaicentre/FLIP/issues/1145", "deviates", "Add noise")
def percentile_without_noise(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """The same filter, and no noise."""
    _percentile(loop, run, drawn, 0.001, 0.0) if mistaken else loop.honest(run, drawn)
