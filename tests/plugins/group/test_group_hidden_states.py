"""Gradient canaries in every k-th step: when they speak, and what the law of their scores is."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attacks import audited

from dpspec.accounting import Mixture
from dpspec.training.canaries import CanaryGroups, Intermittent, SignBlocks
from dpspec_group.scores import end_to_end


def test_canaries_speak_in_the_steps_that_k_divides() -> None:
    canaries = CanaryGroups(SignBlocks(12, 3, seed=1), torch.tensor([0, 2]), 10.0)
    clock, spoke = Intermittent(canaries, 3), []
    for step in range(10):
        clock.released(step, torch.zeros(12))
        spoke.append(float(canaries.gradients(torch.tensor([0, 1])).norm()) > 0.0)
    assert [step + 1 for step, said in enumerate(spoke) if said] == [3, 6, 9]
    clock.released(4, torch.zeros(12))
    kept = clock.state()
    clock.restore({})
    assert canaries.silent
    clock.restore({name: np.asarray(value) for name, value in kept.items()})
    assert canaries.silent
    clock.released(5, torch.zeros(12))
    assert not canaries.silent
    with pytest.raises(ValueError, match="at least 1"):
        Intermittent(canaries, 0)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(1, 50))
def test_the_law_by_counting_steps(steps: list[int], every: int) -> None:
    """Full batches: the mean is the number of steps that speak, the noise comes in all of them."""
    found = end_to_end([(Mixture.full(1, 2.0), n) for n in steps], [1.0] * len(steps), every)
    assert found.mean == pytest.approx(sum(t % every == 0 for t in range(1, sum(steps) + 1)))
    assert found.noise == pytest.approx(2.0 * math.sqrt(sum(steps)))
    assert found.std == 0.0


def test_the_law_against_simulation() -> None:
    rng = np.random.default_rng(1)
    mixture = Mixture.poisson(2, 0.3, 1.5)
    found = end_to_end([(mixture, 20)], [1.0], 4)
    drawn = rng.binomial(2, 0.3, size=(5, 20_000)).sum(0) + 1.5 * rng.standard_normal((20, 20_000)).sum(0)
    mean, std = found.law().moments()[2:]
    ratios = found.log_ratio(drawn)
    assert abs(ratios.mean() - mean) < 5 * std / 20_000**0.5
    assert abs(ratios.std() / std - 1) < 0.03


def test_what_is_hidden_shows_less_and_still_conforms(tmp_path: Path) -> None:
    """Mu 3, and 3 / 5 where one of five steps speaks: what is shown is below either, and less of the second."""
    shown = []
    for every in (1, 5):
        audit = audited(
            tmp_path,
            "threat_model={access: final-model, group_size: 1}",
            "claims.four.group_size=1",
            "mechanism.noise_multiplier=1.054",
            "mechanism.sampling={scheme: full}",
            f"audit.canary={{space: gradient, count: 200, every: {every}}}",
        )
        assert not [c for c in audit.checks if c.p_value is not None and c.p_value < 1e-6]
        shown += [f.value for f in audit.findings if f.quantity == "mu" and f.bound == "lower"]
    assert 0.2 < shown[0] < 3.0
    assert shown[1] < min(0.6, shown[0])
