"""Simulated GPUs: torch's CPU build computes, and operations that CUDA rejects raise errors.

    with pretend_gpu(cards=2) as machine:
        dpspec.run(spec, device="cuda")
    assert machine.account.waits == {}

Numbers and random draws equal the CPU's for the same seed. A different result means a different code path. Errors:
tensors of several devices in one operation, numpy, generators of another device, cards that do not exist, and
allocations beyond a card's memory. The account counts waits, copies and products that TF32 may round, each by the line
of the project.

Rounding, run time and errors of real GPU libraries are not simulated, nor are streams, graphs and child processes.
"""

from support.pretend_gpu.cards import Account
from support.pretend_gpu.machine import Machine, pretend_gpu

__all__ = ["Account", "Machine", "pretend_gpu"]
