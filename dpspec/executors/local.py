"""The executor ``local``: this process, or several of this machine where that is worth while."""

from __future__ import annotations

import os

from dpspec.contract import Demand, Pool
from dpspec.executors.inline import Inline
from dpspec.executors.processes import Processes

#: Work that takes fewer seconds than this on one core is done before workers have started.
_WORTHWHILE = 20.0

#: The share of the free memory that tasks may need, and the bytes that a process takes before it has one.
_SHARE, _PROCESS = 0.8, 400 * 2**20


def cores() -> int:
    """The CPU cores that this process may use; ``OMP_NUM_THREADS`` says less where somebody set it."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(here, int(asked))) if asked.isdecimal() else here


def open_pool(demand: Demand) -> Pool:
    """One process per GPU where there are several, else as many as cores and free memory allow.

    A single worker is the caller's own process. Raises ``UsageError`` where the device does not exist here.
    """
    wanted, available = demand.workers, cores()
    if wanted == 1 or demand.tasks <= 1 or (wanted is None and (demand.seconds < _WORTHWHILE or available == 1)):
        return Inline()
    from dpspec.training.device import devices
    from dpspec.training.memory import free_bytes

    places = devices(demand.device)
    free = _SHARE * free_bytes("cpu")
    most = wanted or min(available if places == ("cpu",) else len(places), max(1, int(free // _PROCESS)))
    if most == 1:
        return Inline()
    threads = available if wanted is None else max(available, wanted)
    return Processes(places, most, threads, int(free), _PROCESS)
