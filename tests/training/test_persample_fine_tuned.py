"""Layers that people fine-tune: per-example gradients and clipped sums against one backward pass for each record.

The oracle runs torch's own layers, with their fused kernels, on one record at a time. Shapes are drawn by hypothesis;
float64 agrees to 1e-10 and float32 to 1e-5, of the largest entry; where a normalisation of few values lets float32 lose
more, the loop in float32 is off the one in float64 by as much, and four times that is allowed besides.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.layers import Net
from torch import nn
from torch.nn import functional

from dpspec.training.gradients.clipping import Flat
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.gradients.recurrent import written_out

SIZES = st.integers(1, 4)
CLASSES = 3
RECORDS = 5

quick = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def seeded(make, seed):
    """A float64 model whose scales and shifts are no ones and zeros, which would hide mistakes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make().double()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))
    return model


def rows(shape, seed, top=None):
    source = torch.Generator().manual_seed(seed)
    if top is not None:
        return torch.randint(0, top, (RECORDS, *shape), generator=source).double()
    return torch.randn(RECORDS, *shape, generator=source, dtype=torch.float64)


def one_by_one(model, x, y):
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = []
    for i in range(len(x)):
        loss = functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True)]
        found.append(torch.cat([g.flatten() for g in flat]))
    return torch.stack(found)


def check(make, x, seed=0):
    """Both precisions, against the loop in the same precision; the model in float64."""
    model = seeded(make, seed)
    y = torch.randint(0, CLASSES, (len(x),), generator=torch.Generator().manual_seed(seed))
    flat, truth = None, one_by_one(model, x, y)
    for dtype, digits in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model = model.to(dtype)
        some = x.to(dtype)
        expected = one_by_one(model, some, y)
        flat = FlatModel(model)
        got = flat.rows(flat.initial(), some, y)
        scale = float(expected.abs().max()) + 1e-3
        own = float((expected - truth).abs().max())  # what rounding takes from the loop itself
        assert float((got - expected).abs().max()) <= digits * scale + 4 * own
        norms = expected.double().norm(dim=1)
        clip = float(norms.median()) + 1e-9
        wanted = (expected.double() * (clip / norms.clamp(min=clip))[:, None]).sum(0)
        clipped = flat.clipped_sum(flat.initial(), some, y, Flat(clip))
        off = max(digits, 2e-7) * (len(x) * clip + 1e-3) + 4 * len(x) * own  # factors are float32
        assert float((clipped.sum.double() - wanted).abs().max()) <= off
        assert float(clipped.norms.max()) <= clip
    return flat


@quick
@given(SIZES, SIZES, st.integers(2, 5), SIZES, st.sampled_from([None, 0, -1]), st.booleans())
def test_embedding_and_tied_weights(seed, length, count, width, padding, tied):
    def head(m, x):
        h = m.table(x.long()).mean(1).tanh()
        return functional.linear(h, m.table.weight)[:, :1] * m.out if tied else m.head(h)

    def make():
        table = nn.Embedding(count, width, padding_idx=padding)
        return Net(head, table=table, head=nn.Linear(width, CLASSES), out=nn.Parameter(torch.ones(CLASSES)))

    check(make, rows((length,), seed, count), seed)


@quick
@given(SIZES, SIZES, st.integers(1, 3), st.integers(1, 3), st.integers(1, 6))
def test_norms(seed, length, groups, each, width):
    # Two or three values can lie so close together that dividing by their spread leaves nothing of a float32.
    channels, length = groups * each, length + 4

    def make():
        return nn.Sequential(
            *(nn.GroupNorm(1, channels), nn.Tanh(), nn.LayerNorm(length), nn.LayerNorm((channels, length))),
            *(nn.Flatten(), nn.RMSNorm(channels * length), nn.Linear(channels * length, CLASSES)),
        )

    check(make, rows((channels, length), seed), seed)


@quick
@given(SIZES, SIZES, SIZES, st.integers(1, 3), st.integers(1, 2), st.booleans())
def test_conv1d(seed, channels, width, kernel, stride, transposed):
    kind = nn.ConvTranspose1d if transposed else nn.Conv1d

    def make():
        convolution = kind(channels, width, kernel, stride=stride)
        return Net(lambda m, x: m.head(m.conv(x).tanh().sum(2)), conv=convolution, head=nn.Linear(width, CLASSES))

    check(make, rows((channels, 6), seed), seed)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@quick
@given(SIZES, st.integers(1, 5), st.integers(1, 2), SIZES, st.booleans(), st.booleans())
def test_attention(seed, length, heads, each, causal, padded):
    """Of its own, over tokens of which some are padding; the first never is, or nothing would be attended to."""
    width = heads * each

    def run(m, x):
        h = m.table(x.long())
        hidden = (x == 0).index_fill(1, torch.tensor([0]), False) if padded else None
        mask = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
        return m.head(m.attend(h, h, h, key_padding_mask=hidden, attn_mask=mask)[0].mean(1))

    def make():
        attend = nn.MultiheadAttention(width, heads, batch_first=True)
        return Net(run, table=nn.Embedding(4, width), attend=attend, head=nn.Linear(width, CLASSES))

    check(make, rows((length,), seed, 4), seed)


