"""The backends that dpspec itself offers, as descriptors: importing this imports neither torch nor numpy."""

from __future__ import annotations

from dpspec.contract.providers import CAPABILITIES, Backend

BACKENDS: tuple[Backend, ...] = (
    Backend(
        kind="native",
        summary="DP-SGD on torch: per-example gradients, clipped, summed, noised",
        schema={"type": "object", "properties": {}, "additionalProperties": False},
        capabilities=CAPABILITIES,
        trainer="dpspec.training.native:NativeTrainer",
    ),
)
