"""``wide-resnet-16-4``: Zagoruyko and Komodakis (2016), with group normalisation as De et al. (2022) train it."""

from __future__ import annotations

from collections.abc import Iterable

from dpspec.contract import Model
from dpspec.models.layers import Activation, Chain, Convolution, Dense, Flatten, Layer
from dpspec.models.norms import GroupNorm
from dpspec.models.residual import GROUPS, GlobalAverage, Residual
from dpspec.models.stack import ACTIVATION, Stack, images

MODEL = Model(
    kind="wide-resnet-16-4",
    summary="Wide ResNet of depth 16 and width 4 for images from 8 x 8, with group instead of batch normalisation.",
    schema={
        "type": "object",
        "properties": {"groups": {**GROUPS, "default": 16}, "activation": {**ACTIVATION, "default": "relu"}},
        "additionalProperties": False,
    },
    factory="dpspec.models.wide_resnet_16_4:WideResnet16x4",
)


class WideResnet16x4(Stack):
    """2,748,890 parameters for ten classes of colour images.

    Weights have the shapes of the original: three stages of two blocks, 64, 128 and 256 channels, normalisation and
    activation before each convolution, convolutions without biases, a 1 x 1 convolution as shortcut where the shape
    changes. Unlike De et al. the convolutions' weights are not standardised.
    """

    def layers(self) -> Iterable[Layer]:
        """A convolution, six blocks, normalisation, the mean over all pixels, then the scores."""
        images("wide-resnet-16-4", self.facts.shape, 8)
        before = (
            GroupNorm(int(self.options.get("groups", 16))),
            Activation(self.options.get("activation", "relu")),
        )
        yield Convolution(16, kernel=3, padding=1, bias=False)
        for width in (64, 128, 256):
            stride = 2 if width > 64 else 1
            changed = Convolution(width, kernel=1, stride=stride, bias=False)
            yield from before
            yield Residual(Chain(_convolutions(width, stride, before)), Chain((changed,)))
            yield Residual(Chain((*before, *_convolutions(width, 1, before))), Chain(()))
        yield from (*before, GlobalAverage(), Flatten(), Dense(self.facts.classes))


def _convolutions(width: int, stride: int, between: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Two 3 x 3 convolutions with normalisation and activation between them."""
    return (
        Convolution(width, kernel=3, padding=1, stride=stride, bias=False),
        *between,
        Convolution(width, kernel=3, padding=1, bias=False),
    )
