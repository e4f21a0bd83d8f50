"""Audits how well records could be reconstructed (Kaissis et al. 2023; Hayes et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterable

import dpspec.contract as dps
from dpspec_rero.mechanism import RERO

DPSPEC_API = 1


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield RERO