@pytest.mark.parametrize("norm_first", [False, True])
@quick
@given(SIZES, SIZES, st.integers(1, 2), st.integers(1, 2), st.integers(1, 2))
def test_transformer_encoder(norm_first, seed, length, heads, each, layers):
    width = 2 * heads * each

    def make():
        options = {"dim_feedforward": 3, "dropout": 0.0, "batch_first": True, "norm_first": norm_first}
        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, heads, **options), layers, enable_nested_tensor=False
        )
        return Net(
            lambda m, x: m.head(m.encoder(m.table(x.long())).mean(1)),
            table=nn.Embedding(4, width),
            encoder=encoder,
            head=nn.Linear(width, CLASSES),
        )

    check(make, rows((length,), seed, 4), seed)


def last(m, x):
    """Outputs, and every part of the last state."""
    x = x if m.recur.batch_first else x.transpose(0, 1)
    outputs, state = m.recur(x)
    outputs = outputs if m.recur.batch_first else outputs.transpose(0, 1)
    parts = [part.transpose(0, 1).flatten(1) for part in (state if isinstance(state, tuple) else (state,))]
    return m.head(torch.cat([outputs.sum(1), *parts], dim=1))


RECURRENT = [
    (nn.LSTM, {}),
    (nn.LSTM, {"proj_size": 2}),
    (nn.GRU, {}),
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu"}),
]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("kind", "more"), RECURRENT)
@quick
@given(SIZES, SIZES, SIZES, st.integers(3, 4), st.integers(1, 2), st.booleans(), st.booleans(), st.booleans())
def test_recurrent_layers(kind, more, seed, length, width, hidden, layers, both, bias, batch_first):
    options = {"num_layers": layers, "bidirectional": both, "bias": bias, "batch_first": batch_first, **more}

    def make():
        recur = kind(width, hidden, **options)
        outputs, state = recur(torch.zeros(1, 1, width))
        parts = state if isinstance(state, tuple) else (state,)
        return Net(last, recur=recur, head=nn.Linear(outputs.shape[-1] + sum(p.numel() for p in parts), CLASSES))

    flat = check(make, rows((length, width), seed), seed)
    assert flat._examples.covered == set(flat.layout.names)  # every weight has a rule


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("kind", "more"), RECURRENT)
@pytest.mark.parametrize("single", [False, True])
def test_written_out_they_are_torchs_own(kind, more, single):
    """With states that are given, and records without an axis for the batch."""
    layer = seeded(lambda: kind(3, 4, num_layers=2, bidirectional=True, **more), 1)
    x = rows((6, 3), 2).transpose(0, 1)
    x = x[:, 0] if single else x
    _, state = layer(x)
    given = tuple(s + 0.3 for s in state) if isinstance(state, tuple) else state + 0.3
    for initial in (None, given):
        outputs, states = layer(x, initial)
        with written_out(layer):
            again, after = layer(x, initial)
        assert torch.allclose(again, outputs, rtol=1e-12, atol=1e-13)
        pairs = zip(states, after, strict=True) if isinstance(states, tuple) else [(states, after)]
        assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-13) for a, b in pairs)
    assert "forward" not in vars(layer)


def test_packed_sequences_are_refused_by_name():
    layer = nn.GRU(2, 2)
    packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(3, 1, 2), [2])
    with written_out(layer), pytest.raises(ValueError, match="GRU: packed sequences"):
        layer(packed)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (nn.BatchNorm1d(3), "layer 'part' (BatchNorm1d) mixes the records"),
        (nn.LSTM(3, 3, 2, dropout=0.1), "layer 'part' (LSTM) applies dropout"),
        (nn.MultiheadAttention(3, 1, dropout=0.1), "layer 'part' (MultiheadAttention) applies dropout"),
        (nn.TransformerEncoderLayer(4, 1), "layer 'part.self_attn' (MultiheadAttention) applies dropout"),
        (nn.Embedding(3, 3, max_norm=1.0), "layer 'part' (Embedding) modifies its table"),
        (nn.Embedding(3, 3, scale_grad_by_freq=True), "layer 'part' (Embedding) modifies its table"),
        (type("Own", (nn.LSTM,), {})(3, 3), "layer 'part' (Own) is an unknown recurrent layer"),
    ],
)
def test_refusals_name_the_layer(layer, said):
    with pytest.raises(ValueError, match="no per-example gradients") as caught:
        FlatModel(Net(lambda m, x: x, part=layer))
    assert said in str(caught.value)


def random_in_forward(m, x):
    return functional.dropout(x, 0.5) if m.training else x


def branching(m, x):
    return x if bool((x > 0).any()) else -x


@pytest.mark.parametrize("run", [random_in_forward, branching])
def test_what_vmap_refuses_names_the_layer_that_asked(run):
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), Net(run)), nn.Linear(4, CLASSES))
    flat = FlatModel(model)
    with pytest.raises(ValueError, match=r"layer '1\.1' \(Net\) uses an operation that torch\.func\.vmap"):
        flat.norms(flat.initial(), torch.ones(2, 3), torch.zeros(2, dtype=torch.int64))
