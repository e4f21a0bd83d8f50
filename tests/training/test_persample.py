"""Per-example gradients, norms and clipped sums compared with one backward pass per record."""

from math import inf, sqrt, ulp

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.gpu_cases import job_of
from support.layers import Net, one_by_one
from torch import nn
from torch.nn import functional

from dpspec.contract import FrozenMap
from dpspec.models.architectures import MODELS
from dpspec.training.gradients import persample
from dpspec.training.gradients.ghost_calls import squares_of
from dpspec.training.gradients.persample import (
    Clipper,
    FlatModel,
    PerExample,
    add_clipped,
    clip_factors,
    clipper_of,
    per_example_gradients,
)
from dpspec.training.loop.contributions import RecordsAndCanaries

pytestmark = pytest.mark.rounding


def close(a, b):
    return torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_buffers_take_part(rows):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))  # a parameter without dimensions
            self.register_buffer("shift", torch.tensor([1.0, -2.0, 0.5]))

        def forward(self, x):
            return self.scale * x[:, :3] + self.shift

    x, y = rows("mlp", 6)
    model = Shifted()
    assert close(persample.per_example_gradients(model, x, y), one_by_one(model, x, y))
    flat = FlatModel(model)
    assert flat.clipped_sum(flat.initial(), x, y, 0.1).sum.shape == (1,)


def test_an_empty_batch_gives_zeros(make_model, rows):
    model = FlatModel(make_model("cnn"))
    x, y = rows("cnn", 0)
    assert persample.per_example_gradients(model, x, y).shape == (0, model.size)
    assert [found.shape for found in model.look(model.initial(), x, y)] == [(0,), (0,)]
    clipped = model.clipped_sum(model.initial(), x, y, 1.0)
    assert torch.equal(clipped.sum, torch.zeros(model.size))
    assert clipped.norms.shape == (0,)
    assert list(model.gradients(model.initial(), x, y)) == []


@pytest.mark.family
@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError, "not enough memory: you tried to allocate 9"])
def test_out_of_memory_halves_the_chunks_and_changes_nothing(make_model, rows, monkeypatch, error):
    x, y = rows("cnn", 37)
    model, other = FlatModel(make_model("cnn")), FlatModel(make_model("cnn"))
    state = model.initial()
    expected = other.clipped_sum(state, x, y, 0.3)
    norms, gradients = other.look(state, x, y)[0], other.rows(state, x, y)
    asked = []

    def scarce(real):
        def found_by(self, parameters, x, y):
            asked.append(len(x))
            found = real(self, parameters, x, y)
            if len(asked) > 1 and len(x) > 4:  # the first chunk fits, and its part of the sum must not count twice
                raise RuntimeError(error) if isinstance(error, str) else error()
            return found

        return found_by

    for name in ("gradients", "squares"):
        monkeypatch.setattr(PerExample, name, scarce(getattr(PerExample, name)))
    model._sizes = dict.fromkeys(("rows", "sums", "norms"), 16)
    got = model.clipped_sum(state, x, y, 0.3)
    assert asked[:4] == [16, 16, 8, 4]
    assert max(asked[3:]) == 4
    assert torch.allclose(got.sum, expected.sum, rtol=1e-5, atol=1e-6)
    assert torch.allclose(got.norms, expected.norms, rtol=1e-6)
    asked.clear()
    assert torch.allclose(model.look(state, x, y)[0], norms, rtol=1e-6)
    assert torch.allclose(model.rows(state, x, y), gradients, rtol=1e-4, atol=1e-6)
    assert max(asked) == 4  # what has run out once is not tried again


@pytest.mark.family
@pytest.mark.parametrize("kind", [model.kind for model in MODELS])
def test_exactly_the_gradients_of_each_record(kind, monkeypatch):
    """In float64, where they agree to ten digits, in chunks of any size. All layers have a rule and need no vmap."""
    job = job_of(kind, records=4)
    model, x, y = job.model.double(), torch.tensor(job.x, dtype=torch.float64), torch.tensor(job.y)
    expected = one_by_one(model, x, y)
    flat = FlatModel(model)
    assert torch.allclose(flat.rows(flat.initial(), x, y), expected, rtol=1e-9, atol=1e-10)
    assert flat._examples.covered == set(flat.layout.names)
    assert flat._examples.together
    for size in (1, 64):
        monkeypatch.setitem(flat._sizes, "norms", size)
        norms, predicted = flat.look(flat.initial(), x, y)
        assert torch.allclose(norms, expected.norm(dim=1), rtol=1e-10)
        assert torch.equal(predicted, flat.logits(flat.initial(), x).argmax(dim=1))


