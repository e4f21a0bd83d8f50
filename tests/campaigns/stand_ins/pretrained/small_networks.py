"""A small new network in the place of downloaded weights."""

from typing import Any

from torch import nn


def create_model(name: str, pretrained: bool, num_classes: int) -> Any:
    return nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(392, num_classes))
