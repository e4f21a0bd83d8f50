"""GPUs for a machine that has none: torch's CPU build computes, and what CUDA would refuse is refused.

    with pretend_gpu(cards=2) as machine:
        dpspec.run(spec, device="cuda")
    assert machine.account.waits == {}

Numbers are those of the CPU, and generators of a card draw what the CPU's draw from their seed: where results differ,
the code went another way. Refused are tensors of several devices in one operation, numpy, generators of another device,
cards that do not exist, and allocations beyond a card's memory. Counted are waits, copies, and products that may be
rounded to TF32, each by the line of the project that asked for it.

Nothing here tells how a real GPU rounds, what it takes in time, or what its libraries refuse for reasons of their own;
streams, graphs and child processes know nothing of it.
"""

from support.pretend_gpu.cards import Account
from support.pretend_gpu.machine import Machine, pretend_gpu

__all__ = ["Account", "Machine", "pretend_gpu"]
