"""The counting mechanism with faults that files in a folder control, across processes.

``kill-3``: trial 3 kills its process, once. ``always-kill-3``: the same, each time. ``fail-3``: trial 3 raises.
``wait-3``: trial 3 waits until it is killed or cancelled. Each trial leaves a file such as ``ran-3-PID``.
"""

import dataclasses
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpspec.contract import Cancelled, Context, DataError, Executor, FrozenMap, Trial
from dpspec.contract.catalog import Catalog
from dpspec.executors import Pool, PoolRequest
from dpspec.executors.processes import Processes
from support import counting

FOLDER = "DPSPEC_TEST_FOLDER"


class FragileAudit(counting.CountingAudit):
    def trials(self, inputs: FrozenMap, context: Context, indices: Sequence[int]) -> Iterator[Trial]:
        folder = Path(os.environ[FOLDER])
        for index in indices:
            (folder / f"ran-{index}-{os.getpid()}").touch()
            if (folder / f"always-kill-{index}").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            if (folder / f"kill-{index}").exists():
                (folder / f"kill-{index}").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            if (folder / f"fail-{index}").exists():
                raise DataError("its rows are gone")
            while (folder / f"wait-{index}").exists():
                if context.cancelled():
                    raise Cancelled
                context.progress(0, 10, "waiting")
                time.sleep(0.02)
            yield from super().trials(inputs, context, [index])


def catalog() -> Catalog:
    plain = counting.catalog()
    offered = plain.mechanisms["counting"]
    fragile = dataclasses.replace(offered.provider, audit="support.fragile:FragileAudit")
    pair = Executor(kind="pair", summary="two processes", pool="support.fragile:two_workers")
    return dataclasses.replace(
        plain,
        mechanisms={"counting": dataclasses.replace(offered, provider=fragile)},
        executors={"pair": dataclasses.replace(offered, provider=pair)},
    )


def two_workers(demand: PoolRequest) -> Pool:
    """Return two processes, whatever the number of tasks."""
    return Processes(["cpu"], most=2, threads=2, budget=10**10)
