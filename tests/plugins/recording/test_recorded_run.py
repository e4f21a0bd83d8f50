"""Constants of the numbers of a recorded run."""

from types import SimpleNamespace

import pytest
import torch

from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.probes.contributions import Contributions


def run_with_norms(norm_type: str | None) -> SimpleNamespace:
    """A run whose contributions have norms of this type; None without contributions."""
    facts = None if norm_type is None else SimpleNamespace(norm_type=norm_type)
    return SimpleNamespace(fact=lambda probe: facts if probe is Contributions else None)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_the_excess_of_a_norm_is_five_unit_roundoffs_of_its_type(name: str) -> None:
    assert RecordedRun.norm_excess.fget(run_with_norms(name)) == 5.0 * torch.finfo(getattr(torch, name)).eps / 2.0


def test_numbers_of_tensor_cores_have_ten_stored_bits() -> None:
    assert RecordedRun.norm_excess.fget(run_with_norms("TF32")) == 5.0 * 2.0**-10 / 2.0


@pytest.mark.parametrize("name", [None, "float32", ""])
def test_a_norm_of_full_precision_has_no_excess(name: str | None) -> None:
    assert RecordedRun.norm_excess.fget(run_with_norms(name)) == 0.0
