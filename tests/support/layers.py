"""Structures of layers by name, for tests of rules for per-example gradients."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm


def one_by_one(model, x, y, loss=functional.cross_entropy):
    """Return the gradients (b, P) from one backward pass per record; zeros for unused parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = []
    for i in range(len(x)):
        value = loss(model(x[i : i + 1]), y[i : i + 1]).sum()
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        flat = (torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True))
        found.append(torch.cat([g.flatten() for g in flat]))
    return torch.stack(found)


class Net(nn.Module):
    """Named layers, and a function of them and the records."""

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


def sum_of_rows(m, x):
    return m.head(m.table(x.long()).tanh().sum(1))


def positions(m, x):
    h = m.table(x.long()) + m.place(torch.arange(x.shape[1])) + m.shift
    return m.head(h.mean(1))


def attention(m, x):
    h = m.table(x.long())
    return m.head(m.attend(h, h, h, need_weights=False)[0].mean(1))


def encoder(m, x):
    return m.head(m.encode(m.table(x.long())).mean(1))


def recurrent(m, x):
    h = x.new_zeros(len(x), 4)
    for step in range(x.shape[1]):
        h = m.cell(x[:, step], h)
    return m.head(h)


def frames(m, x):
    """Folds an axis into the batch and back, with 3 inner rows per record."""
    h = m.norm(m.conv(x.flatten(0, 1)))
    return m.head(h.flatten(1)).view(len(x), 3, -1).mean(1)


def centred(m, x):
    """Couples the records of a batch."""
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


def tokens(count, length, top):
    return torch.randint(0, top, (count, length), generator=torch.Generator().manual_seed(5)).double()


