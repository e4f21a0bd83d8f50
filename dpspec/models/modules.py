"""Torch modules that torch itself has no name for. None holds parameters of its own, changes its input or branches."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Sum(nn.Module):
    """body(x) + shortcut(x)."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Records (n, c, h, w) through both."""
        both: Tensor = self.body(x) + self.shortcut(x)
        return both


class Subsample(nn.Module):
    """Every ``stride``-th pixel, and ``more`` channels of zeros behind the others."""

    def __init__(self, stride: int, more: int) -> None:
        super().__init__()
        self.stride = stride
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to (n, c + more, ceil(h / stride), ceil(w / stride))."""
        return nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))


class ZeroFirst(nn.Module):
    """A zero before the scores of each record."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, k) to (n, k + 1)."""
        return torch.nn.functional.pad(x, (1, 0))
