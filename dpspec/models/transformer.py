"""``transformer``: a small encoder for texts (Vaswani et al. 2017).

Every part has its normalisation before it (Xiong et al. 2020). Padding, id 0, is neither attended to nor averaged over.
There is no dropout: the noise of DP-SGD already regularises.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpspec.contract import Json, Model
from dpspec.models.layers import Dense, Layer, Shape
from dpspec.models.stack import Stack

if TYPE_CHECKING:
    import torch


def _size(default: int, most: int, description: str) -> dict[str, Json]:
    return {"type": "integer", "minimum": 1, "maximum": most, "default": default, "description": description}


TRANSFORMER = Model(
    kind="transformer",
    summary="A small transformer encoder for texts of tokens; the scores are made of the mean over all tokens.",
    schema={
        "type": "object",
        "properties": {
            "width": _size(32, 4096, "The length of the vector that stands for a token; a multiple of heads."),
            "heads": _size(2, 64, "How many heads attention has."),
            "layers": _size(1, 48, "How many layers there are, each attention and two dense layers."),
            "hidden": _size(64, 65536, "The width between the two dense layers of each layer."),
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.transformer:Transformer",
    tokens=True,
)


class Transformer(Stack):
    """w (vocabulary + length) + layers (4 w (w + 1) + 4 w + 2 h w + h + w) + 2 w + classes (w + 1) parameters.

    w is the width and h what stands between the dense layers.
    """

    def layers(self) -> Iterable[Layer]:
        """The encoder, then the scores. Raises ``ValueError`` for records that are no texts."""
        if self.facts.vocabulary is None or len(self.facts.shape) != 1:
            raise ValueError("transformer needs texts of tokens, such as data of kind tokens, and the records are none")
        width, heads = int(self.options.get("width", 32)), int(self.options.get("heads", 2))
        if width % heads:
            raise ValueError(f"width must be a multiple of heads ({heads}), got {width}")
        depth, hidden = int(self.options.get("layers", 1)), int(self.options.get("hidden", 64))
        return Encoder(self.facts.vocabulary, width, heads, depth, hidden), Dense(self.facts.classes)


@dataclass(frozen=True)
class Encoder(Layer):
    """Ids (length,) to (width,): the mean over the vectors of all tokens that are no padding."""

    vocabulary: int
    width: int
    heads: int
    depth: int
    hidden: int

    def output(self, shape: Shape) -> Shape:
        """(width,)."""
        return (self.width,)

    def parameters(self, shape: Shape) -> int:
        """Two tables, every layer, and the last normalisation."""
        w, h = self.width, self.hidden
        each = 4 * w * (w + 1) + 4 * w + 2 * h * w + h + w
        return w * (self.vocabulary + shape[0]) + self.depth * each + 2 * w

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """:class:`dpspec.models.modules.Encoder`: normal tables (0, 0.1), dense layers as elsewhere."""
        import torch

        from dpspec.models.modules import Encoder as Module

        made = Module(self.vocabulary, shape[0], self.width, self.heads, self.depth, self.hidden)
        with torch.no_grad():
            for part in made.modules():
                if isinstance(part, torch.nn.Embedding):
                    part.weight.normal_(0.0, 0.1, generator=generator)
                elif isinstance(part, torch.nn.Linear):
                    bound = part.in_features**-0.5
                    part.weight.uniform_(-bound, bound, generator=generator)
                    part.bias.uniform_(-bound, bound, generator=generator)
                elif isinstance(part, torch.nn.LayerNorm):
                    part.weight.fill_(1.0)
                    part.bias.zero_()
        return made
