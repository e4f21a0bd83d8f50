"""The CPU cores that this process may use: what the scheduler gives it, and what its container is allowed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path

#: Where Linux shows control groups.
_GROUPS = Path("/sys/fs/cgroup")

#: Which of them this process is in.
_OWN = Path("/proc/self/cgroup")


def cores() -> int:
    """At least 1: cores of its affinity, no more than the quota of its control groups, rounded up.

    ``OMP_NUM_THREADS`` says less where somebody set it.
    """
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    here = min([here, *(max(1, ceil(quota)) for quota in _quotas())])
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(here, int(asked))) if asked.isdecimal() else here


def _quotas() -> Iterator[float]:
    """Cores' worth of time of each group with a limit, by either version of control groups."""
    for line in _text(_OWN).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for folder in _upwards(path):
            if not controllers:
                quota, _, period = _text(_GROUPS / folder / "cpu.max").partition(" ")
                yield from _ratio(quota, period)
            elif "cpu" in controllers.split(","):
                place = _GROUPS / "cpu" / folder
                yield from _ratio(_text(place / "cpu.cfs_quota_us"), _text(place / "cpu.cfs_period_us"))


def _upwards(path: str) -> Iterator[str]:
    """The group's folder and those above it; within a container the group's own is the root."""
    parts = [part for part in path.split("/") if part and part != ".."]
    for length in range(len(parts), -1, -1):
        yield "/".join(parts[:length])


def _ratio(quota: str, period: str) -> Iterator[float]:
    """Nothing for ``max``, for -1, and for what is no number."""
    if quota.strip().isdecimal() and period.strip().isdecimal() and int(period) > 0 and int(quota) > 0:
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
