"""``tabular-mlp``: dense layers for rows of a table, normalised within each record."""

from __future__ import annotations

from collections.abc import Iterable

from dpspec.contract import Model
from dpspec.models.layers import Activation, Dense, Layer
from dpspec.models.norms import LayerNorm
from dpspec.models.stack import ACTIVATION, HIDDEN, Stack

MODEL = Model(
    kind="tabular-mlp",
    summary="Dense layers with layer normalisation, for rows of a table.",
    schema={
        "type": "object",
        "properties": {
            "hidden": {**HIDDEN, "default": [128, 64]},
            "activation": {**ACTIVATION, "default": "relu"},
            "layer_norm": {
                "type": "boolean",
                "default": True,
                "description": "Whether what a hidden layer computes is normalised, each record by itself, before the "
                "activation. It needs no statistics of the data, unlike batch normalisation.",
            },
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.tabular_mlp:TabularMlp",
)


class TabularMlp(Stack):
    """Like ``mlp``, and 2 h more parameters for every hidden layer of width h where it is normalised.

    Features enter as they are: bring them to a common scale by ``data.standardise``, with public constants.
    """

    def layers(self) -> Iterable[Layer]:
        """Dense layer, normalisation and activation per entry of ``hidden``, then the scores."""
        shape = self.facts.shape or (self.facts.features,)
        if len(shape) != 1:
            raise ValueError(f"tabular-mlp needs rows of a table (features,), got records {shape}; mlp takes images")
        for width in self.options.get("hidden", (128, 64)):
            yield Dense(int(width))
            if self.options.get("layer_norm", True):
                yield LayerNorm()
            yield Activation(self.options.get("activation", "relu"))
        yield Dense(self.facts.classes)
