"""Constants of the numbers of a recorded run."""

from types import SimpleNamespace

import pytest
import torch

from dpspec_recording.judge.recorded_run import RecordedRun


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_the_excess_of_a_norm_is_five_unit_roundoffs_of_its_type(name: str) -> None:
    run = SimpleNamespace(end=SimpleNamespace(norm_type=name))
    assert RecordedRun.norm_excess.fget(run) == 5.0 * torch.finfo(getattr(torch, name)).eps / 2.0


def test_numbers_of_tensor_cores_have_ten_stored_bits() -> None:
    run = SimpleNamespace(end=SimpleNamespace(norm_type="TF32"))
    assert RecordedRun.norm_excess.fget(run) == 5.0 * 2.0**-10 / 2.0


def test_a_norm_of_full_precision_has_no_excess() -> None:
    for end in (None, SimpleNamespace(norm_type="float32"), SimpleNamespace(norm_type="")):
        assert RecordedRun.norm_excess.fget(SimpleNamespace(end=end)) == 0.0
