"""Parameters that moved since their copy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpspec.recording.watching.parameter_watch import ParameterWatch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("values", [[0.0, 1.0, float("nan")], 0.0, -1.0])
def test_the_sign_of_a_zero_counts(dtype: torch.dtype, values: list[float] | float) -> None:
    parameter = nn.Parameter(torch.tensor(values, dtype=dtype))
    watch = ParameterWatch([parameter])
    assert not watch.moved()
    first = parameter.data.view(-1)[:1]
    first.copy_(-first)
    assert watch.moved()
    assert watch.advance()
    assert not watch.moved()
