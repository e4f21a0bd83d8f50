"""Losses: their formulas, gradients by every path, executed runs, and the refusal of losses that mix records."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import mpmath
import pytest
import torch
from support.layers import one_by_one
from support.seen_run import SeenRun
from torch import nn

from dpspec.contract import ModelError
from dpspec.training.gradients.persample import Clipper, FlatModel, per_example_gradients
from dpspec.training.gradients.stacked_models import StackedModel
from dpspec.training.loop.native import NativeTrainer, train_many
from dpspec.training.losses import SeparateLoss, binary_cross_entropy, checked_loss, cross_entropy, huber, squared_error
from dpspec.training.measure.residuals import Residuals

pytestmark = pytest.mark.rounding


def softmax_entropy(outputs, target, smoothing=0.0):
    total = mpmath.fsum(mpmath.exp(o) for o in outputs)
    weights = [(k == target) * (1 - mpmath.mpf(smoothing)) + mpmath.mpf(smoothing) / len(outputs) for k in range(3)]
    return -mpmath.fsum(w * (o - mpmath.log(total)) for w, o in zip(weights, outputs, strict=True))


def sigmoid_entropy(outputs, target, smoothing=0.0):
    weights = [(k == target) * (1 - mpmath.mpf(smoothing)) + mpmath.mpf(smoothing) / 2 for k in range(3)]
    terms = [w * mpmath.log1p(mpmath.exp(-o)) for w, o in zip(weights, outputs, strict=True)]
    return mpmath.fsum(terms + [(1 - w) * mpmath.log1p(mpmath.exp(o)) for w, o in zip(weights, outputs, strict=True)])


@pytest.mark.parametrize("outputs", [(0.0, 0.0, 0.0), (1.5, -2.0, 0.25), (80.0, -80.0, 3.0), (1e4, -1e4, 0.0)])
def test_the_formulas_equal_high_precision(outputs):
    mpmath.mp.dps = 60
    x, exact = torch.tensor([outputs] * 3), [mpmath.mpf(o) for o in outputs]
    labels = torch.arange(3)
    for smoothing in (0.0, 0.1, 1.0):
        for loss, formula in ((cross_entropy, softmax_entropy), (binary_cross_entropy, sigmoid_entropy)):
            values = loss(x, labels, label_smoothing=smoothing).tolist()
            assert values == pytest.approx([float(formula(exact, k, smoothing)) for k in range(3)], rel=1e-5, abs=1e-5)
    squares = [float(mpmath.fsum((o - (k == target)) ** 2 for k, o in enumerate(exact))) for target in range(3)]
    assert squared_error(x, labels).tolist() == pytest.approx(squares, rel=1e-5)


@pytest.mark.parametrize("difference", [0.0, 1e-3, -0.5, 0.5, 2.0, -1e4, 1e18])
def test_losses_of_real_targets_equal_high_precision(difference):
    mpmath.mp.dps = 60
    outputs, targets = torch.tensor([[difference, 7.0]]), torch.tensor([0.0])
    exact = mpmath.mpf(float(outputs[0, 0]))
    assert squared_error(outputs, targets).tolist() == pytest.approx([float(exact**2)], rel=1e-6)
    for threshold in (0.5, 1.0, 3.0):
        bent = exact**2 / 2 if abs(exact) <= threshold else threshold * (abs(exact) - mpmath.mpf(threshold) / 2)
        assert huber(outputs, targets, threshold=threshold).tolist() == pytest.approx([float(bent)], rel=1e-6)


def focal(outputs, targets, gamma=2.0):
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return (1.0 - (-losses).exp()) ** gamma * losses


#: Losses of real-valued targets.
REAL = {"huber": partial(huber, threshold=0.3), "real": squared_error}

LOSSES = {"squared": squared_error, "smooth": partial(cross_entropy, label_smoothing=0.3), "focal": SeparateLoss(focal)}


@pytest.mark.parametrize("name", [*LOSSES, *REAL])
def test_gradients_of_a_record_equal_autograd_by_every_path(name, make_model, rows):
    model, (x, y), loss = make_model("mlp"), rows("mlp", 7), {**LOSSES, **REAL}[name]
    y = 0.3 * y.float() if name in REAL else y
    expected = one_by_one(model, x, y, loss)
    for wrapped in (model, nn.Sequential(model, type("Own", (nn.Module,), {"forward": lambda self, x: x})())):
        flat = FlatModel(wrapped, loss=loss)
        torch.testing.assert_close(per_example_gradients(flat, x, y), expected, rtol=1e-4, atol=1e-6)
        clipped = flat.clipped_sum(flat.initial(), x, y, 0.5)
        scale = (0.5 / expected.norm(dim=1, keepdim=True)).clamp(max=1.0)
        torch.testing.assert_close(clipped.sum, (expected * scale).sum(0), rtol=1e-4, atol=1e-5)
        assert float(clipped.norms.max()) <= 0.5
    stacked, states = StackedModel(model, x, y, loss), flat.initial().expand(2, -1)
    sums = torch.zeros_like(states)
    both = x.expand(2, *x.shape), y.expand(2, -1)
    stacked.add_clipped(sums, states, *both, torch.ones(2, 7, dtype=torch.bool), Clipper(0.5))
    torch.testing.assert_close(sums[1], clipped.sum, rtol=1e-4, atol=1e-5)


@pytest.mark.family
@pytest.mark.parametrize("name", [*LOSSES, *REAL])
def test_a_run_trains_with_its_loss_and_only_its_own_residuals_are_noise(name, make_job):
    loss = {**LOSSES, **REAL}[name]
    job, seen = make_job(loss=loss, steps=20, noise_multiplier=0.3, sampling={"scheme": "full"}), SeenRun()
    job = replace(job, y=0.3 * job.y.astype("float32")) if name in REAL else job
    residuals = Residuals(job), Residuals(replace(job, loss=squared_error if name == "huber" else None))
    if name == "real":
        residuals = residuals[0], Residuals(replace(job, loss=REAL["huber"]))
    NativeTrainer().train(replace(job, observers=(seen, *residuals)))
    noise, gradients = torch.stack(seen.noise), [-20.0 * (b - a) for a, b in pairwise(seen.states)]
    model = FlatModel.of(job)
    for state, moved, drawn in zip(seen.states, gradients, noise, strict=False):
        clipped = model.clipped_sum(state, torch.tensor(job.x), torch.tensor(job.y), 1.0)
        torch.testing.assert_close(moved, clipped.sum + drawn, rtol=1e-3, atol=1e-3)
    own, other = (residual.noise_scale() for residual in residuals)
    deviations = [(scale.statistic - scale.degrees) / math.sqrt(2 * scale.degrees) for scale in (own, other)]
    assert abs(deviations[0]) < 5.0 < deviations[1]


def test_runs_together_have_one_loss(make_job):
    jobs = [make_job(loss=squared_error, seed=seed) for seed in (1, 2)]
    alone = [make_job(loss=squared_error, seed=seed) for seed in (1, 2)]
    train_many(NativeTrainer(), jobs)
    for job, single in zip(jobs, alone, strict=True):
        NativeTrainer().train(single)
        for together, apart in zip(job.model.parameters(), single.model.parameters(), strict=True):
            torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="loss"):
        train_many(NativeTrainer(), [*jobs, make_job()])


def in_place(outputs, targets):
    targets.zero_()
    return cross_entropy(outputs, targets)


MEAN: list[torch.Tensor] = []


def running_mean(outputs, targets):
    MEAN.append(outputs.detach().mean())
    return cross_entropy(outputs, targets) * sum(MEAN)


REFUSED = {
    "memory": (running_mean, "remembers earlier records"),
    "mean": (lambda o, t: cross_entropy(o, t).mean(), "returns one value for the batch, and 5 records need shape"),
    "pairs": (lambda o, t: o, r"returns shape \[5, 4\]"),
    "number": (lambda o, t: 3.0, "returns a float"),
    "nan": (lambda o, t: cross_entropy(o, t) * math.nan, "infinite or NaN"),
    "centred": (lambda o, t: cross_entropy(o - o.mean(0), t), "mixes records"),
    "normalized": (lambda o, t: cross_entropy(o, t) / cross_entropy(o, t).sum().detach(), "mixes records"),
    "rank": (lambda o, t: cross_entropy(o, t) * torch.arange(len(o)), "mixes records"),
    "neighbor": (lambda o, t: cross_entropy(o, t.roll(1)), "mixes records"),
    "balanced": (lambda o, t: cross_entropy(o, t) * (t == t[:1]).sum(), "mixes records"),
    "gradient": (lambda o, t: cross_entropy(o - o.mean(0) + o.mean(0).detach(), t), "mixes records"),
    "hardest": (lambda o, t: cross_entropy(o, t) * (cross_entropy(o, t) >= cross_entropy(o, t).max()), "mixes records"),
    "random": (lambda o, t: cross_entropy(nn.functional.dropout(o, 0.5), t), "draws random numbers"),
    "constant": (lambda o, t: o.detach().sum(1), "differentiable"),
    "in place": (in_place, "changes its targets"),
    "item": (lambda o, t: torch.stack([r[0] * r[0].item() for r in o]), "vmap does not support"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_is_no_function_of_the_record_alone_is_refused(name):
    function, message = REFUSED[name]
    before = torch.get_rng_state()
    with pytest.raises(ModelError, match=message):
        checked_loss(function, 4)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("function", [focal, squared_error, binary_cross_entropy, cross_entropy])
def test_a_checked_loss_cannot_mix_records(function):
    loss, x, y = checked_loss(function, 4), torch.randn(6, 4), torch.arange(6) % 4
    torch.testing.assert_close(loss(x, y), function(x, y))
    assert loss(x[:0], y[:0]).shape == (0,)
    only_alone = SeparateLoss(lambda o, t: cross_entropy(o - o.mean(0), t))
    torch.testing.assert_close(only_alone(x, y), torch.full((6,), math.log(4.0)))


def test_losses_of_real_targets_are_checked_with_them():
    loss = checked_loss(lambda o, t: (o[:, 0] - t).abs(), 1)
    assert loss(torch.tensor([[2.0], [0.0]]), torch.tensor([0.5, 0.25])).tolist() == [1.5, 0.25]
    with pytest.raises(ModelError, match="mixes records"):
        checked_loss(lambda o, t: (o[:, 0] - t.mean()).abs(), 1)


def test_losses_of_probabilities_may_be_undefined_elsewhere():
    loss = checked_loss(lambda o, t: -o.log().gather(1, t[:, None])[:, 0], 4)
    assert loss(torch.full((2, 4), 0.25), torch.arange(2)).tolist() == pytest.approx([math.log(4.0)] * 2)
