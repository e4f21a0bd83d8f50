"""Per-example gradients, norms and clipped sums of all sorts of structures against one backward pass per record.

In float64, where a rule that is right agrees to ten digits and more, and records near a kink of ReLU do not matter.
"""

from __future__ import annotations

import pytest
import torch
from support.layers import CASES, made
from torch import nn
from torch.nn import functional

from dpspec.training.gradients.clipping import Flat, PerLayer
from dpspec.training.gradients.flat_model import load
from dpspec.training.gradients.ghost import PerExample
from dpspec.training.gradients.ghost_parameters import Lookup, Outer, Rows
from dpspec.training.gradients.persample import FlatModel


def one_by_one(model, x, y):
    """The slow obvious way."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = []
    for i in range(len(x)):
        loss = functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = (torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True))
        found.append(torch.cat([g.flatten() for g in flat]))
    return torch.stack(found)


def close(a, b, digits=10):
    return torch.allclose(a, b, rtol=10.0**-digits, atol=10.0**-digits)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # operations that vmap takes record by record
@pytest.mark.parametrize(
    ("name", "vmapped"), [(name, False) for name in CASES] + [(name, True) for name, case in CASES.items() if case[3]]
)
def test_equal_to_a_plain_loop(name, vmapped, monkeypatch):
    if vmapped:
        monkeypatch.setattr("dpspec.training.gradients.persample.record_by_record", lambda model: False)
    model, x, y, without, together = made(name)
    expected = one_by_one(model, x, y)
    flat = FlatModel(model, budget=None if vmapped else 1000)
    state = flat.initial()
    assert close(flat.rows(state, x, y), expected)
    norms = expected.norm(dim=1)
    assert close(flat.norms(state, x, y), norms)
    clip = float(norms.median())
    clipped = flat.clipped_sum(state, x, y, Flat(clip))
    assert close(clipped.sum, (expected * (clip / norms).clamp(max=1.0)[:, None]).sum(0), 6)
    assert float(clipped.norms.max()) <= clip
    names = dict(model.named_parameters())
    assert set(names) - flat._examples.covered == without
    assert flat._examples.together == (together and not vmapped)


def test_clipped_by_layer():
    model, x, y, _, _ = made("convolutions")
    expected, flat = one_by_one(model, x, y), FlatModel(model)
    got = flat.clipped_sum(flat.initial(), x, y, PerLayer(0.05))
    layers = {}
    for name, rows in flat.layout.split(expected).items():
        layers.setdefault(name.split(".")[0], []).append(rows.flatten(1))
    parts = [torch.cat(rows, dim=1) for rows in layers.values()]
    bound = 0.05 / len(parts) ** 0.5
    summed = [(part * (bound / part.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0) for part in parts]
    assert close(got.sum, torch.cat(summed), 6)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("dense", {"0.weight": Outer, "0.bias": Rows, "2.weight": Outer}),
        ("sequence, factors", {"0.weight": Outer, "3.weight": Outer}),
        ("sequence, rows", {"0.weight": Rows, "3.weight": Outer}),
        ("convolution, factors", {"0.weight": Outer, "0.bias": Rows}),
        ("convolutions", {"0.weight": Rows, "1.weight": Rows}),
        ("table", {"table.weight": Lookup, "head.weight": Outer}),
        ("used twice", {"body.weight": Rows, "head.weight": Outer}),
        ("coupled", {"head.weight": Outer}),
    ],
)
def test_written_out_only_where_factors_do_not_pay(name, kinds):
    model, x, y, _, _ = made(name)
    flat = FlatModel(model)
    flat.norms(flat.initial(), x, y)
    parameters = flat.layout.unflatten(flat.initial())
    found, _ = flat._examples.gradients(parameters, x, y)
    assert {n: type(found[n]) for n in kinds} == kinds
    written = sum(p.nbytes for n, p in parameters.items() if isinstance(found[n], Rows))
    assert flat._examples.written == written


@pytest.mark.parametrize("name", ["dense", "convolutions", "table", "used twice", "coupled"])
def test_squares_are_those_of_the_gradients(name):
    """Measured on the way back, or, of what is used twice or in ways without a rule, afterwards."""
    model, x, y, _, _ = made(name)
    flat = FlatModel(model)
    flat.norms(flat.initial(), x, y)
    parameters = flat.layout.unflatten(flat.initial())
    gradients, outputs = flat._examples.gradients(parameters, x, y)
    squares, again = flat._examples.squares(parameters, x, y)
    assert squares.keys() == gradients.keys()
    assert all(torch.equal(squares[n], gradients[n].squares()) for n in gradients)
    assert torch.equal(outputs, again)


@pytest.mark.parametrize("frozen", [("0.weight", "4.weight"), ("1.bias", "7.weight", "7.bias"), ("0.weight", "0.bias")])
def test_frozen_parameters_are_constants(frozen):
    model, x, y, _, _ = made("convolutions")
    for name, p in model.named_parameters():
        p.requires_grad_(name not in frozen)
    flat = FlatModel(model)
    assert close(flat.rows(flat.initial(), x, y), one_by_one(model, x, y))
    assert set(frozen).isdisjoint(flat.layout.names)


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
    assert close(flat.norms(state, x, y), expected.norm(dim=1))
    assert {id(p) for p in model.parameters()} == before  # the module is as it was
    other = state + 0.1
    moved = make().double()
    moved[0].weight.requires_grad_(not frozen)
    moved.load_state_dict(model.state_dict())
    load(moved, other)
    assert close(flat.rows(other, x, y), one_by_one(moved, x, y))
    assert close(flat.logits(other, x), moved(x))


def test_hooks_and_other_layers_bring_vmap_back():
    """A hook may couple records: what it does is done to each record alone."""
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


def test_losses_of_ones_own():
    model, x, y, _, _ = made("dense")

    def loss(outputs, labels):
        assert len(outputs) == len(labels) == 1
        return functional.cross_entropy(2.0 * outputs, labels, label_smoothing=0.1)

    flat = FlatModel(model, loss=loss)
    expected = []
    for i in range(len(x)):
        gradients = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        expected.append(torch.cat([g.flatten() for g in gradients]))
    assert close(flat.rows(flat.initial(), x, y), torch.stack(expected))


def test_no_gradient_mode_and_global_generators_are_left_alone():
    model, x, y, _, _ = made("convolutions")
    flat = FlatModel(model)
    state = torch.random.get_rng_state()
    with torch.no_grad():
        clipped = flat.clipped_sum(flat.initial(), x, y, 1.0)
        assert not torch.is_grad_enabled()
    assert not clipped.sum.requires_grad
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


def test_the_trial_pass_takes_one_record():
    model, x, y, _, _ = made("dense")
    seen = []

    def forward(parameters, x):
        seen.append(len(x))
        return torch.func.functional_call(model, dict(parameters), (x,))

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    examples = PerExample(forward, functional.cross_entropy, parameters, x[:1], y[:1], together=True)
    examples.gradients(parameters, x, y)
    assert seen == [1, 7]
