"""Fingerprints of tensors: the same for the same bits alone."""

from __future__ import annotations

import pytest
import torch

from dpspec.recording.fingerprint import Fingerprint


def test_a_permutation_is_another_tensor() -> None:
    value = torch.randn(200_000)
    secret = Fingerprint()
    first = int(secret.of(value))
    assert int(secret.of(value.clone())) == first
    for one, other in [(0, 1), (0, 1024), (5, 65_536), (131_071, 199_999)]:
        swapped = value.clone()
        swapped[one], swapped[other] = value[other], value[one]
        assert int(secret.of(swapped)) != first


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.bool])
def test_signs_of_two_zeros_count(dtype: torch.dtype) -> None:
    value = torch.zeros(3000, dtype=dtype)
    other = value.clone()
    other[7] = other[2500] = True if dtype is torch.bool else -other[7]
    secret = Fingerprint()
    assert int(secret.of(other)) != int(secret.of(value))


def test_the_layout_does_not_count_and_weights_are_secret() -> None:
    value = torch.randn(30, 40)
    secret = Fingerprint()
    assert int(secret.of(value.t().contiguous().t())) == int(secret.of(value))
    assert int(secret.of_all([value[:10], value[10:]])) == int(secret.of(value))
    assert int(Fingerprint().of(value)) != int(secret.of(value))
    state = torch.get_rng_state()
    Fingerprint()
    assert torch.equal(torch.get_rng_state(), state)
