"""``cnn-small``: a few convolutions for small images."""

from __future__ import annotations

from collections.abc import Iterable

from dpspec.contract import Model
from dpspec.models.layers import Activation, Convolution, Dense, Flatten, Layer, Pool
from dpspec.models.stack import ACTIVATION, Stack, images

MODEL = Model(
    kind="cnn-small",
    summary="3 x 3 convolutions, each halving the image, then one dense layer; for images from 8 x 8.",
    schema={
        "type": "object",
        "properties": {
            "channels": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": 4096},
                "minItems": 1,
                "maxItems": 8,
                "default": [16, 32],
                "description": "The number of channels after each convolution, first to last.",
            },
            "activation": {**ACTIVATION, "default": "relu"},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.cnn_small:CnnSmall",
)


class CnnSmall(Stack):
    """Each convolution to c channels from b has (9 b + 1) c parameters, the scores (inputs + 1) classes."""

    def layers(self) -> Iterable[Layer]:
        """Convolution, activation and max pooling per entry of ``channels``, then the scores."""
        images("cnn-small", self.facts.shape, 8)
        for width in self.options.get("channels", (16, 32)):
            yield Convolution(int(width), kernel=3, padding=1)
            yield Activation(self.options.get("activation", "relu"))
            yield Pool("max")
        yield Flatten()
        yield Dense(self.facts.classes)
