"""Models of dense layers: ``linear``, ``logistic``, ``mlp`` and ``tabular-mlp``.

``logistic`` uses a reference class, so that two classes have one logit. ``linear`` has one score per class: the
decision regions of its softmax are the same, but adding a constant to all scores has no effect, and for two classes a
record's gradient is sqrt(2) times as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpspec.contract import Model
from dpspec.models.layers import ACTIVATION, HIDDEN, Activation, Dense, Flatten, Layer, LayerNorm, Shape, Stack

if TYPE_CHECKING:
    import torch


LINEAR = Model(
    kind="linear",
    summary="One linear score per class (multinomial logistic regression).",
    schema={
        "type": "object",
        "properties": {
            "bias": {"type": "boolean", "default": True, "description": "Add a constant term to every score."},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.dense:Linear",
)


class Linear(Stack):
    """Linear scores with features x classes weights and ``classes`` biases."""

    def layers(self) -> Iterable[Layer]:
        """Return a flatten and a dense layer."""
        return Flatten(), Dense(self.facts.classes, bias=bool(self.options.get("bias", True)))


LOGISTIC = Model(
    kind="logistic",
    summary="Logistic regression: one linear score per class except the first, whose score is 0.",
    schema={
        "type": "object",
        "properties": {
            "bias": {"type": "boolean", "default": True, "description": "Add a constant term to every score."},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.dense:Logistic",
)


class Logistic(Stack):
    """Logistic regression with (features + 1) (classes - 1) parameters.

    For two classes the loss is log(1 + exp(-s z)) with z = w x + b, s = 1 for class 1 and s = -1 for class 0. The norm
    of its gradient in (w, b) is at most sqrt(||x||^2 + 1).
    """

    def layers(self) -> Iterable[Layer]:
        """Return a flatten and a dense layer, and the score of the reference class."""
        return Flatten(), Dense(self.facts.classes - 1, bias=bool(self.options.get("bias", True))), Reference()


@dataclass(frozen=True)
class Reference(Layer):
    """(k,) to (k + 1,): prepend the score 0 of the reference class."""

    def output(self, shape: Shape) -> Shape:
        """Return (k + 1,)."""
        return (shape[0] + 1,)

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Return a :class:`dpspec.models.modules.ZeroFirst`."""
        from dpspec.models.modules import ZeroFirst

        return ZeroFirst()


MLP = Model(
    kind="mlp",
    summary="Dense layers with activations between them.",
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
        """Yield a flatten layer, then dense layers and activations."""
        yield Flatten()
        for width in self.options.get("hidden", (64,)):
            yield Dense(int(width))
            yield Activation(self.options.get("activation", "relu"))
        yield Dense(self.facts.classes)


TABULAR_MLP = Model(
    kind="tabular-mlp",
    summary="Dense layers with layer normalization, for tabular records.",
    schema={
        "type": "object",
        "properties": {
            "hidden": {**HIDDEN, "default": [128, 64]},
            "activation": {**ACTIVATION, "default": "relu"},
            "layer_norm": {
                "type": "boolean",
                "default": True,
                "description": "Normalize the output of each hidden layer per record before the activation. Unlike "
                "batch normalization, this uses no statistics of the data.",
            },
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.dense:TabularMlp",
)


class TabularMlp(Stack):
    """Like ``mlp``, with 2 h additional parameters for each normalized hidden layer of width h.

    Features are not scaled: use ``data.standardise`` with public constants.
    """

    def layers(self) -> Iterable[Layer]:
        """Yield dense layer, normalization and activation per entry of ``hidden``, then the scores."""
        shape = self.facts.shape or (self.facts.features,)
        if len(shape) != 1:
            raise ValueError(f"tabular-mlp needs records of shape (features,), got {shape}; use mlp for images")
        for width in self.options.get("hidden", (128, 64)):
            yield Dense(int(width))
            if self.options.get("layer_norm", True):
                yield LayerNorm()
            yield Activation(self.options.get("activation", "relu"))
        yield Dense(self.facts.classes)
