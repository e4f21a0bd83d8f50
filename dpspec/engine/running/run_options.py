"""Execution of a run: executor, workers, threads, device and limits. They do not change the results of trials."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from dpspec.contract import Plan
from dpspec.contract.catalog import Catalog
from dpspec.engine.results.decimals import duration
from dpspec.errors import PluginError
from dpspec.executors import InlinePool, Pool, PoolRequest, TaskProgress
from dpspec.registry.foreign_code import made

#: Names of devices.
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")

#: Seconds of a chunk on one core below which a second core does not help.
_SHORT = 60.0


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Execution of a run; None lets dpspec decide, ``executor`` None is this process."""

    executor: str | None = None
    workers: int | None = None
    threads: int | None = None
    address: str | None = None
    device: str = "auto"
    deadline: float | None = None
    max_trials: int | None = None

    def seconds_left(self) -> float | None:
        return None if self.deadline is None else self.deadline - time.monotonic()

    def threads_of(self, plan: Plan) -> int:
        """The CPU threads of each trial, by the plan alone, so that an audit has the same result among others."""
        if self.threads is not None:
            return self.threads
        chunks = max(1, len(plan.chunks))
        if plan.seconds / chunks < _SHORT:
            return 1
        from dpspec.executors.processes import cores

        return max(1, cores() // chunks)


def open_pool(
    options: RunOptions, catalog: Catalog, *, tasks: int, seconds: float, on_progress: Callable[[TaskProgress], None]
) -> Pool:
    """The workers of a run; ``on_progress`` receives progress reports of tasks in this process."""
    executor, offers = options.executor, catalog.executors
    if executor is None:
        return InlinePool(on_progress)
    if executor not in offers:
        valid = ", ".join(sorted(offers))
        raise PluginError(f"no installed plugin offers executor {executor!r} (installed: {valid})")
    workers, address = options.workers, options.address
    demand = PoolRequest(tasks=tasks, seconds=seconds, device=options.device, workers=workers, address=address)
    offered = offers[executor]
    pool = cast(Pool, made(offered, offered.provider.pool, "its pool", demand))
    return InlinePool(on_progress) if isinstance(pool, InlinePool) else pool


#: Factors and seconds that bound the time of a trial relative to its plan on one idle core. Plans count operations;
#: measured trials of the quickstart, ``specs/attacks`` and digits took 0.37 to 6.7 times the planned time.
LEAST, MOST, BESIDE = 1.0 / 3.0, 5.0, 2.0


def format_time_range(seconds: float) -> str:
    return f"{duration(LEAST * seconds)} to {duration(MOST * seconds + BESIDE)}"
