"""Which functions have a rule, and how their arguments are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from dpspec.training.ghost_calls import Call, Embedding, GroupNorm, LayerNorm, Linear
from dpspec.training.ghost_convolution import Convolution


class Rule(Protocol):
    """Reads the arguments of a function as a call; None where it is used in a way without a rule."""

    def __call__(self, name_of: Mapping[int, str], *args: Any, **kwargs: Any) -> tuple[Tensor, Call] | None:
        """name_of: the trained parameters' names by the id of their tensors. Returns the input and the call."""


def _linear(
    name_of: Mapping[int, str], input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Call] | None:
    return (input, Linear(weight, bias, _names(name_of, weight, bias))) if weight.ndim == 2 else None


def _convolution(spatial: int) -> Rule:
    def rule(
        name_of: Mapping[int, str],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> tuple[Tensor, Call] | None:
        if isinstance(padding, str) or input.ndim != spatial + 2:
            return None
        steps, sides, gaps = (_each(size, spatial) for size in (stride, padding, dilation))
        return input, Convolution(weight, bias, _names(name_of, weight, bias), steps, sides, gaps, groups)

    return rule


def _embedding(
    name_of: Mapping[int, str],
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> tuple[Tensor, Call] | None:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None
    return input, Embedding(weight, name_of.get(id(weight)), padding_idx)


def _group_norm(
    name_of: Mapping[int, str],
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Call] | None:
    return input, GroupNorm(weight, bias, _names(name_of, weight, bias), num_groups, eps)


def _layer_norm(
    name_of: Mapping[int, str],
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Call] | None:
    return input, LayerNorm(weight, bias, _names(name_of, weight, bias), tuple(normalized_shape), eps)


def _names(name_of: Mapping[int, str], weight: Tensor | None, bias: Tensor | None) -> tuple[str | None, str | None]:
    return name_of.get(id(weight)), name_of.get(id(bias))


def _each(size: Any, spatial: int) -> tuple[int, ...]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return sizes * spatial if len(sizes) == 1 else sizes


#: The functions with a rule, as torch's own modules call them.
RULES: dict[Any, Rule] = {
    nn.functional.linear: _linear,
    nn.functional.conv1d: _convolution(1),
    nn.functional.conv2d: _convolution(2),
    nn.functional.conv3d: _convolution(3),
    nn.functional.embedding: _embedding,
    nn.functional.group_norm: _group_norm,
    nn.functional.layer_norm: _layer_norm,
}
