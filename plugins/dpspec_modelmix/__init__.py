"""Audit of ModelMix: DP-SGD that mixes its last two models randomly (Xiao, Wan and Devadas)."""

from __future__ import annotations

from collections.abc import Iterable

import dpspec.contract as dps
from dpspec_modelmix.mechanism import MODELMIX

DPSPEC_API = 1


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield MODELMIX
