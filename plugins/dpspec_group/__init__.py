"""Audit of groups of records in DP-SGD with mixtures of Gaussians (Ganesh 2024)."""

from __future__ import annotations

from collections.abc import Iterable

import dpspec.contract as dps
from dpspec_group.mechanism import GROUP

DPSPEC_API = 1


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield GROUP
