"""``logistic``: logistic regression against a reference class, so that two classes have the usual one logit.

``linear`` gives every class a score of its own. Its softmax has the same decision regions, but adding one constant to
all scores changes nothing, and for two classes a record's gradient is sqrt(2) times as long as here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpspec.contract import Model
from dpspec.models.layers import Dense, Flatten, Layer, Shape
from dpspec.models.stack import Stack

if TYPE_CHECKING:
    import torch

MODEL = Model(
    kind="logistic",
    summary="Logistic regression: one linear score for each class but the first, whose score is 0.",
    schema={
        "type": "object",
        "properties": {
            "bias": {"type": "boolean", "default": True, "description": "Whether every score has a constant term."},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.logistic:Logistic",
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