@pytest.mark.parametrize(
    "run",
    [lambda m, x: functional.dropout(x, 0.5) if m.training else x, lambda m, x: x if bool((x > 0).any()) else -x],
    ids=["random", "branching"],
)
def test_operations_without_vmap_name_the_layer(run):
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), Net(run)), nn.Linear(4, 3))
    flat = FlatModel(model)
    with pytest.raises(ValueError, match=r"layer '1\.1' \(Net\) uses an operation that torch\.func\.vmap"):
        flat.look(flat.initial(), torch.ones(2, 3), torch.zeros(2, dtype=torch.int64))


NAMES = ("a.weight", "a.bias", "b.weight")
SHAPES = ((3, 4), (3,), (2, 3))


def gradients(count, seed=0, scale=1.0):
    source = torch.Generator().manual_seed(seed)
    return {n: scale * torch.randn(count, *shape, generator=source) for n, shape in zip(NAMES, SHAPES, strict=True)}


def totals():
    return {n: torch.zeros(shape) for n, shape in zip(NAMES, SHAPES, strict=True)}


def flat(rows):
    return torch.cat([r.flatten(1) for r in rows.values()], dim=1).double()


def alone(rows, how):
    """Return the contribution of each record in a batch of one, (b, P), and the reported norms."""
    added, norms = [], []
    for i in range(len(rows[NAMES[0]])):
        total = totals()
        norms.append(add_clipped(total, {n: r[i : i + 1] for n, r in rows.items()}, how))
        added.append(torch.cat([t.flatten() for t in total.values()]))
    return torch.stack(added).double(), torch.cat(norms)


def test_coordinates_are_cut_after_scaling():
    # Xiao, Wan and Devadas, Algorithm 2, by hand: (3, 4) at c = 2 gives (1.2, 1.6), and with a bound of 1 (1, 1).
    rows = {"": torch.tensor([[3.0, 4.0, 0.0, 0.0], [-3.0, 4.0, 0.0, 0.0], [0.3, -0.4, 0.0, 0.0]])}
    total = {"": torch.zeros(4)}
    norms = add_clipped(total, rows, Clipper(2.0, 1.0))
    assert torch.allclose(norms, torch.tensor([sqrt(2), sqrt(2), 0.5]).double(), rtol=1e-6)
    assert torch.allclose(total[""], torch.tensor([0.3, 1.6, 0.0, 0.0]), rtol=1e-6)
    loose = {"": torch.zeros(4)}
    add_clipped(loose, {"": rows[""][:1]}, Clipper(2.0, 1.8))
    assert torch.allclose(loose[""], torch.tensor([1.2, 1.6, 0.0, 0.0]), rtol=1e-6)


HOW = st.sampled_from([Clipper(0.7), Clipper(1 / 3), Clipper(0.7, 0.1), Clipper(0.7, per_layer=True)])


@given(HOW, st.integers(0, 2**31), st.floats(-6, 6))
def test_no_contribution_exceeds_the_clip_norm(how, seed, exponent):
    """The reported norms never exceed the bound, and contributions exceed it at most by float32 rounding."""
    rows = gradients(8, seed, scale=10.0**exponent)
    added, norms = alone(rows, how)
    assert float(norms.max()) <= how.clip_norm
    assert torch.allclose(added.norm(dim=1), norms, rtol=1e-5, atol=1e-30)
    assert float(added.abs().max()) <= how.coordinate_bound
    together = totals()
    assert torch.allclose(add_clipped(together, rows, how), norms, rtol=1e-12)
    whole = torch.cat([t.flatten() for t in together.values()]).double()
    assert torch.allclose(whole, added.sum(0), rtol=1e-4, atol=1e-5 * how.clip_norm)


@pytest.mark.parametrize("how", [Clipper(1.0), Clipper(1.0, 0.2), Clipper(1.0, per_layer=True)])
@pytest.mark.parametrize("value", [inf, -inf, float("nan")])
def test_a_broken_gradient_counts_as_zero_in_all_layers(how, value):
    rows, healthy = gradients(5), totals()
    add_clipped(healthy, {n: r[1:] for n, r in rows.items()}, how)
    rows["b.weight"][0, 1, 1] = value
    broken = totals()
    norms = add_clipped(broken, rows, how)
    assert float(norms[0]) == 0.0
    assert float(norms[1:].min()) > 0.0
    for name, total in healthy.items():
        assert torch.allclose(broken[name], total, rtol=1e-6, atol=1e-7)


