"""``resnet20``: the residual network of He, Zhang, Ren and Sun (2016) for CIFAR, with group normalisation."""

from __future__ import annotations

from collections.abc import Iterable

from dpspec.contract import Model
from dpspec.models.layers import Activation, Chain, Convolution, Dense, Flatten, Layer
from dpspec.models.norms import GroupNorm
from dpspec.models.residual import GROUPS, GlobalAverage, Residual, Subsample
from dpspec.models.stack import ACTIVATION, Stack, images

MODEL = Model(
    kind="resnet20",
    summary="ResNet-20 for images from 8 x 8, with group normalisation instead of batch normalisation.",
    schema={
        "type": "object",
        "properties": {"groups": {**GROUPS, "default": 8}, "activation": {**ACTIVATION, "default": "relu"}},
        "additionalProperties": False,
    },
    factory="dpspec.models.resnet20:Resnet20",
)


class Resnet20(Stack):
    """269,722 parameters for ten classes of colour images.

    Weights have the shapes of the original: three stages of three blocks, 16, 32 and 64 channels, convolutions
    without biases, shortcuts without parameters (the paper's option A).
    """

    def layers(self) -> Iterable[Layer]:
        """A convolution, nine blocks, the mean over all pixels, then the scores."""
        images("resnet20", self.facts.shape, 8)
        norm = GroupNorm(int(self.options.get("groups", 8)))
        activation = Activation(self.options.get("activation", "relu"))
        yield from (Convolution(16, kernel=3, padding=1, bias=False), norm, activation)
        for width in (16, 32, 64):
            for first in (True, False, False):
                stride = 2 if first and width > 16 else 1
                body = (
                    *(Convolution(width, kernel=3, padding=1, stride=stride, bias=False), norm, activation),
                    *(Convolution(width, kernel=3, padding=1, bias=False), norm),
                )
                shortcut = (Subsample(width, stride),) if stride > 1 else ()
                yield from (Residual(Chain(body), Chain(shortcut)), activation)
        yield from (GlobalAverage(), Flatten(), Dense(self.facts.classes))
