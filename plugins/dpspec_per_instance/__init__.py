"""Audits what each record loses by itself in DP-SGD (Thudi et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterable

import dpspec.contract as dps
from dpspec_per_instance.descriptor import PER_INSTANCE

DPSPEC_API = 1


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    """The mechanism kind ``per-instance``."""
    yield PER_INSTANCE
