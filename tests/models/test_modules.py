"""Max pooling by way of the other layout is torch's own, to the last bit."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from dpspec.models.modules import FastPooling, max_pool2d

#: Window, stride, padding, dilation, rounding up.
OPTIONS = [(2,), (3, 2, 1), ((2, 3), (1, 2)), (3, 1, 1, 2, True), ([2], [2])]


@given(
    seed=st.integers(0, 1000),
    channels=st.sampled_from([1, 7, 8, 17]),
    side=st.integers(6, 13),
    options=st.sampled_from(OPTIONS),
    what=st.sampled_from(["all different", "many equal", "some not a number"]),
)
def test_values_and_gradients_are_those_of_torch(seed, channels, side, options, what):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(3, channels, side, side + 1, generator=source)
    if what == "many equal":
        x = x.clamp(min=0.0).round()
    if what == "some not a number":
        x[torch.rand(x.shape, generator=source) < 0.05] = torch.nan
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = max_pool2d(ours, *options), functional.max_pool2d(theirs, *options)
    assert found.is_contiguous()
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
    gradient = torch.randn(expected.shape, generator=source)
    back, expected_back = (torch.autograd.grad(y, x, gradient)[0] for y, x in ((found, ours), (expected, theirs)))
    assert torch.equal(back, expected_back)


def test_a_mode_puts_it_in_place_of_torch(monkeypatch):
    from dpspec.models import modules

    calls = []
    monkeypatch.setattr(modules._ChannelsLast, "apply", lambda *given: calls.append(given[1:]))
    x = torch.randn(1, 8, 4, 4)
    torch.nn.MaxPool2d(2)(x)
    assert not calls
    with FastPooling():
        torch.nn.MaxPool2d(2)(x)
    assert calls == [([2, 2], [2, 2], [0, 0], [1, 1], False)]
