"""How many CPU threads numerical libraries compute with, for as long as a piece of work takes.

A sum that is split among threads is rounded as it was split. So the number of threads is part of what decides a
trial's last bits, and a trial is given the same number wherever it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: What libraries read when they are first loaded.
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def limited(count: int) -> Iterator[None]:
    """Give numpy's, scipy's and torch's libraries ``count`` threads, whether they are loaded yet or not."""
    from threadpoolctl import threadpool_limits

    before = {name: os.environ.get(name) for name in _VARIABLES}
    torch = sys.modules.get("torch")
    usual = _usual() if torch is None else torch.get_num_threads()
    os.environ.update(dict.fromkeys(_VARIABLES, str(count)))
    if torch is not None:
        torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(usual)


def _usual() -> int:
    """The threads that torch would have taken, had it been loaded before."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(asked) if asked.isdecimal() and int(asked) > 0 else here
