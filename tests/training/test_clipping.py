"""Clippers: every contribution within the clip norm, as each of them says, and their declaration in a phase."""

from math import inf, sqrt, ulp

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpspec.contract import FrozenMap
from dpspec.training.gradients.clipping import Clipper, add_clipped, clip_factors, clipper_of, squares_of
from dpspec.training.gradients.persample import FlatModel, per_example_gradients
from dpspec.training.loop.contributions import RecordsAndCanaries

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
    """What each record adds when nobody else is there, (b, P), and the norms that are reported."""
    added, norms = [], []
    for i in range(len(rows[NAMES[0]])):
        total = totals()
        norms.append(add_clipped(total, {n: r[i : i + 1] for n, r in rows.items()}, how))
        added.append(torch.cat([t.flatten() for t in total.values()]))
    return torch.stack(added).double(), torch.cat(norms)


def test_flat_is_the_textbook_formula():
    rows = gradients(20)
    g = flat(rows)
    added, norms = alone(rows, 4.5)
    expected = g * (4.5 / g.norm(dim=1, keepdim=True)).clamp(max=1.0)
    assert torch.allclose(added, expected, rtol=1e-6, atol=1e-7)
    assert torch.allclose(norms, g.norm(dim=1).clamp(max=4.5), rtol=1e-6)
    assert 3 < int((g.norm(dim=1) > 4.5).sum()) < 20  # both sides of the threshold are seen


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


HOW = st.sampled_from([Clipper(0.7), Clipper(1 / 3), Clipper(0.7, 0.1)])


@settings(max_examples=60, deadline=None)
@given(HOW, st.integers(0, 2**31), st.floats(-6, 6))
def test_no_contribution_exceeds_the_clip_norm(how, seed, exponent):
    """The reported norms are within the bound to the last bit, and what is added is within float32 rounding of it."""
    rows = gradients(8, seed, scale=10.0**exponent)
    added, norms = alone(rows, how)
    assert float(norms.max()) <= how.clip_norm
    assert torch.allclose(added.norm(dim=1), norms, rtol=1e-5, atol=1e-30)
    assert float(added.abs().max()) <= how.coordinate_bound
    together = totals()
    assert torch.allclose(add_clipped(together, rows, how), norms, rtol=1e-12)
    whole = torch.cat([t.flatten() for t in together.values()]).double()
    assert torch.allclose(whole, added.sum(0), rtol=1e-4, atol=1e-5 * how.clip_norm)


@pytest.mark.parametrize("how", [Clipper(1.0), Clipper(1.0, 0.2)])
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
        (lambda: clipper_of({"clip_norm": 1.0, "clipping": {"scheme": "global"}}), "must be flat or truncated"),
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
    ],
)
def test_phases_declare_clippers(clipping, expected):
    phase = {"clip_norm": 2.0, **({} if clipping is None else {"clipping": clipping})}
    assert clipper_of(FrozenMap(phase)) == expected


@pytest.mark.parametrize("how", [Clipper(0.4, 0.05)])
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
