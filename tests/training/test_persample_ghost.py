"""Per-example gradients by rules, compared with written-out gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.layers import CASES, TOGETHER, made, one_by_one
from torch import nn
from torch.nn import functional

from dpspec.training.gradients import ghost_calls
from dpspec.training.gradients.flat_model import load
from dpspec.training.gradients.ghost_calls import (
    Convolution,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    Lookup,
    Outer,
    Rows,
    gram_pays,
    gram_squares,
    squares_of,
)
from dpspec.training.gradients.persample import Clipper, FlatModel

pytestmark = pytest.mark.rounding


def close(a, b, digits=10):
    return torch.allclose(a, b, rtol=10.0**-digits, atol=10.0**-digits)


@pytest.mark.family
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # operations that vmap takes record by record
@pytest.mark.parametrize(("name", "vmapped"), [(name, False) for name in CASES] + [(name, True) for name in TOGETHER])
def test_equal_to_a_plain_loop(name, vmapped, monkeypatch):
    if vmapped:
        monkeypatch.setattr("dpspec.training.gradients.persample.record_by_record", lambda model: False)
    model, x, y, without, together = made(name)
    expected = one_by_one(model, x, y)
    flat = FlatModel(model)
    if not vmapped:
        flat._sizes = dict.fromkeys(("rows", "sums", "norms"), 2)
    state = flat.initial()
    assert close(flat.rows(state, x, y), expected)
    norms = expected.norm(dim=1)
    assert close(flat.look(state, x, y)[0], norms)
    clip = float(norms.median())
    clipped = flat.clipped_sum(state, x, y, Clipper(clip))
    assert close(clipped.sum, (expected * (clip / norms).clamp(max=1.0)[:, None]).sum(0), 6)
    assert float(clipped.norms.max()) <= clip
    names = dict(model.named_parameters())
    assert set(names) - flat._examples.covered == without
    assert flat._examples.together == (together and not vmapped)


def twice():
    body = nn.Linear(6, 6)
    return nn.Sequential(body, nn.Tanh(), body, nn.Linear(6, 3))


def tied():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize(("make", "size"), [(twice, 42 + 21), (tied, 36 + 6 + 6 + 21)])
@pytest.mark.parametrize("frozen", [False, True])
def test_what_stands_in_two_places_has_one_gradient(make, size, frozen):
    model = make().double()
    model[0].weight.requires_grad_(not frozen)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    expected, before = one_by_one(model, x, y), {id(p) for p in model.parameters()}
    flat = FlatModel(model)
    state = flat.initial()
    assert flat.size == size - 36 * frozen
    assert close(flat.rows(state, x, y), expected)
    assert close(flat.look(state, x, y)[0], expected.norm(dim=1))
    assert {id(p) for p in model.parameters()} == before  # the module is as it was
    other = state + 0.1
    moved = make().double()
    moved[0].weight.requires_grad_(not frozen)
    moved.load_state_dict(model.state_dict())
    load(moved, other)
    assert close(flat.rows(other, x, y), one_by_one(moved, x, y))
    assert close(flat.logits(other, x), moved(x))


def test_hooks_and_other_layers_bring_vmap_back():
    """A hook may couple records, so it is applied to each record alone."""
    model, x, y, _, _ = made("dense")
    flat = FlatModel(model)
    before = flat.rows(flat.initial(), x, y)
    assert flat._examples.together
    hook = model[0].register_forward_hook(lambda module, inputs, output: output - 0.5 * output.mean(0))
    expected = one_by_one(model, x, y)
    assert not close(expected, before)
    assert close(flat.rows(flat.initial(), x, y), expected)
    assert not flat._examples.together
    hook.remove()
    assert close(flat.rows(flat.initial(), x, y), before)


SIZES = st.integers(1, 5)


def check(call, x, function, parameters, seed=0):
    """The call on x (b, k, ...) agrees with ``function(row, *parameters)``, one row (k, ...) after the other."""
    source = torch.Generator().manual_seed(seed)
    x = x.clone().requires_grad_(x.is_floating_point())
    inner = call.prepared(x.flatten(0, 1)).view(x.shape)
    y = call.forward(inner.detach())
    gradient = torch.randn(y.shape, generator=source, dtype=torch.float64)
    before, found = call.backward(inner.detach(), gradient, x.requires_grad)
    if x.requires_grad:
        (before,) = torch.autograd.grad(inner, x, before)
    weights = torch.rand(len(x), generator=source)
    for i, row in enumerate(x):
        row = row.detach().clone().requires_grad_(x.is_floating_point())
        ours = [p.detach().clone().requires_grad_() for p in parameters.values()]
        out = function(row, *ours)
        assert torch.allclose(out, y[i], atol=1e-10)
        inputs = [row, *ours] if x.is_floating_point() else ours
        gradients = list(torch.autograd.grad(out, inputs, gradient[i]))
        if x.is_floating_point():
            assert torch.allclose(gradients.pop(0), before[i], atol=1e-9)
        for name, expected in zip(parameters, gradients, strict=True):
            rows = found[name].rows()
            assert rows.shape == (len(x), *expected.shape)
            assert torch.allclose(rows[i], expected, atol=1e-9)
            assert float(found[name].squares()[i]) == pytest.approx(float(expected.square().sum()), rel=1e-11, abs=1e-9)
    for name, gradients in found.items():
        total = torch.ones_like(parameters[name])
        gradients.add(total, weights)
        rows = gradients.rows()
        assert torch.allclose(total, 1.0 + torch.einsum("b...,b->...", rows, weights.double()), atol=1e-8)
    return found


def names(**tensors):
    return {id(tensor): name for name, tensor in tensors.items() if tensor is not None}


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.lists(SIZES, min_size=0, max_size=2), SIZES, st.integers(1, 30), st.integers(1, 30), st.booleans(), SIZES)
def test_linear(axes, b, inputs, outputs, bias, seed):
    weight, shift = random(outputs, inputs, seed=seed), random(outputs, seed=seed + 1) if bias else None
    parameters = {"w": weight} | ({"b": shift} if bias else {})
    x = random(b, 1, *axes, inputs, seed=seed + 2)
    found = check(Linear(names(w=weight, b=shift), x, weight, shift), x, functional.linear, parameters)
    positions = int(torch.tensor([1, *axes]).prod())
    assert isinstance(found["w"], Outer if gram_pays(positions, outputs, inputs) else Rows)


@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 9))
def test_convolution(data, spatial, b, k, seed):
    groups = data.draw(st.integers(1, 2))
    width, depth = groups * data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2, 9]))
    three = st.tuples(*[st.integers(1, 3)] * spatial)
    kernel, stride, dilation = data.draw(three), data.draw(three), data.draw(three)
    padding = data.draw(st.tuples(*[st.integers(0, 2)] * spatial))
    more = data.draw(st.tuples(*[st.integers(0, 4)] * spatial))
    sides = [max(1, d * (s - 1) + 1 - 2 * p) + m for s, d, p, m in zip(kernel, dilation, padding, more, strict=True)]
    weight, shift = random(width, depth, *kernel, seed=seed), random(width, seed=seed + 1)
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[spatial - 1]
    x = random(b, k, groups * depth, *sides, seed=seed + 2)
    call = Convolution(names(w=weight, b=shift), x[:, 0], weight, shift, stride, padding, dilation, groups)
    assert call.supported

    def function(row, w, b):
        return convolve(row, w, b, stride, padding, dilation, groups)

    check(call, x, function, {"w": weight, "b": shift})


def test_convolution_by_factors():
    weight, x = random(30, 20, 3, 3, seed=0), random(4, 1, 20, 3, 4, seed=1)
    call = Convolution(names(w=weight), x[:, 0], weight, None, 2, 1)
    found = check(call, x, lambda row, w: functional.conv2d(row, w, None, 2, 1), {"w": weight})
    assert isinstance(found["w"], Outer)


@given(st.lists(SIZES, min_size=0, max_size=2), SIZES, st.integers(1, 6), SIZES, st.sampled_from([None, 0, -1]), SIZES)
def test_embedding(axes, b, count, width, padding, seed):
    """Few tokens, so that they come more than once in a record."""
    table = random(count, width, seed=seed)
    x = torch.randint(0, count, (b, 1, *axes), generator=torch.Generator().manual_seed(seed))
    call = Embedding(names(w=table), x, table, padding)
    found = check(call, x, lambda row, w: functional.embedding(row, w, padding), {"w": table})
    assert isinstance(found["w"], Lookup)


@given(st.lists(SIZES, min_size=0, max_size=3), SIZES, st.integers(1, 2), st.integers(1, 3), st.integers(1, 3), SIZES)
def test_group_norm(sides, b, k, groups, each, seed):
    if each * int(torch.tensor([1, *sides]).prod()) == 1:
        each = 2  # one value has no spread, and torch refuses
    weight, shift = random(groups * each, seed=seed), random(groups * each, seed=seed + 1)
    x = random(b, k, groups * each, *sides, seed=seed + 2)
    call = GroupNorm(names(w=weight, b=shift), x, groups, weight, shift, 1e-3)
    check(call, x, lambda row, w, s: functional.group_norm(row, groups, w, s, 1e-3), {"w": weight, "b": shift})


@given(st.lists(SIZES, min_size=0, max_size=2), st.lists(SIZES, min_size=1, max_size=2), SIZES, st.booleans(), SIZES)
def test_layer_norm(axes, shape, b, bias, seed):
    weight, shift = random(*shape, seed=seed), random(*shape, seed=seed + 1) if bias else None
    parameters = {"w": weight} | ({"b": shift} if bias else {})
    x = random(b, 1, *axes, *shape, seed=seed + 2)
    call = LayerNorm(names(w=weight, b=shift), x, shape, weight, shift, 1e-3)
    check(call, x, lambda row, w, s=None: functional.layer_norm(row, shape, w, s, 1e-3), parameters)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 40), st.integers(0, 99), st.floats(0.0, 8.0))
def test_norms_by_inner_products_are_never_below_the_truth(positions, depth, width, seed, cancelled):
    """Even where positions cancel to 10^-8 of their length, which leaves float64 without a digit of the square."""
    a, b = random(2, positions, depth, seed=seed).float(), random(2, positions, width, seed=seed + 1).float()
    a = torch.cat([a, a], dim=1)
    b = torch.cat([b, -b * (1.0 - 10.0**-cancelled)], dim=1)
    exact = torch.bmm(b.double().transpose(1, 2), a.double())
    lengths = (a.double().norm(dim=2) * b.double().norm(dim=2)).sum(1)
    squares = gram_squares(a, b)
    truth = exact.square().sum((1, 2))
    assert bool((squares >= truth - 1e-30).all())
    assert bool((squares.sqrt() <= truth.sqrt() + 2e-6 * lengths).all())


def test_inputs_are_unfolded_a_few_records_at_a_time_and_gradients_stay_the_same(monkeypatch):
    """Each record's gradient is a separate product, independent of the other records."""
    source = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 2, 3, 3, generator=source)
    x, gradient = torch.randn(7, 1, 2, 8, 8, generator=source), torch.randn(7, 1, 6, 8, 8, generator=source)
    call = Convolution(names(weight=weight), x[:, 0], weight, None, 1, 1)
    whole = call.backward(x, gradient, False)[1]["weight"].rows()
    seen = []
    product = Convolution._product
    monkeypatch.setattr(Convolution, "_product", lambda self, x, g: seen.append(len(x)) or product(self, x, g))
    monkeypatch.setattr(ghost_calls, "_UNFOLDED", 3 * 4 * 18 * 64)
    found = call.backward(x, gradient, False)[1]["weight"].rows()
    assert seen == [3, 3, 1]
    assert torch.allclose(found, whole, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(ghost_calls, "_UNFOLDED", 1)
    squares = call.backward(x, gradient, False)[1]["weight"].squares()
    assert seen == [3, 3, 1] + [1] * 7
    assert torch.allclose(squares, squares_of(whole), rtol=1e-5)
