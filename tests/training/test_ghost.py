"""Per-example gradients, norms and clipped sums of all sorts of structures against one backward pass per record.

In float64, where a rule that is right agrees to ten digits and more, and records near a kink of ReLU do not matter.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from dpspec.training.clipping import Flat, PerLayer
from dpspec.training.flat import load
from dpspec.training.ghost import PerExample
from dpspec.training.ghost_gradients import Lookup, Outer, Rows
from dpspec.training.persample import FlatModel


class Net(nn.Module):
    """Layers by name, and any function of them and the records."""

    def __init__(self, run, **parts):
        super().__init__()
        self._run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self._run(self, x)


def linear_used_twice(m, x):
    return m.head(torch.tanh(m.body(torch.tanh(m.body(x)))))


def tied_table(m, x):
    return functional.linear(m.table(x.long()).mean(1).tanh(), m.table.weight)


def also_elsewhere(m, x):
    return m.head(x) + m.head.weight.square().sum()


def transposed(m, x):
    return m.head(x @ m.body.weight)


def positions(m, x):
    h = m.table(x.long()) + m.place(torch.arange(x.shape[1])) + m.shift
    return m.head(h.mean(1))


def attention(m, x):
    h = m.table(x.long())
    return m.head(m.attend(h, h, h, need_weights=False)[0].mean(1))


def recurrent(m, x):
    h = x.new_zeros(len(x), 4)
    for step in range(x.shape[1]):
        h = m.cell(x[:, step], h)
    return m.head(h)


def frames(m, x):
    """Folds an axis into the batch and back: 3 inner rows per record."""
    h = m.norm(m.conv(x.flatten(0, 1)))
    return m.head(h.flatten(1)).view(len(x), 3, -1).mean(1)


def centred(m, x):
    """Couples the records of a batch, if it ever sees one."""
    return m.head(x - x.mean(0) + x)


def unused(m, x):
    m.aside(x)
    return m.head(x)


def relu_in_place(m, x):
    h = m.body(x)
    functional.relu_(h)
    return m.head(h)


def by_hand(m, x):
    return functional.group_norm(x, weight=m.scale, num_groups=2, bias=None).flatten(1) @ m.out.T


def one(**options):
    return lambda: Net(**options)


def tokens(count, length, top):
    return torch.randint(0, top, (count, length), generator=torch.Generator().manual_seed(5)).double()


CASES = {
    # name: model, shape of a record (or tokens below), parameters without a rule, whether no vmap is needed
    "dense": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,), set(), True),
    "sequence, factors": (
        lambda: nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Flatten(1), nn.Linear(100, 3)),
        (2, 40),
        set(),
        True,
    ),
    "sequence, rows": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Flatten(), nn.Linear(45, 3)),
        (9, 4),
        set(),
        True,
    ),
    "axes folded away": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Flatten(), nn.Linear(30, 3)),
        (2, 3, 4),
        set(),
        True,
    ),
    "convolutions": (
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True)),
            *(nn.Conv2d(8, 6, (1, 3), dilation=2, bias=False), nn.ReLU(), nn.Conv2d(6, 4, 3, padding=(2, 1), groups=2)),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)),
        ),
        (2, 9, 11),
        set(),
        True,
    ),
    "convolution, factors": (
        lambda: nn.Sequential(
            nn.Conv2d(40, 50, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(50, 3)
        ),
        (40, 2, 2),
        set(),
        True,
    ),
    "one dimension": (
        lambda: nn.Sequential(
            nn.Conv1d(9, 3, 5, stride=3, padding=2, dilation=2), nn.SiLU(), nn.Flatten(), nn.Linear(15, 3)
        ),
        (9, 17),
        set(),
        True,
    ),
    "three dimensions": (
        lambda: nn.Sequential(
            nn.Conv3d(2, 3, (1, 2, 3), padding=(0, 1, 1)), nn.Tanh(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(24, 3)
        ),
        (2, 4, 4, 5),
        set(),
        True,
    ),
    "circular padding": (
        lambda: nn.Sequential(nn.Conv2d(9, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(64, 3)),
        (9, 4, 4),
        set(),
        True,
    ),
    "padding by name": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding="same"), nn.Flatten(), nn.Linear(64, 3)),
        (2, 4, 4),
        {"0.weight", "0.bias"},
        True,
    ),
    "norms": (
        lambda: nn.Sequential(
            *(nn.LayerNorm((4, 6)), nn.GroupNorm(3, 9), nn.GroupNorm(3, 9, affine=False), nn.LayerNorm(6, bias=False)),
            *(nn.Flatten(), nn.LayerNorm(216), nn.Linear(216, 3)),
        ),
        (9, 4, 6),
        set(),
        True,
    ),
    "instance norm": (
        lambda: nn.Sequential(nn.InstanceNorm1d(4, affine=True), nn.Flatten(), nn.Linear(20, 3)),
        (4, 5),
        {"0.weight", "0.bias"},
        False,
    ),
    "used twice": (one(run=linear_used_twice, body=nn.Linear(6, 6), head=nn.Linear(6, 3)), (6,), set(), False),
    "also used elsewhere": (one(run=also_elsewhere, head=nn.Linear(6, 3)), (6,), {"head.weight", "head.bias"}, False),
    "used by another operation": (
        one(run=transposed, body=nn.Linear(5, 6), head=nn.Linear(5, 3)),
        (6,),
        {"body.weight", "body.bias"},
        False,
    ),
    "frames": (
        one(run=frames, conv=nn.Conv2d(8, 4, 3), norm=nn.GroupNorm(2, 4), head=nn.Linear(36, 3)),
        (3, 8, 5, 5),
        set(),
        False,
    ),
    "coupled": (one(run=centred, head=nn.Linear(6, 3)), (6,), set(), False),
    "unused": (one(run=unused, aside=nn.Linear(6, 2), head=nn.Linear(6, 3)), (6,), set(), False),
    "in place": (one(run=relu_in_place, body=nn.Linear(6, 5), head=nn.Linear(5, 3)), (6,), set(), False),
    "by hand": (
        one(run=by_hand, scale=nn.Parameter(torch.randn(4)), out=nn.Parameter(torch.randn(3, 20))),
        (4, 5),
        {"out"},
        False,
    ),
    "weight norm": (
        lambda: nn.Sequential(weight_norm(nn.Linear(6, 5)), nn.Linear(5, 3)),
        (6,),
        {"0.parametrizations.weight.original0", "0.parametrizations.weight.original1", "0.bias"},
        False,
    ),
    "table": (
        lambda: Net(lambda m, x: m.head(m.table(x.long()).mean(1)), table=nn.Embedding(5, 4), head=nn.Linear(4, 3)),
        5,
        set(),
        False,
    ),
    "table with padding": (
        lambda: Net(
            lambda m, x: m.head(m.table(x.long()).tanh().sum(1)),
            table=nn.Embedding(5, 4, padding_idx=-2),
            head=nn.Linear(4, 3),
        ),
        5,
        set(),
        False,
    ),
    "tied table": (one(run=tied_table, table=nn.Embedding(5, 4)), 5, set(), False),
    "positions": (
        one(
            run=positions,
            table=nn.Embedding(5, 4),
            place=nn.Embedding(9, 4),
            shift=nn.Parameter(torch.ones(1)),
            head=nn.Linear(4, 3),
        ),
        5,
        {"place.weight", "shift"},
        False,
    ),
    "attention": (
        one(
            run=attention,
            table=nn.Embedding(5, 4),
            attend=nn.MultiheadAttention(4, 2, batch_first=True),
            head=nn.Linear(4, 3),
        ),
        5,
        {"attend.in_proj_weight", "attend.in_proj_bias", "attend.out_proj.weight", "attend.out_proj.bias"},
        False,
    ),
    "recurrent": (
        one(run=recurrent, cell=nn.GRUCell(2, 4), head=nn.Linear(4, 3)),
        (5, 2),
        {"cell.weight_ih", "cell.weight_hh", "cell.bias_ih", "cell.bias_hh"},
        False,
    ),
}


def made(name):
    make, shape, without, together = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = make().double()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))  # scales of ones and shifts of zeros would hide mistakes
    source = torch.Generator().manual_seed(3)
    x = tokens(7, 9, shape) if isinstance(shape, int) else torch.randn(7, *shape, generator=source, dtype=torch.float64)
    return model, x, torch.randint(0, 3, (7,), generator=source), without, together


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
        monkeypatch.setattr("dpspec.training.persample.record_by_record", lambda model: False)
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
    found = flat._examples.gradients(parameters, x, y)
    assert {n: type(found[n]) for n in kinds} == kinds
    written = sum(p.nbytes for n, p in parameters.items() if isinstance(found[n], Rows))
    assert flat._examples.written == written


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
