"""Audit of DP-FTRL: training with noise that a matrix correlates across steps."""

from collections.abc import Iterable

import dpspec.contract as dps
from dpspec_matrix.mechanism import Matrix

DPSPEC_API = 1


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield Matrix.offer()
