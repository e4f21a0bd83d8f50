"""Audit of noiseless pre-processing before a private mechanism (Hu, Sanyal and Schoelkopf 2024)."""

from __future__ import annotations

from collections.abc import Iterable

import dpspec.contract as dps
from dpspec_preprocessing.mechanism import PREPROCESSING

DPSPEC_API = 1


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield PREPROCESSING
