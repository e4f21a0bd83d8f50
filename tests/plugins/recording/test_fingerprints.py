"""Fingerprints of tensors, by hashes of bytes and by sums over bits."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from dpspec_recording import fingerprints
from dpspec_recording.fingerprints import TensorSnapshot, digest
from dpspec_recording.watching.parameter_watch import ParameterWatch

VALUES = {
    "float32": torch.tensor([1.0, -2.0, 3.5, float("nan")]),
    "float64": torch.tensor([1.0, -2.0, 3.5, float("inf")], dtype=torch.float64),
    "bfloat16": torch.tensor([1.0, -2.0, 3.5, 0.0], dtype=torch.bfloat16),
    "bool": torch.tensor([True, False, True, True]),
    "complex": torch.tensor([1 + 2j, -2j, 3.5, 0]),
}


def edits(value: Tensor) -> list[Tensor]:
    """The value itself, and it after a swap and, except for booleans, changes of signs and of one bit."""
    swapped = value[torch.tensor([0, 2, 1, 3])] if value.dtype != torch.bool else value[torch.tensor([1, 0, 2, 3])]
    if value.dtype == torch.bool:
        return [value, swapped]
    signs = value.clone()
    signs[0], signs[2] = -signs[0], -signs[2]
    bit = value.clone()
    bit.view(torch.uint8)[0] ^= 1
    return [value, swapped, signs, bit]


def differ(one: Tensor | None, other: Tensor | None) -> bool:
    snapshot = TensorSnapshot()
    snapshot.keep([one])
    return bool(snapshot.differ([other]))


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("piece", [2**20, 3])
def test_other_bits_differ(kind: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_CHUNK", piece)
    every = edits(VALUES[kind])
    for one, other in combinations(every, 2):
        assert differ(one, other)
        assert not torch.equal(fingerprints._sums(one, fingerprints.KEY), fingerprints._sums(other, fingerprints.KEY))
    for one in every:
        again = one.clone()
        assert not differ(one, again)
        assert torch.equal(fingerprints._sums(one, fingerprints.KEY), fingerprints._sums(again, fingerprints.KEY))


def test_writes_in_place_and_other_memory_are_seen() -> None:
    value, snapshot = torch.nn.Parameter(torch.arange(6.0).view(2, 3)), TensorSnapshot()
    watch = ParameterWatch([torch.nn.Parameter(torch.ones(3)), value])
    writes = (
        lambda: value.data.add_(1.0),
        lambda: setattr(value, "data", value.data.clone().add_(1.0)),
        lambda: setattr(value, "data", value.data.t()),
        lambda: setattr(value, "data", value.data.mul(2.0)),
        lambda: setattr(value, "data", value.data.half()),
    )
    for write in writes:
        snapshot.keep([value])
        assert not watch.moved()
        assert not snapshot.differ([value])
        assert not snapshot.differ([value.detach().clone()])
        value.data = value.data.clone()
        assert not watch.moved()
        write()
        assert snapshot.differ([value])
        assert watch.moved()
        watch.advance()
        assert not watch.moved()
    assert not TensorSnapshot().exists
    assert TensorSnapshot().differ([value])


def test_numbers_beside_tensors_count() -> None:
    snapshot = TensorSnapshot()
    snapshot.keep([torch.zeros(2), 7, None])
    assert not snapshot.differ([torch.zeros(2), 7, None])
    assert snapshot.differ([torch.zeros(2), 8, None])
    assert snapshot.differ([torch.zeros(2), 7])


def test_a_training_may_free_the_memory_of_its_tensors() -> None:
    value, snapshot = torch.randn(1000), TensorSnapshot()
    snapshot.keep([value])
    saved, storage = value.clone(), value.untyped_storage()
    storage.resize_(0)
    with pytest.raises(ValueError, match="freed"):
        snapshot.differ([value])
    storage.resize_(4000)
    value.copy_(saved)
    assert not snapshot.differ([value])


def test_a_digest_covers_contents_and_has_a_limit() -> None:
    import numpy as np

    values = [1, 1.0, "1", b"1", True, None, [1], (1,), {"a": 1}, {1}, np.ones(1), torch.ones(1), [torch.ones(1), {}]]
    assert len({digest(value) for value in values}) == len(values)
    assert all(digest(value) == digest(value) for value in values)
    assert digest([[1], 2]) != digest([[1, 2]])
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="more than 100000 parts"):
        digest(endless)


def test_a_changed_type_or_shape_differs() -> None:
    ones = torch.zeros(4)
    for other in (ones.view(torch.int32), ones.view(2, 2), torch.zeros(5), None):
        assert differ(ones, other)


def test_views_with_other_strides_have_the_bits_of_their_values() -> None:
    value = torch.arange(6.0).view(2, 3)
    assert not differ(value.t(), value.t().contiguous())
