"""The built-in model kinds. Importing this module does not import torch."""

from __future__ import annotations

from dpspec.contract import Model
from dpspec.models import convolutional, dense, residual, transformer

MODELS: tuple[Model, ...] = (
    convolutional.CNN_SMALL,
    convolutional.LENET5,
    dense.LINEAR,
    dense.LOGISTIC,
    dense.MLP,
    residual.RESNET20,
    dense.TABULAR_MLP,
    transformer.TRANSFORMER,
    residual.WIDE_RESNET_16_4,
)
