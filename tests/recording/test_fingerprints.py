"""Fingerprints of tensors, by hashes of bytes and by sums over bits."""

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from torch import Tensor

from dpspec.recording import fingerprints
from dpspec.recording.fingerprints import Bits, digest, tensor_digest

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
    bits = Bits()
    bits.keep([one])
    return bool(bits.differ([other]))


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("piece", [2**20, 3])
@pytest.mark.parametrize("exact", [2**20, 0])
def test_other_bits_differ(kind: str, piece: int, exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_CHUNK", piece)
    monkeypatch.setattr(fingerprints, "_EXACT", exact)
    every = edits(VALUES[kind])
    for one, other in combinations(every, 2):
        assert differ(one, other)
        assert not torch.equal(fingerprints._sums(one, fingerprints._KEY), fingerprints._sums(other, fingerprints._KEY))
    for one in every:
        again = one.clone()
        assert not differ(one, again)
        assert torch.equal(fingerprints._sums(one, fingerprints._KEY), fingerprints._sums(again, fingerprints._KEY))


@pytest.mark.parametrize("size", [1, 2, 7, 70_001])
@pytest.mark.parametrize("exact", [2**20, 0])
def test_signs_of_single_numbers_and_of_neighbors_count(size: int, exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of numbers at odd places are the highest bits of words: a single sum would miss half of their changes."""
    monkeypatch.setattr(fingerprints, "_EXACT", exact)
    value = torch.rand(size) + 1.0
    for first in range(max(0, size - 9), size):
        for places in ([first], [first, first - 1], [first, first - 2], [first, 0]):
            changed = value.clone()
            changed[sorted({max(0, place) for place in places})] *= -1.0
            assert differ(value, changed)


@pytest.mark.parametrize("exact", [2**20, 0])
def test_writes_in_place_and_other_memory_are_seen(exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_EXACT", exact)
    value, bits = torch.nn.Parameter(torch.arange(6.0).view(2, 3)), Bits()
    writes = (
        lambda: value.data.add_(1.0),
        lambda: setattr(value, "data", value.data.clone().add_(1.0)),
        lambda: setattr(value, "data", value.data.view(3, 2)),
        lambda: setattr(value, "data", value.data.t()),
        lambda: setattr(value, "data", value.data.half()),
        lambda: setattr(value, "data", torch._neg_view(value.data)),
    )
    for write in writes:
        bits.keep([value])
        assert not bits.differ([value])
        assert not bits.differ([value.detach().clone()])
        write()
        assert bits.differ([value])
    assert not Bits().known
    assert Bits().differ([value])


def test_equal_values_that_share_memory_are_distinguished() -> None:
    one, other, bits = torch.zeros(3), torch.zeros(3), Bits()
    bits.keep([one, other, 7])
    assert not bits.differ([one, other.clone(), 7], apart=True)
    assert not bits.differ([one, one.detach(), 7])
    assert bits.differ([one, one.detach(), 7], apart=True)


def test_memory_that_moved_under_the_same_storage_is_not_read() -> None:
    value, bits = torch.ones(1000), Bits()
    bits.keep([value])
    value.share_memory_()
    assert (bits.differ([value]), bits.differ([value.fill_(2.0)])) == (False, True)


@pytest.mark.parametrize("exact", [0, 2**20])
def test_a_training_may_free_the_memory_of_its_tensors(exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_EXACT", exact)
    value, bits = torch.randn(1000), Bits()
    bits.keep([value])
    before, saved, storage = tensor_digest(value), value.clone(), value.untyped_storage()
    storage.resize_(0)
    with pytest.raises(ValueError, match="freed"):
        bits.differ([value])
    storage.resize_(4000)
    value.copy_(saved)
    assert not bits.differ([value])
    assert tensor_digest(value) == before


def test_a_changed_type_or_shape_differs() -> None:
    ones = torch.zeros(4)
    for other in (ones.view(torch.int32), ones.view(2, 2), torch.zeros(5), None, ones.neg()._neg_view()):
        assert differ(ones, other)


def test_sums_with_shifted_bits_differ() -> None:
    """Neighbors changed by +1, -2, +1 units in the last place: sums with weights linear in the place are the same."""
    before = torch.rand(100) + 1.0
    after = before.clone()
    after.view(torch.int32)[10:13] += torch.tensor([1, -2, 1], dtype=torch.int32)
    assert not torch.equal(fingerprints._sums(before, fingerprints._KEY), fingerprints._sums(after, fingerprints._KEY))


def test_views_with_other_strides_have_the_bits_of_their_values() -> None:
    value = torch.arange(6.0).view(2, 3)
    assert not differ(value.t(), value.t().contiguous())


def sparse(*places: int) -> Tensor:
    values = torch.zeros(len(places))
    values[0] = 1.0
    return torch.sparse_coo_tensor(torch.tensor([places]), values, (9,))


def compressed(place: int) -> Tensor:
    """(2, 3) with a zero that is stored at this place of the first row."""
    return torch.sparse_csr_tensor(torch.tensor([0, 1, 1]), torch.tensor([place]), torch.zeros(1), (2, 3))


def quantized(scale: float, point: int) -> Tensor:
    return torch.quantize_per_tensor(torch.zeros(3), scale, point, torch.quint8)


def of_channels(*points: int) -> Tensor:
    scales = torch.ones(len(points))
    return torch.quantize_per_channel(torch.zeros(len(points), 2), scales, torch.tensor(points), 0, torch.qint32)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    "kinds",
    [
        (lambda: torch.eye(3), lambda: torch.eye(3).to_sparse(), lambda: torch.eye(3).to_sparse_csr()),
        (lambda: sparse(0), lambda: sparse(0, 3), lambda: sparse(0, 5), lambda: sparse(0, 3).coalesce()),
        (lambda: compressed(0), lambda: compressed(2), lambda: compressed(2).to_sparse_csc()),
        (lambda: torch.zeros(4, 4).to_sparse_bsr((2, 2)), lambda: torch.zeros(4, 4).to_sparse_bsr((4, 4))),
        (lambda: quantized(1.0, 0), lambda: quantized(0.5, 0), lambda: quantized(1.0, 7)),
        (lambda: of_channels(0, 1), lambda: of_channels(1, 0)),
    ],
)
def test_equal_values_in_other_representations_differ(kinds: tuple[Callable[[], Tensor], ...]) -> None:
    for make, other in combinations(kinds, 2):
        assert torch.equal(*(one.dequantize() if one.is_quantized else one.to_dense() for one in (make(), other())))
        for found in (tensor_digest, digest):
            assert found(make()) == found(make())
            assert found(make()) != found(other())
