"""Learning rates by step, by hand and against torch's schedulers."""

import pytest
import torch

from dpspec.training.loop.learning_rates import Rates, rates_of


def series(total=10, **schedule):
    rates = rates_of({"learning_rate": 2.0, "schedule": schedule or None}, total)
    return [rates(step) for step in range(1, total + 1)]


def test_without_a_schedule_it_stays():
    assert series() == [2.0] * 10
    assert series(kind="constant", warmup=4) == [0.5, 1.0, 1.5] + [2.0] * 7


def test_linear_and_cosine_fall_towards_their_end():
    assert series(5, kind="linear", warmup=1, final=0.5) == pytest.approx([2.0, 2.0, 1.75, 1.5, 1.25])
    assert series(4, kind="cosine", final=1.0) == [2.0] * 4


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_as_torch_does(name):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    schedulers = torch.optim.lr_scheduler
    theirs = {
        "linear": lambda: schedulers.LinearLR(optimizer, start_factor=1.0, end_factor=0.25, total_iters=10),
        "cosine": lambda: schedulers.CosineAnnealingLR(optimizer, T_max=10, eta_min=0.5),
    }[name]()
    for rate in series(10, kind=name, final=0.25):
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_no_rate_is_zero_and_none_is_missing(kind):
    for total, warmup in ((1, 0), (1, 5), (3, 3), (4, 3)):
        rates = Rates(peak=1.0, total=total, kind=kind, warmup=warmup)
        assert all(0.0 < rates(step) <= 1.0 for step in range(1, total + 5))
        assert rates(total + 4) == rates(total)
