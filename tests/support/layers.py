"""All sorts of structures of layers, by name: what a rule for per-example gradients may meet."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm


def one_by_one(model, x, y):
    """Gradients (b, P) of all records from one backward pass each; zeros for unused parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = []
    for i in range(len(x)):
        loss = functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = (torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True))
        found.append(torch.cat([g.flatten() for g in flat]))
    return torch.stack(found)


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
