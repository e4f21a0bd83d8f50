"""Oracles: exact probabilities, rational arithmetic, and sums with and without a record."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpspec.contract import FrozenMap, Observer, TrainingJob
from dpspec.training.discrete_gaussian import (
    DISCRETE_SCALE,
    IntegerClipper,
    IntegerContributions,
    bernoulli_exp,
    discrete_gaussian,
    uniform_below,
)
from dpspec.training.gradients.persample import Clipper, FlatModel
from dpspec.training.loop.native import NativeTrainer

#: A correct implementation fails a test with this probability.
LEVEL = 1e-6


def source(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("scale", [1, 2, 7])
def test_probabilities_are_those_of_the_discrete_gaussian(scale: int) -> None:
    drawn, edge = discrete_gaussian(60_000, scale, source(scale)), 3 * scale
    counts = np.bincount(drawn.clamp(-edge - 1, edge + 1).numpy() + edge + 1, minlength=2 * edge + 3)
    x = np.arange(-40 * scale, 40 * scale + 1)
    law = np.exp(-0.5 * (x / scale) ** 2)
    law /= law.sum()
    inner = [law[np.flatnonzero(x == value)[0]] for value in range(-edge, edge + 1)]
    expected = np.array([law[x < -edge].sum(), *inner, law[x > edge].sum()]) * len(drawn)
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > LEVEL


def test_the_fine_grid_is_normal_and_its_low_bits_are_uniform() -> None:
    drawn = discrete_gaussian(100_000, DISCRETE_SCALE, source())
    assert stats.kstest(drawn.double().numpy() / DISCRETE_SCALE, "norm").pvalue > LEVEL
    low = np.bincount((drawn % 256).numpy(), minlength=256)
    assert stats.chisquare(low).pvalue > LEVEL
    assert drawn.abs().max() > 3.5 * DISCRETE_SCALE
    assert len(discrete_gaussian(0, 5, source())) == 0


@pytest.mark.parametrize("bound", [1, 2, 3, 7])
def test_uniform_integers(bound: int) -> None:
    counts = np.bincount(uniform_below(torch.full((20_000,), bound), source()).numpy(), minlength=bound)
    assert len(counts) == bound
    assert bound == 1 or stats.chisquare(counts).pvalue > LEVEL


def test_uniform_integers_below_a_large_bound_are_not_a_biased_remainder() -> None:
    """Words modulo 3 * 2^60 alone would be below 2^60 with probability 1/2, not 1/3."""
    low = int((uniform_below(torch.full((20_000,), 3 * 2**59), source()) < 2**59).sum())
    assert stats.binomtest(low, 20_000, 1.0 / 3.0).pvalue > LEVEL


@pytest.mark.parametrize(
    ("numerator", "denominator"), [(0, 5), (5, 5), (1, 10**12), (13, 5), (1, 3), (2**41 - 1, 2**41)]
)
def test_events_of_probability_exp(numerator: int, denominator: int) -> None:
    happened = int(bernoulli_exp(torch.full((20_000,), numerator), denominator, source(4)).sum())
    assert stats.binomtest(happened, 20_000, math.exp(-numerator / denominator)).pvalue > LEVEL
    assert numerator or happened == 20_000


@pytest.mark.parametrize("scale", [0, DISCRETE_SCALE + 1])
def test_scale_outside_the_exact_range_is_refused(scale: int) -> None:
    with pytest.raises(ValueError, match="scale must be"):
        discrete_gaussian(1, scale, source())


@pytest.mark.parametrize("sigma", [0.01, 0.3, 1.0, 1000.0])
def test_contributions_are_never_longer_than_the_sensitivity(sigma: float) -> None:
    clip = IntegerClipper.of(Clipper(0.7), sigma)
    most = (Fraction(DISCRETE_SCALE) / Fraction(sigma)) ** 2
    torch.manual_seed(0)
    for gradient in (torch.randn(500), torch.ones(500) / 500**0.5, torch.eye(500)[3], 1.001 * torch.eye(500)[0]):
        clipped = 0.7 * gradient / torch.linalg.vector_norm(gradient) * 1.00001  # as if rounding had left it too long
        integers = clip.integers(clipped)
        square = sum(int(value) ** 2 for value in integers)
        assert square <= most
        assert (integers.abs() <= clipped.double().abs() / clip.grid + 1e-6).all()
        if sigma <= 1.0:
            assert square >= 0.999 * float(most)
    assert not clip.integers(torch.zeros(3)).any()


def small() -> tuple[nn.Module, np.ndarray, np.ndarray]:
    torch.manual_seed(1)
    rng = np.random.default_rng(5)
    return nn.Linear(6, 3), rng.normal(size=(40, 6)).astype(np.float32), rng.integers(0, 3, 40)


def test_a_record_moves_the_sum_by_its_own_integers_alone() -> None:
    """Also the last bits: a sum of float32 gradients moves by other amounts for other companions."""
    model, x, y = small()
    flat = FlatModel(model)
    contributions = IntegerContributions(flat, torch.tensor(x), torch.tensor(y))
    clip, state = IntegerClipper.of(Clipper(0.5), 1.0), flat.initial()

    def total(records: list[int]) -> torch.Tensor:
        return contributions(state, torch.tensor(records, dtype=torch.int64), clip).sum

    alone = total([7])
    assert total([]).dtype == torch.int64
    assert not total([]).any()
    assert alone.any()
    for others in ([0], [1, 2, 3], [*range(7), *range(8, 40)]):
        assert torch.equal(total(sorted([*others, 7])) - total(others), alone)
    norms = contributions(state, torch.arange(40), clip).norms
    assert norms.shape == (40,)
    assert (norms <= 0.5).all()
    assert norms.max() > 0.499


class Released(Observer):
    def __init__(self) -> None:
        self.states: list[torch.Tensor] = []
        self.noise: list[torch.Tensor] = []

    def noised(self, step: int, noise: torch.Tensor) -> None:
        self.noise.append(noise.clone())

    def released(self, step: int, state: torch.Tensor) -> None:
        self.states.append(state.clone())


def test_a_training_releases_the_noisy_integers() -> None:
    model, x, y = small()
    observer = Released()
    phase = {"steps": 3, "noise": "discrete-gaussian", "noise_multiplier": 2.0, "clip_norm": 0.5}
    phase["sampling"] = {"scheme": "full"}
    job = TrainingJob(
        model=model,
        x=x,
        y=y,
        phases=(FrozenMap(phase),),
        options=FrozenMap({"learning_rate": 40.0, "reduction": "mean"}),
        seed=3,
        device="cpu",
        expected_batch_size=40.0,
        observers=(observer,),
    )
    flat = FlatModel(model)
    first = flat.initial()
    NativeTrainer().train_many([job])
    grid = 2.0 * 0.5 / DISCRETE_SCALE
    sums = flat.clipped_sum(first, torch.tensor(x), torch.tensor(y), 0.5).sum
    moved = (first - observer.states[1]).double()  # the learning rate is the divisor
    assert torch.allclose(moved, (sums + observer.noise[0]).double(), atol=40 * grid + 1e-6)
    assert len(observer.noise) == 3
    assert not torch.equal(observer.noise[0], observer.noise[1])
    multiples = observer.noise[0].double() / grid
    assert torch.allclose(multiples, multiples.round(), atol=0.3)  # float32 has 24 bits
