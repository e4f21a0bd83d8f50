"""Per-example gradients by rules, compared with written-out gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.layers import CASES, TOGETHER, made, one_by_one
from torch import nn

from dpspec.training.gradients import ghost_calls
from dpspec.training.gradients.flat_model import load
from dpspec.training.gradients.ghost_calls import (
    Convolution,
    gram_squares,
    squares_of,
)
from dpspec.training.gradients.persample import Clipper, FlatModel

pytestmark = pytest.mark.rounding


def close(a, b, digits=10):
    return torch.allclose(a, b, rtol=10.0**-digits, atol=10.0**-digits)


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


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 40), st.integers(0, 99), st.floats(0.0, 8.0))
def test_norms_by_inner_products_are_never_below_the_truth(positions, depth, width, seed, cancelled):
    """Even where positions cancel to 10^-8 of their length, which leaves float64 without a digit of the square."""
    source = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(2, positions, size, generator=source) for size in (depth, width))
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
    call = Convolution({id(weight): "weight"}, x[:, 0], weight, None, 1, 1)
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
