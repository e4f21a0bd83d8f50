"""``mlp``: dense layers with an activation between them."""

from __future__ import annotations

from collections.abc import Iterable

from dpspec.contract import Model
from dpspec.models.layers import Activation, Dense, Flatten, Layer
from dpspec.models.stack import ACTIVATION, HIDDEN, Stack

MODEL = Model(
    kind="mlp",
    summary="Dense layers with an activation between them.",
    schema={
        "type": "object",
        "properties": {
            "hidden": {**HIDDEN, "default": [64]},
            "activation": {**ACTIVATION, "default": "relu"},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.mlp:Mlp",
)


class Mlp(Stack):
    """Hidden widths h_1, ..., h_k: (features + 1) h_1 + (h_1 + 1) h_2 + ... + (h_k + 1) classes parameters."""

    def layers(self) -> Iterable[Layer]:
        """Flattens images first."""
        yield Flatten()
        for width in self.options.get("hidden", (64,)):
            yield Dense(int(width))
            yield Activation(self.options.get("activation", "relu"))
        yield Dense(self.facts.classes)
