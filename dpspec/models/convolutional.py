"""Small models for images: ``cnn-small``, and a modern ``lenet5`` (LeCun, Bottou, Bengio and Haffner 1998)."""

from __future__ import annotations

from collections.abc import Iterable

from dpspec.contract import Model
from dpspec.models.layers import ACTIVATION, Activation, Convolution, Dense, Flatten, Layer, Pool, Stack, check_images

CNN_SMALL = Model(
    kind="cnn-small",
    summary="3 x 3 convolutions with pooling, then one dense layer; for images of at least 8 x 8.",
    schema={
        "type": "object",
        "properties": {
            "channels": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": 4096},
                "minItems": 1,
                "maxItems": 8,
                "default": [16, 32],
                "description": "The number of channels after each convolution.",
            },
            "activation": {**ACTIVATION, "default": "relu"},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.convolutional:CnnSmall",
)


class CnnSmall(Stack):
    """Convolutions from b to c channels with (9 b + 1) c parameters each, then (inputs + 1) classes parameters."""

    def layers(self) -> Iterable[Layer]:
        """Yield convolution, activation and max pooling per entry of ``channels``, then the scores."""
        check_images("cnn-small", self.facts.shape, 8)
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
    """LeNet-5 with 61,706 parameters for ten classes of grayscale images.

    Unlike in the original, the second convolution uses all channels, pooling has no parameters, and the scores are
    linear.
    """

    def layers(self) -> Iterable[Layer]:
        """Return the layers. The first convolution pads images of 28 x 28 to 32 x 32."""
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
