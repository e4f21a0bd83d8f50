"""Backends that are broken on purpose, registered as any third party's would be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import dpspec.contract as dps

DPSPEC_API = 1

FAULTS = ("none", "no-noise", "tenth-noise")

_FAULT = {
    "enum": list(FAULTS),
    "default": "none",
    "description": "What is broken. none: nothing. no-noise: no noise is added. tenth-noise: the noise has a tenth of "
    "the declared standard deviation.",
}


def _backend(kind: str, summary: str, properties: Mapping[str, dps.Json], trainer: str) -> dps.Backend:
    return dps.Backend(
        kind=kind,
        summary=summary,
        schema={"type": "object", "properties": dict(properties), "additionalProperties": False},
        capabilities=dps.CAPABILITIES,
        trainer=f"dpspec_faulty.backend:{trainer}",
    )


@dps.hookimpl
def dpspec_backends() -> Iterable[dps.Backend]:
    """One backend per fault, and one whose options choose it."""
    yield _backend("faulty", "native, broken as `fault` says", {"fault": _FAULT}, "FaultyTrainer")
    yield _backend("faulty-no-noise", "native without its noise", {}, "NoNoiseTrainer")
    yield _backend("faulty-tenth-noise", "native with a tenth of its noise", {}, "TenthNoiseTrainer")
