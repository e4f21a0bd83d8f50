"""With what a run is done: where, by how many, for how long. None of it changes what a trial finds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from dpspec.contract import Catalog, Demand, Plan, Pool, Said
from dpspec.errors import PluginError
from dpspec.executors.inline import Inline
from dpspec.executors.local import cores
from dpspec.registry.resolve import resolve

#: A chunk of trials that takes fewer seconds than this on one core gains nothing from a second one.
_SHORT = 60.0


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a person says about how a run is to be done.

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
        """The time until the deadline."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def threads_of(self, plan: Plan) -> int:
        """The CPU threads of each trial of a plan: the cores of this machine, shared by chunks that are long.

        It depends on the plan alone, not on what else is run, so that an audit finds the same among others.
        """
        if self.threads is not None:
            return self.threads
        chunks = max(1, len(plan.chunks))
        return 1 if plan.seconds / chunks < _SHORT else max(1, cores() // chunks)


class Workshop:
    """The pool of a run, opened when there is work that is worth one."""

    def __init__(self, means: Means, catalog: Catalog, tell: Callable[[Said], None]) -> None:
        """``tell`` hears what tasks in this process say, when they say it."""
        self._means, self._catalog, self._tell = means, catalog, tell
        self._opened: Pool | None = None

    def here(self) -> Pool:
        """A pool that is this process."""
        return Inline(self._tell)

    def pool(self, tasks: int, seconds: float) -> Pool:
        """A pool for so many tasks, which may take so long one after the other."""
        if self._opened is not None:
            return self._opened
        if self._means.executor is None:
            return self.here()
        demand = Demand(
            tasks=tasks,
            seconds=seconds,
            device=self._means.device,
            workers=self._means.workers,
            address=self._means.address,
        )
        pool = cast(Pool, self._executor(self._means.executor)(demand))  # type: ignore[operator]
        if isinstance(pool, Inline):
            return self.here()
        self._opened = pool
        return pool

    def close(self) -> None:
        """Stop what runs, and give everything back."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def _executor(self, kind: str) -> object:
        if kind not in self._catalog.executors:
            known = ", ".join(sorted(self._catalog.executors))
            raise PluginError(f"no installed plugin offers executor {kind!r} (there are: {known})")
        return resolve(self._catalog.executors[kind].provider.pool)
