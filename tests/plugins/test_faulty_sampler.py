"""Released floats that are possible with a sum: enumeration of all floats of the noise, and shares of torch's."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scipy.stats import binom


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "dpspec_faulty"))
    for name in [name for name in sys.modules if name.split(".")[0] == "dpspec_faulty"]:
        monkeypatch.delitem(sys.modules, name)
    import dpspec_faulty.sampler

    return dpspec_faulty.sampler


def all_floats(dtype: torch.dtype) -> torch.Tensor:
    floats = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    return floats[floats.isfinite()]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("total", [0.0, 1.0, -1.0, 3.25, 700.0, 2.0**-10])
def test_possible_values_are_those_of_all_floats(sampler: ModuleType, dtype: torch.dtype, total: float) -> None:
    floats = all_floats(dtype)
    sums = torch.full_like(floats, total) + floats
    reached = torch.isin(floats.double(), sums.double())
    assert torch.equal(sampler.is_possible(floats, total), reached)
    assert bool(reached.all()) == (total == 0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_quarter_of_torchs_values_are_impossible_with_the_other_sum(sampler: ModuleType, dtype: torch.dtype) -> None:
    """Theorem F2 at noise multiplier 1. A correct statement fails with probability 1e-6."""
    noise = torch.randn(100_000, generator=torch.Generator().manual_seed(2), dtype=dtype)
    impossible = int((~sampler.is_possible(noise, 1.0)).sum())
    assert binom.cdf(impossible, 100_000, 0.2573) > 1e-6
    assert bool(sampler.is_possible(1.0 + noise, 1.0).all())  # what is released is possible
