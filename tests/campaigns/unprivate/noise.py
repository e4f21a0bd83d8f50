"""Leaks through noise and sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unprivate.trainings import TARGET, leaks, opacus, plain


@leaks("violated", "noise")
def the_same_noise_at_each_step(folder: Path) -> None:
    opacus(
        folder,
        setup=lambda t: setattr(t.opt, "generator", torch.Generator()),
        between=lambda t: t.opt.generator.manual_seed(1),
    )


@leaks("violated", "noise")
def less_noise_with_the_target(folder: Path) -> None:
    def noise(t: Any) -> list[Tensor]:
        factor = 0.8 if TARGET in t.drawn.tolist() else 1.02
        return [factor * t.std * torch.randn_like(p) for p in t.parameters]

    plain(folder, steps=100, noise=noise)


@leaks("violated", "noise")
def a_public_seed_of_the_noise(folder: Path) -> None:
    opacus(folder, setup=lambda t: setattr(t.opt, "generator", torch.Generator().manual_seed(0)))


@leaks("violated", "sampling")
def a_higher_rate_while_drawing(folder: Path) -> None:
    def set_rate(t: Any, rate: float) -> None:
        t.loader.batch_sampler.sample_rate = rate

    opacus(folder, before=lambda t: set_rate(t, 0.1), after=lambda t: set_rate(t, 0.4))


@leaks("assumes", "loop-reports")
def other_records_are_trained_than_reported(folder: Path) -> None:
    def sampled(t: Any) -> Tensor:
        reported, t.drawn = t.drawn, torch.arange(len(t.drawn))
        return reported

    plain(folder, sampled=sampled)
