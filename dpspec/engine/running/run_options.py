"""How a run is executed: executor, workers, threads, device and limits. None of it changes what a trial finds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from dpspec.contract import Plan
from dpspec.contract.catalog import Catalog
from dpspec.errors import PluginError
from dpspec.executors import Pool, PoolRequest, TaskProgress
from dpspec.executors.inline import InlinePool
from dpspec.registry.foreign_code import made, misbehaved

#: A chunk of trials that takes fewer seconds than this on one core gains nothing from a second one.
_SHORT = 60.0


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Executor, worker count, thread count, device and limits of a run.

    executor: a kind of executor; None for this very process.
    workers: how many tasks at once; threads: CPU threads of each trial; None leaves either to dpspec.
    address: where a cluster listens.
    deadline: a ``time.monotonic()`` after which no training goes on; max_trials: how many trials to make at most.
    """

    executor: str | None = None
    workers: int | None = None
    threads: int | None = None
    address: str | None = None
    device: str = "auto"
    deadline: float | None = None
    max_trials: int | None = None

    def seconds_left(self) -> float | None:
        """The time until the deadline; None without one."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def threads_of(self, plan: Plan) -> int:
        """The CPU threads of each trial of a plan: the cores of this machine, shared by chunks that are long.

        It depends on the plan alone, not on what else is run, so that an audit finds the same among others.
        """
        if self.threads is not None:
            return self.threads
        chunks = max(1, len(plan.chunks))
        if plan.seconds / chunks < _SHORT:
            return 1
        from dpspec.executors.processes import cores

        return max(1, cores() // chunks)


class Workers:
    """The processes of a run's executor: started for the first stage that gains from them, and kept for the next one.

    on_said: hears what tasks in this process say, when they say it.
    """

    def __init__(self, options: RunOptions, catalog: Catalog, on_said: Callable[[TaskProgress], None]) -> None:
        self._options, self._catalog, self._on_said = options, catalog, on_said
        self._pool: Pool | None = None

    def pool(self, *, tasks: int, seconds: float, device: str) -> Pool:
        """The pool that is open, or a new one; this very process where more of them gain nothing. Raises as
        :func:`open_pool`, whose arguments these are.
        """
        if self._pool is not None:
            return self._pool
        pool = open_pool(
            self._options, self._catalog, tasks=tasks, seconds=seconds, device=device, on_said=self._on_said
        )
        if not isinstance(pool, InlinePool):  # which gives way to processes once there is more to do
            self._pool = pool
        return pool

    def close(self) -> None:
        """End them, and stop what runs."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def open_pool(
    options: RunOptions,
    catalog: Catalog,
    *,
    tasks: int,
    seconds: float,
    device: str,
    on_said: Callable[[TaskProgress], None],
) -> Pool:
    """The pool of the executor that the options name, or one that is this process.

    tasks: how many it is going to be given; seconds: what they take one after the other; device: what they ask for.
    on_said: hears what tasks in this process say, when they say it.

    Raises ``PluginError`` where no plugin offers the executor.
    """
    if options.executor is None:
        return InlinePool(on_said)
    if options.executor not in catalog.executors:
        valid = ", ".join(sorted(catalog.executors))
        raise PluginError(f"no installed plugin offers executor {options.executor!r} (installed: {valid})")
    demand = PoolRequest(tasks=tasks, seconds=seconds, device=device, workers=options.workers, address=options.address)
    offered = catalog.executors[options.executor]
    pool = cast(Pool, made(offered, offered.provider.pool, "its pool", demand))
    if not all(callable(getattr(pool, name, None)) for name in ("room", "start", "messages", "close")):
        raise misbehaved(offered, f"{offered.provider.pool} makes a {type(pool).__name__}, which is no Pool")
    return InlinePool(on_said) if isinstance(pool, InlinePool) else pool
