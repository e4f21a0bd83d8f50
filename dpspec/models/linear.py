"""``linear``: multinomial logistic regression, one linear score per class."""

from __future__ import annotations

from collections.abc import Iterable

from dpspec.contract import Model
from dpspec.models.layers import Dense, Flatten, Layer
from dpspec.models.stack import Stack

MODEL = Model(
    kind="linear",
    summary="One linear score per class (multinomial logistic regression).",
    schema={
        "type": "object",
        "properties": {
            "bias": {"type": "boolean", "default": True, "description": "Whether every score has a constant term."},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.linear:Linear",
)


class Linear(Stack):
    """features x classes weights, and classes biases."""

    def layers(self) -> Iterable[Layer]:
        """Flattens images first."""
        return Flatten(), Dense(self.facts.classes, bias=bool(self.options.get("bias", True)))
