"""The backends that dpspec itself offers, as descriptors: importing this imports neither torch nor numpy."""

from __future__ import annotations

from dpspec.contract.frozen import Json
from dpspec.contract.providers import CAPABILITIES, Backend

LEARNING_RATE = 0.5
REDUCTION = "mean"

#: The options of the native loop. A backend that wraps the loop offers the same keys beside its own.
NATIVE_OPTIONS: dict[str, Json] = {
    "learning_rate": {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": 1e6,
        "default": LEARNING_RATE,
        "description": "Step size of the update: parameters - learning_rate * noisy gradient.",
    },
    "reduction": {
        "enum": ["sum", "mean"],
        "default": REDUCTION,
        "description": "sum: the update uses the noisy sum of clipped gradients. mean: that sum divided by the "
        "expected batch size, a public constant, and never by the number of records that a step really drew.",
    },
}

BACKENDS: tuple[Backend, ...] = (
    Backend(
        kind="native",
        summary="DP-SGD on torch: per-example gradients, clipped, summed, noised",
        schema={"type": "object", "properties": NATIVE_OPTIONS, "additionalProperties": False},
        capabilities=CAPABILITIES,
        trainer="dpspec.training.native:NativeTrainer",
    ),
)
