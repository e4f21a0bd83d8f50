"""Constants of the numbers of a recorded run."""

import pytest
import torch
from support.facts_only import run_with

from dpspec_recording.judge.recorded_run import RecordedRun, float32_excess
from dpspec_recording.observers.sensitivity.contributions import ContributionFacts, Contributions


def run_with_norms(norm_type: str | None) -> RecordedRun:
    """A run whose contributions have norms of this type; None without contributions."""
    return run_with({} if norm_type is None else {Contributions: ContributionFacts(norm_type=norm_type, sum_type="")})


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_the_excess_of_a_norm_is_five_unit_roundoffs_of_its_type(name: str) -> None:
    assert run_with_norms(name).half_excess == 5.0 * torch.finfo(getattr(torch, name)).eps / 2.0


def test_numbers_of_tensor_cores_have_ten_stored_bits() -> None:
    assert run_with_norms("TF32").half_excess == 5.0 * 2.0**-10 / 2.0


@pytest.mark.parametrize("name", [None, "float32", ""])
def test_full_precision_is_no_half_precision(name: str | None) -> None:
    assert run_with_norms(name).half_excess == 0.0


@pytest.mark.parametrize("size", [1000, 30_000, 1_000_000])
@pytest.mark.parametrize("largest", [1, 8, 64])
def test_a_norm_in_float32_is_short_by_at_most_the_excess(size: int, largest: int) -> None:
    """The largest numbers fill the partial sums, and the other squares are just below half their resolution."""
    values = torch.full((1, size), 0.999 * 2.0**-12)
    values[0, :largest] = 1.0
    assert float(values.double().norm()) <= (1.0 + float32_excess(size)) * float(values.norm(2, dim=-1))
    assert float32_excess(size) < 0.004


def test_a_huge_layer_in_float32_has_no_bound() -> None:
    assert float32_excess(2 * 10**8) == float("inf")