def test_not_even_by_the_last_bit():
    """Norms a few units in the last place around the bound, where quotients round to one."""
    for clip in (*torch.linspace(0.1, 3.0, 500, dtype=torch.float64).tolist(), 1.9792058565034691):
        norms = torch.tensor([*(clip + steps * ulp(clip) for steps in range(-3, 9)), 5.0], dtype=torch.float64)
        factors = clip_factors(norms, clip)
        assert bool((norms * factors <= clip).all())
        assert bool((norms * factors >= norms.clamp(max=clip) * (1 - 2e-7)).all())
        assert factors.dtype == torch.float32
    for how in (Clipper(1 / 3, 10.0), Clipper(0.7, 0.1)):
        rows = gradients(3000)
        together = totals()
        assert float(add_clipped(together, rows, how).max()) <= how.clip_norm


def test_norms_are_summed_in_float64():
    # A million entries of 1 after one of 1e4: float32 sums of squares would lose the small ones.
    row = torch.ones(3, 1_000_001)
    row[:, 0] = 1e4
    assert squares_of(row).tolist() == pytest.approx([1e8 + 1e6] * 3, rel=1e-12)
    assert squares_of(torch.full((2, 3), 3e38)).isfinite().all()
    assert squares_of(torch.zeros(0, 4)).shape == (0,)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Clipper(0.0), "clip_norm must be finite and above 0"),
        (lambda: Clipper(inf), "clip_norm must be finite and above 0"),
        (lambda: Clipper(1.0, 0.0), "coordinate_bound must be above 0"),
        (
            lambda: clipper_of({"clip_norm": 1.0, "clipping": {"scheme": "global"}}),
            "must be flat, truncated, per-layer or adaptive",
        ),
    ],
)
def test_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [
        (None, Clipper(2.0)),
        ({"scheme": "flat"}, Clipper(2.0)),
        ({"scheme": "truncated", "coordinate_bound": 0.5}, Clipper(2.0, 0.5)),
        ({"scheme": "per-layer"}, Clipper(2.0, per_layer=True)),
    ],
)
def test_phases_declare_clippers(clipping, expected):
    phase = {"clip_norm": 2.0, **({} if clipping is None else {"clipping": clipping})}
    assert clipper_of(FrozenMap(phase)) == expected


@pytest.mark.parametrize("how", [Clipper(0.4, 0.05), Clipper(0.4, per_layer=True)])
def test_models_and_canaries_are_clipped_alike(make_model, rows, how):
    x, y = rows("cnn", 6)
    model = FlatModel(make_model("cnn"))
    state = model.initial()
    real = per_example_gradients(model, x, y)

    class Copies:
        count = 6

        def gradients(self, indices):
            return real[indices]

    both = RecordsAndCanaries(model, x, y, Copies())
    planted = both(state, torch.arange(6, 12), how)
    records = both(state, torch.arange(6), how)
    assert torch.allclose(planted.sum, records.sum, rtol=1e-4, atol=1e-6)
    assert torch.allclose(planted.norms, records.norms, rtol=1e-6)
    assert float(records.norms.max()) <= 0.4


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_neighbors_of_a_layerwise_clipped_step_differ_by_at_most_the_clip_norm(factor, make_model, rows):
    """Every tensor of the difference is min(1, c / norm) times the record's gradient, with c = clip norm / sqrt(L)."""
    model, (x, y), how = make_model("cnn"), rows("cnn", 5), Clipper(0.4 * factor, per_layer=True)
    flat = FlatModel(model)
    state = flat.initial()
    whole, without = (flat.clipped_sum(state, x[:n], y[:n], how) for n in (5, 4))
    loss = torch.nn.functional.cross_entropy(model(x[4:]), y[4:])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    share = how.clip_norm / sqrt(len(gradients))
    expected = torch.cat([(g * min(1.0, share / float(g.norm()))).flatten() for g in gradients])
    torch.testing.assert_close(whole.sum - without.sum, expected, rtol=1e-3, atol=1e-5 * factor)
    assert float(expected.norm()) <= how.clip_norm * (1.0 + 1e-6)
    assert float(whole.norms[4]) == pytest.approx(float(expected.norm()), rel=1e-5)
    written = how.rows(flat.layout, per_example_gradients(flat, x, y))
    torch.testing.assert_close(written.sum(0), whole.sum, rtol=1e-4, atol=1e-6 * factor)
