"""Chunk sizes: from bytes that are measured, steady against what else the machine does."""

import pytest
import torch
from torch import nn

from dpspec.training.gradients import memory


@pytest.mark.parametrize(
    ("record", "given", "expected"),
    [
        (10**12, (), 1),
        *((size, (), most) for size, most in ((10**3, 32768), (10**5, 256), (10**6, 32), (3 * 10**6, 32), (10**8, 2))),
        *((size, (64,), most) for size, most in ((10**5, 256), (10**6, 64), (10**7, 16))),
    ],
)
def test_powers_of_two_within_the_budget_and_few_large_records_may_take_more(monkeypatch, record, given, expected):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2**40)
    assert memory.chunk_size(record, "cpu", *given) == expected


def test_containers_have_limits_of_their_own(monkeypatch):
    assert 2**20 < memory.free_bytes("cpu") < 2**50
    monkeypatch.setattr(memory, "_available", lambda: 1000)
    monkeypatch.setattr(memory, "_container", lambda: 10)
    assert memory.free_bytes("cpu") == 10
    monkeypatch.setattr(memory, "_container", lambda: None)
    assert memory.free_bytes("cpu") == 1000
    monkeypatch.setattr(memory, "_available", lambda: None)
    assert memory.free_bytes("cpu") == 2**30


def test_activations_are_counted_once_and_not_the_data_set():
    rows = torch.randn(1000, 64)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    kept = memory.activation_bytes(model, rows[:1])
    assert 4 * (64 + 32) <= kept <= 4 * (64 + 32 + 32 + 10)


def test_halving_goes_on_until_it_fits_and_is_remembered():
    tried = []

    def work(size):
        tried.append(size)
        if size > 5:
            raise MemoryError
        return size * 10

    assert memory.halving(work, 32) == (40, 4)
    assert tried == [32, 16, 8, 4]
    assert memory.halving(work, 32, 4) == (40, 4)
    assert memory.halving(work, 2, 4) == (20, 4)
    assert memory.halving(work, 2) == (20, None)
    assert tried[4:] == [4, 2, 2]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("something else"), KeyError("out of memory")])
def test_halving_ends_at_one_record_and_leaves_other_errors_alone(error):
    tried = []

    def work(size):
        tried.append(size)
        raise error

    with pytest.raises(type(error)):
        memory.halving(work, 4)
    assert tried == ([4, 2, 1] if isinstance(error, MemoryError) else [4])


def test_what_torch_keeps_of_earlier_work_is_free(monkeypatch):
    """Else chunks would shrink after a first model, and with them change the last bits of every sum."""
    held = {"mem_get_info": (10 * 2**20, 2**30), "memory_reserved": 700 * 2**20, "memory_allocated": 100 * 2**20}
    for name, value in held.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert memory.free_bytes("cuda:1") == 610 * 2**20


@pytest.mark.parametrize(
    "said",
    [
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "Unable to find a valid cuDNN algorithm to run convolution",
        "GET was unable to find an engine to execute this computation",
    ],
)
def test_a_lack_of_memory_is_recognised(said):
    """Includes the message of cuDNN."""
    assert memory.ran_out(RuntimeError(said))
    assert not memory.ran_out(ValueError(said))
    assert not memory.ran_out(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert memory.ran_out(caught.value)
