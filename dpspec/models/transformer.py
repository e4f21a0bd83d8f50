"""Model kind ``transformer``: a small encoder for texts (Vaswani et al. 2017).

Normalization precedes each part (Xiong et al. 2020). Attention and the final mean ignore padding, id 0. There is no
dropout, because the noise of DP-SGD already regularizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpspec.contract import Json, Model
from dpspec.models.layers import Dense, Layer, Shape, Stack

if TYPE_CHECKING:
    import torch


def _size(default: int, most: int, description: str) -> dict[str, Json]:
    return {"type": "integer", "minimum": 1, "maximum": most, "default": default, "description": description}


TRANSFORMER = Model(
    kind="transformer",
    summary="A small transformer encoder for token sequences, with scores from the mean over all tokens.",
    schema={
        "type": "object",
        "properties": {
            "width": _size(32, 4096, "The length of a token's vector; a multiple of heads."),
            "heads": _size(2, 64, "The number of attention heads."),
            "layers": _size(1, 48, "The number of layers, each with attention and two dense layers."),
            "hidden": _size(64, 65536, "The width between the two dense layers of each layer."),
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.transformer:Transformer",
    tokens=True,
)


class Transformer(Stack):
    def layers(self) -> Iterable[Layer]:
        if self.facts.vocabulary is None or len(self.facts.shape) != 1:
            raise ValueError("transformer needs records of token ids, such as data of kind tokens")
        width, heads = int(self.options.get("width", 32)), int(self.options.get("heads", 2))
        if width % heads:
            raise ValueError(f"width must be a multiple of heads ({heads}), got {width}")
        depth, hidden = int(self.options.get("layers", 1)), int(self.options.get("hidden", 64))
        return Encoder(self.facts.vocabulary, width, heads, depth, hidden), Dense(self.facts.classes)


@dataclass(frozen=True)
class Encoder(Layer):
    vocabulary: int
    width: int
    heads: int
    depth: int
    hidden: int

    def output(self, shape: Shape) -> Shape:
        return (self.width,)

    def parameters(self, shape: Shape) -> int:
        w, h = self.width, self.hidden
        each = 4 * w * (w + 1) + 4 * w + 2 * h * w + h + w
        return w * (self.vocabulary + shape[0]) + self.depth * each + 2 * w

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Draw embeddings from N(0, 0.1^2), and dense layers by fan-in."""
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
