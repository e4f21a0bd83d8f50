"""Updates equal those of ``torch.optim`` on the noisy mean gradient, and inverted updates are exact."""

from functools import partial
from math import sqrt

import numpy as np
import pytest
import torch

from dpspec.contract import FrozenMap
from dpspec.training.loop.optimizers import Sgd, update_of
from dpspec.training.providers import Rates

STEPS, SIZE, DIVISOR = 30, 50, 8.0

OPTIMIZERS = {
    "sgd": {"kind": "sgd"},
    "sgd-decay": {"kind": "sgd", "weight_decay": 0.01},
    "momentum": {"kind": "momentum"},
    "momentum-decay": {"kind": "momentum", "momentum": 0.5, "weight_decay": 0.02},
    "adam": {"kind": "adam"},
    "adam-decay": {"kind": "adam", "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.05},
}
INVERTIBLE = [name for name in OPTIMIZERS if "adam" not in name]


def made(name, reduction="mean", schedule=None):
    options = {"learning_rate": 0.1, "reduction": reduction, "optimizer": OPTIMIZERS[name], "schedule": schedule}
    return update_of(FrozenMap(options), DIVISOR, STEPS)


def sums(dtype=torch.float64, seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.randn(STEPS, SIZE, generator=source, dtype=dtype) * DIVISOR + 1.0


def theirs(name, parameter):
    given = dict(OPTIMIZERS[name])
    decay = given.pop("weight_decay", 0.0)
    match given.pop("kind"):
        case "adam":
            betas = given.get("beta1", 0.9), given.get("beta2", 0.999)
            return torch.optim.Adam([parameter], lr=0.1, betas=betas, eps=given.get("eps", 1e-8), weight_decay=decay)
        case "momentum":
            given.setdefault("momentum", 0.9)
    return torch.optim.SGD([parameter], lr=0.1, weight_decay=decay, **given)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_torch_does(name, reduction):
    update = made(name, reduction)
    state = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    parameter = state.clone().requires_grad_()
    other = theirs(name, parameter)
    for noisy in sums():
        parameter.grad = noisy / (DIVISOR if reduction == "mean" else 1.0)
        other.step()
        state = update(state, noisy)
        assert torch.allclose(state, parameter.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("schedule", [None, {"kind": "cosine", "warmup": 5}])
@pytest.mark.parametrize("name", INVERTIBLE)
def test_an_adversary_who_sees_all_models_inverts_updates(name, schedule):
    """In float64 to 1e-10; in float32 within the bound that comes with it, which is far below the sums themselves."""
    for dtype in (torch.float64, torch.float32):
        update, observer = made(name, schedule=schedule), made(name, schedule=schedule)
        assert isinstance(observer, Sgd)
        state = torch.linspace(-1, 1, SIZE, dtype=dtype)
        for noisy in sums(dtype):
            before, state = state, update(state, noisy)
            undone = observer.invert(before, state)
            error = float((undone.noisy - noisy).double().norm())
            assert error <= undone.rounding
            assert undone.rounding < (1e-10 if dtype == torch.float64 else 0.02) * DIVISOR * sqrt(SIZE)


def test_the_bound_on_rounding_holds_where_updates_are_lost_in_it():
    """Large parameters absorb small updates: the bound covers the rounding of every step."""
    rates = Rates(peak=1e-6, total=STEPS)
    momentum = {"momentum": 0.9}
    for given in ({}, momentum, {**momentum, "weight_decay": 0.1}):
        rule = partial(Sgd, **given)
        update, observer = rule(rates, 1.0), rule(rates, 1.0)
        state = torch.full((SIZE,), 1000.0)
        for noisy in sums(torch.float32):
            before, state = state, update(state, noisy)
            undone = observer.invert(before, state)
            assert float((undone.noisy - noisy).double().norm()) <= undone.rounding


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_memory_goes_on(name):
    whole, first, second = made(name), made(name), made(name)
    rows = sums(torch.float32)
    state = expected = torch.ones(SIZE)
    for noisy in rows:
        expected = whole(expected, noisy)
    for noisy in rows[:10]:
        state = first(state, noisy)
    second.restore({key: np.array(value) for key, value in first.state().items()})
    for noisy in rows[10:]:
        state = second(state, noisy)
    assert torch.equal(state, expected)
