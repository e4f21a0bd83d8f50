"""Parameters that moved since their copy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpspec.recording.watching.parameter_watch import ParameterWatch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_the_sign_of_a_zero_counts(dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.tensor([0.0, 1.0, float("nan")], dtype=dtype))
    watch = ParameterWatch([parameter])
    assert not watch.moved()
    parameter.data[0] = -parameter.data[0]
    assert watch.moved()
    assert watch.advance()
    assert not watch.moved()
