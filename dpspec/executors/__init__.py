"""Executors of trials: this process, several local processes, or a Ray cluster.

A third-party executor imports tasks and messages from here. Plugins register it as a ``dpspec.contract.Executor``.
"""

from dpspec.executors.pools import (
    Message,
    PartialResult,
    Pool,
    PoolRequest,
    Resources,
    Task,
    TaskContext,
    TaskFailed,
    TaskFinished,
    TaskProgress,
    WorkerLost,
)

__all__ = [
    "Message",
    "PartialResult",
    "Pool",
    "PoolRequest",
    "Resources",
    "Task",
    "TaskContext",
    "TaskFailed",
    "TaskFinished",
    "TaskProgress",
    "WorkerLost",
]