#: Models with and without rules for all layers: the model, the shape of a record or the top token, and the parameters
#: without a rule.
with torch.random.fork_rng():
    torch.manual_seed(7)
    head, table = nn.Linear(4, 3), nn.Embedding(5, 4)
    TOGETHER = {
        "dense": (nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
        "sequence, factors": (nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Flatten(1), nn.Linear(100, 3)), (2, 40)),
        "sequence, rows": (nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Flatten(), nn.Linear(45, 3)), (9, 4)),
        "axes folded away": (nn.Sequential(nn.Linear(4, 5), nn.Flatten(), nn.Linear(30, 3)), (2, 3, 4)),
        "convolutions": (
            nn.Sequential(
                *(nn.Conv2d(2, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True)),
                *(nn.Conv2d(8, 6, (1, 3), dilation=2, bias=False), nn.ReLU()),
                *(nn.Conv2d(6, 4, 3, padding=(2, 1), groups=2), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
                nn.Linear(16, 3),
            ),
            (2, 9, 11),
        ),
        "convolution, factors": (
            nn.Sequential(nn.Conv2d(40, 50, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(50, 3)),
            (40, 2, 2),
        ),
        "one dimension": (
            nn.Sequential(nn.Conv1d(9, 3, 5, 3, padding=2, dilation=2), nn.SiLU(), nn.Flatten(), nn.Linear(15, 3)),
            (9, 17),
        ),
        "three dimensions": (
            nn.Sequential(
                *(nn.Conv3d(2, 3, (1, 2, 3), padding=(0, 1, 1)), nn.Tanh(), nn.AvgPool3d(2), nn.Flatten()),
                nn.Linear(24, 3),
            ),
            (2, 4, 4, 5),
        ),
        "circular padding": (
            nn.Sequential(nn.Conv2d(9, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(64, 3)),
            (9, 4, 4),
        ),
        "padding by name": (
            nn.Sequential(nn.Conv2d(2, 4, 3, padding="same"), nn.Flatten(), nn.Linear(64, 3)),
            (2, 4, 4),
            *("0.weight", "0.bias"),
        ),
        "norms": (
            nn.Sequential(
                *(nn.LayerNorm((4, 6)), nn.GroupNorm(3, 9), nn.GroupNorm(3, 9, affine=False)),
                *(nn.LayerNorm(6, bias=False), nn.Flatten(), nn.LayerNorm(216), nn.Linear(216, 3)),
            ),
            (9, 4, 6),
        ),
    }
    APART = {
        "instance norm": (
            nn.Sequential(nn.InstanceNorm1d(4, affine=True), nn.Flatten(), nn.Linear(20, 3)),
            (4, 5),
            *("0.weight", "0.bias"),
        ),
        "used twice": (Net(linear_used_twice, body=nn.Linear(6, 6), head=nn.Linear(6, 3)), (6,)),
        "also used elsewhere": (Net(also_elsewhere, head=nn.Linear(6, 3)), (6,), "head.weight", "head.bias"),
        "used by another operation": (
            Net(transposed, body=nn.Linear(5, 6), head=nn.Linear(5, 3)),
            (6,),
            *("body.weight", "body.bias"),
        ),
        "frames": (Net(frames, conv=nn.Conv2d(8, 4, 3), norm=nn.GroupNorm(2, 4), head=nn.Linear(36, 3)), (3, 8, 5, 5)),
        "coupled": (Net(centred, head=nn.Linear(6, 3)), (6,)),
        "unused": (Net(unused, aside=nn.Linear(6, 2), head=nn.Linear(6, 3)), (6,)),
        "in place": (Net(relu_in_place, body=nn.Linear(6, 5), head=nn.Linear(5, 3)), (6,)),
        "by hand": (
            Net(by_hand, scale=nn.Parameter(torch.randn(4)), out=nn.Parameter(torch.randn(3, 20))),
            (4, 5),
            "out",
        ),
        "weight norm": (
            nn.Sequential(weight_norm(nn.Linear(6, 5)), nn.Linear(5, 3)),
            (6,),
            *("0.parametrizations.weight.original0", "0.parametrizations.weight.original1", "0.bias"),
        ),
        "table": (Net(lambda m, x: m.head(m.table(x.long()).mean(1)), table=table, head=head), 5),
        "table with padding": (Net(sum_of_rows, table=nn.Embedding(5, 4, padding_idx=-2), head=head), 5),
        "tied table": (Net(tied_table, table=table), 5),
        "positions": (
            Net(positions, table=table, place=nn.Embedding(9, 4), shift=nn.Parameter(torch.ones(1)), head=head),
            5,
            *("place.weight", "shift"),
        ),
        "attention": (
            Net(attention, table=table, attend=nn.MultiheadAttention(4, 2, batch_first=True), head=head),
            5,
            *("attend.in_proj_weight", "attend.in_proj_bias", "attend.out_proj.weight", "attend.out_proj.bias"),
        ),
        "encoder": (
            Net(
                encoder,
                table=table,
                encode=nn.TransformerEncoderLayer(4, 2, 3, dropout=0.0, batch_first=True, norm_first=True),
                head=head,
            ),
            5,
            *("encode.self_attn.in_proj_weight", "encode.self_attn.in_proj_bias"),
            *("encode.self_attn.out_proj.weight", "encode.self_attn.out_proj.bias"),
        ),
        "recurrent": (
            Net(recurrent, cell=nn.GRUCell(2, 4), head=head),
            (5, 2),
            *("cell.weight_ih", "cell.weight_hh", "cell.bias_ih", "cell.bias_hh"),
        ),
    }
CASES = {**TOGETHER, **APART}


def made(name):
    """Return a model, records, labels, the parameters without a rule, and whether vmap is unnecessary."""
    model, shape, *without = CASES[name]
    model, source = copy.deepcopy(model).double(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():  # scales of ones and shifts of zeros would hide mistakes
            p.add_(0.1 * torch.randn(p.shape, generator=source, dtype=p.dtype))
    x = tokens(7, 9, shape) if isinstance(shape, int) else torch.randn(7, *shape, generator=source, dtype=torch.float64)
    return model, x, torch.randint(0, 3, (7,), generator=source), set(without), name in TOGETHER
