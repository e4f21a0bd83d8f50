"""Gradient centralization: a noisy gradient without its mean along some of its axes.

It is a public projection of the noisy sum, so a post-processing: no record is read. Other public maps are too, but
trainings use this one (Yong et al. 2020), and the gradients alone show it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

#: The coarsest resolution of gradients that are compared: in half precision rounding would hide a sum without noise.
_COARSEST = 2.0**-20

#: Upper bound on the number of roundings of a mean and its subtraction, in units of the largest coordinate.
_ROUNDINGS = 16.0


def is_centered(noisy: Sequence[Tensor], got: Sequence[Tensor]) -> bool:
    """Return whether each tensor of ``got`` is the one of ``noisy``, or this one without its mean along some axes.

    The axes are all but the first, as for the rows of a layer, all but the last, the first, or all.

    Args:
        noisy: The noisy gradients.
        got: The gradients of the step, of the same shapes and in the same unit.
    """
    return len(noisy) == len(got) and all(map(_is_centered, noisy, got))


def is_centered_row(noisy: Tensor, got: Tensor, shapes: Sequence[torch.Size]) -> bool:
    """The same for two rows (coordinates,) of all tensors, of these shapes."""
    rows = (torch.split(row, [shape.numel() for shape in shapes]) for row in (noisy, got))
    before, after = ([part.view(shape) for part, shape in zip(row, shapes, strict=True)] for row in rows)
    return is_centered(before, after)


@torch.no_grad()
def _is_centered(noisy: Tensor, got: Tensor) -> bool:
    if noisy.shape != got.shape or noisy.is_sparse or got.is_sparse:
        return False
    if torch.equal(noisy, got.to(noisy.dtype)):
        return True
    source, result = noisy.detach().double(), got.detach().double()
    unit = max(torch.finfo(noisy.dtype).eps, torch.finfo(got.dtype).eps)
    if not noisy.numel() or unit > _COARSEST or not bool(source.isfinite().all()):
        return False
    tolerance = _ROUNDINGS * unit * float(source.abs().max())
    dims = tuple(range(noisy.dim()))
    candidates = dict.fromkeys(((), dims[1:], dims[:-1], dims[:1], dims))
    return any(float((_without_mean(source, axes) - result).abs().max()) <= tolerance for axes in candidates)


def _without_mean(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    return tensor - tensor.mean(dim=axes, keepdim=True) if axes else tensor
