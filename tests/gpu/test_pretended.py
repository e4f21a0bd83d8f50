"""The pretended GPU keeps its promises: what CUDA refuses is refused, waits and copies are counted."""

from collections.abc import Callable, Iterator

import pytest
import torch
from support.pretend_gpu import Machine, pretend_gpu


@pytest.fixture
def machine() -> Iterator[Machine]:
    with pretend_gpu(cards=2, memory=2**20) as machine:
        yield machine


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda a, b: a + b, "same device"),
        (lambda a, b: torch.stack([a, a.to("cuda:1")]), "cuda:0 and cuda:1"),
        (lambda a, b: b[a > 0], "indices should be"),
        (lambda a, b: torch.randn(3, generator=torch.Generator(), device="cuda"), "device type for generator"),
        (lambda a, b: torch.zeros(1, device="cuda:2"), "invalid device ordinal"),
        (lambda a, b: torch.zeros(2**19, device="cuda"), "out of memory"),
    ],
)
def test_refused_as_by_cuda(machine: Machine, work: Callable[..., object], words: str) -> None:
    a, b = torch.randn(3, 4, device="cuda"), torch.zeros(3, 4)
    with pytest.raises(RuntimeError, match=words):
        work(a, b)


def test_numpy_is_refused(machine: Machine) -> None:
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        torch.ones(2, device="cuda").numpy()


@pytest.mark.parametrize(
    ("work", "waits", "copies"),
    [
        (lambda a: a + 1.0, 0, 0),
        (lambda a: float(a.sum()), 1, 0),
        (lambda a: a[a > 0], 1, 0),
        (lambda a: a.cpu(), 1, 1),
        (lambda a: torch.ones(3).to("cuda", non_blocking=True), 0, 1),
        (lambda a: torch.tensor([1.0], device="cuda"), 1, 1),
        (lambda a: a[torch.tensor([0])], 1, 1),
        (lambda a: torch.zeros(4, device="cuda"), 0, 0),
        (lambda a: torch.cuda.synchronize(), 1, 0),
    ],
)
def test_counted(machine: Machine, work: Callable[[torch.Tensor], object], waits: int, copies: int) -> None:
    a = torch.randn(3, 4, device="cuda")
    before = machine.account.now()
    work(a)
    more = machine.account.since(before)
    assert (more.waits.total(), more.copies.total()) == (waits, copies)


def test_coarse_products_are_counted(machine: Machine) -> None:
    a = torch.ones(2, 2, device="cuda")
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        _ = a @ a
        assert machine.account.coarse.total() == 0
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        _ = a @ a
        assert machine.account.coarse.total() == 1
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_nothing_is_left_behind() -> None:
    before = torch.cuda.is_available(), torch.Generator, torch.Tensor.to, torch.tensor
    with pretend_gpu():
        assert torch.cuda.is_available()
    assert (torch.cuda.is_available(), torch.Generator, torch.Tensor.to, torch.tensor) == before
