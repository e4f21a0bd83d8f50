"""The executors that dpspec offers."""

from __future__ import annotations

from dpspec.contract import Executor

EXECUTORS = (
    Executor(
        kind="local",
        summary="Processes of this machine, one per GPU, or as many as cores and memory allow",
        pool="dpspec.executors.local:open_pool",
    ),
    Executor(
        kind="ray",
        summary="Tasks of a Ray cluster; --ray-address says which",
        pool="dpspec.executors.ray_cluster:open_pool",
    ),
)
