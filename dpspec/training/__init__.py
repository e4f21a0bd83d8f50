"""DP-SGD training in torch and the measurements for an audit. Importing the package does not import torch.

Three steps of DP-SGD; an observer receives the batch of each, which no adversary sees:

>>> import numpy as np
>>> import torch
>>> from dpspec.contract import FrozenMap, Observer, TrainingJob
>>> from dpspec.training.loop.native import NativeTrainer
>>> class Batches(Observer):
...     def __init__(self):
...         self.drawn = []
...     def sampled(self, step, indices):
...         self.drawn.append(len(indices))
>>> batches = Batches()
>>> sampling = {"scheme": "fixed", "batch_size": 10}
>>> job = TrainingJob(
...     x=np.ones((100, 4), dtype=np.float32),
...     y=np.zeros(100, dtype=np.int64),
...     model=torch.nn.Linear(4, 2),
...     phases=(FrozenMap({"steps": 3, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": sampling}),),
...     options=FrozenMap({"learning_rate": 0.5, "reduction": "mean"}),
...     expected_batch_size=10.0,
...     device="cpu",
...     seed=7,
...     observers=(batches,),
... )
>>> NativeTrainer().train(job)
>>> batches.drawn
[10, 10, 10]
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

#: Variables that libraries read when they are loaded.
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def limited(count: int) -> Iterator[None]:
    """Limit numerical libraries to ``count`` CPU threads.

    Their number determines how sums are split and rounded. A trial therefore always uses the same number.
    """
    before = {name: os.environ.get(name) for name in _VARIABLES}
    torch = sys.modules.get("torch")
    if torch is None:  # torch's default once it is loaded
        requested = os.environ.get("OMP_NUM_THREADS", "")
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        usual = int(requested) if requested.isdecimal() and int(requested) > 0 else available
    else:
        usual = torch.get_num_threads()
    os.environ.update(dict.fromkeys(_VARIABLES, str(count)))
    if torch is not None:
        torch.set_num_threads(count)
    try:
        with _thread_pools(frozenset(sys.modules)).limit(limits=count):
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


@lru_cache(maxsize=1)
def _thread_pools(modules: frozenset[str]) -> Any:
    """Return the controller of the thread pools of all loaded libraries.

    Listing the mapped files of a process takes 5 to 20 ms, so the list is renewed only after an import.

    Args:
        modules: The names of the imported modules, whose extensions load the libraries.
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
