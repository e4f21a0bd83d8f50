"""Where trials run: in this process, in several of this machine, or on a Ray cluster.

Who writes an executor imports this: the tasks that it is given, and what its pool says of them. Plugins offer one as a
``dpspec.contract.Executor``.
"""

from dpspec.executors.pools import (
    Demand,
    Message,
    Needs,
    PartialResult,
    Place,
    Pool,
    Task,
    TaskFailed,
    TaskFinished,
    TaskProgress,
    WorkerLost,
)

__all__ = [
    "Demand",
    "Message",
    "Needs",
    "PartialResult",
    "Place",
    "Pool",
    "Task",
    "TaskFailed",
    "TaskFinished",
    "TaskProgress",
    "WorkerLost",
]
