"""The pretended GPU keeps its promises: what CUDA refuses is refused, and coarse products are counted."""

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
        (lambda a, b: torch.randn(3, generator=torch.Generator(), device="cuda"), "device type for generator"),
        (lambda a, b: torch.zeros(1, device="cuda:2"), "invalid device ordinal"),
        (lambda a, b: torch.zeros(2**19, device="cuda"), "out of memory"),
        (lambda a, b: a.numpy(), "can't convert cuda:0"),
    ],
)
def test_refused_as_by_cuda(machine: Machine, work: Callable[..., object], words: str) -> None:
    a, b = torch.randn(3, 4, device="cuda"), torch.zeros(3, 4)
    with pytest.raises((RuntimeError, TypeError), match=words):
        work(a, b)


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
