"""Audit of the per-instance privacy loss of each record in DP-SGD (Thudi et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterable

import dpspec.contract as dps
from dpspec_per_instance.mechanism import PER_INSTANCE, RECORDS

DPSPEC_API = 1


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield PER_INSTANCE


@dps.hookimpl
def dpspec_reporters() -> Iterable[dps.Reporter]:
    yield RECORDS
