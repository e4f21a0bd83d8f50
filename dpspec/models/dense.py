"""Models of dense layers alone: ``linear``, ``logistic``, ``mlp`` and ``tabular-mlp``.

``logistic`` is logistic regression against a reference class, so that two classes have the usual one logit. ``linear``
gives every class a score of its own. Its softmax has the same decision regions, but adding one constant to all scores
changes nothing, and for two classes a record's gradient is sqrt(2) times as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpspec.contract import Model
from dpspec.models.layers import Activation, Dense, Flatten, Layer, LayerNorm, Shape
from dpspec.models.stack import ACTIVATION, HIDDEN, Stack

if TYPE_CHECKING:
    import torch


LINEAR = Model(
    kind="linear",
    summary="One linear score per class (multinomial logistic regression).",
    schema={
        "type": "object",
        "properties": {
            "bias": {"type": "boolean", "default": True, "description": "Whether every score has a constant term."},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.dense:Linear",
)


class Linear(Stack):
    """features x classes weights, and classes biases."""

    def layers(self) -> Iterable[Layer]:
        """Flattens images first."""
        return Flatten(), Dense(self.facts.classes, bias=bool(self.options.get("bias", True)))


LOGISTIC = Model(
    kind="logistic",
    summary="Logistic regression: one linear score for each class but the first, whose score is 0.",
    schema={
        "type": "object",
        "properties": {
            "bias": {"type": "boolean", "default": True, "description": "Whether every score has a constant term."},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.dense:Logistic",
)


class Logistic(Stack):
    """(features + 1) (classes - 1) parameters.

    For two classes the loss is log(1 + exp(-s z)), z = w x + b and s = 1 for class 1, -1 for class 0; its gradient
    in (w, b) is at most sqrt(||x||^2 + 1) long.
    """

    def layers(self) -> Iterable[Layer]:
        """Flattens images first."""
        return Flatten(), Dense(self.facts.classes - 1, bias=bool(self.options.get("bias", True))), Reference()


@dataclass(frozen=True)
class Reference(Layer):
    """(k,) to (k + 1,): the score 0 of the reference class before the others."""

    def output(self, shape: Shape) -> Shape:
        """(k + 1,)."""
        return (shape[0] + 1,)

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """:class:`dpspec.models.modules.ZeroFirst`."""
        from dpspec.models.modules import ZeroFirst

        return ZeroFirst()


MLP = Model(
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
    factory="dpspec.models.dense:Mlp",
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


TABULAR_MLP = Model(
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
    factory="dpspec.models.dense:TabularMlp",
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
