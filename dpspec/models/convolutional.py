"""Small models for images: ``cnn-small``, and ``lenet5`` (LeCun, Bottou, Bengio and Haffner 1998) as written today."""

from __future__ import annotations

from collections.abc import Iterable

from dpspec.contract import Model
from dpspec.models.layers import Activation, Convolution, Dense, Flatten, Layer, Pool
from dpspec.models.stack import ACTIVATION, Stack, images

CNN_SMALL = Model(
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
    factory="dpspec.models.convolutional:CnnSmall",
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


LENET5 = Model(
    kind="lenet5",
    summary="LeNet-5 for images of 28 x 28 or 32 x 32.",
    schema={
        "type": "object",
        "properties": {"activation": {**ACTIVATION, "default": "tanh"}},
        "additionalProperties": False,
    },
    factory="dpspec.models.convolutional:Lenet5",
)


class Lenet5(Stack):
    """61,706 parameters for ten classes of grey images.

    Unlike the original, the second convolution sees all channels, pooling has no parameters and the scores are linear.
    """

    def layers(self) -> Iterable[Layer]:
        """Images of 28 x 28 are padded to 32 x 32 by the first convolution."""
        shape = self.facts.shape
        if shape[1:] not in ((28, 28), (32, 32)):
            raise ValueError(
                f"lenet5 needs images (channels, height, width) of 28 x 28 or 32 x 32, got records {shape}"
            )
        activation = Activation(self.options.get("activation", "tanh"))
        return (
            *(Convolution(6, kernel=5, padding=(32 - shape[1]) // 2), activation, Pool("average")),
            *(Convolution(16, kernel=5), activation, Pool("average")),
            *(Flatten(), Dense(120), activation, Dense(84), activation, Dense(self.facts.classes)),
        )
