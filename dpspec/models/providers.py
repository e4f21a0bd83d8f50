"""The built-in model kinds. Importing this module does not import torch."""

from __future__ import annotations

from dpspec.contract import Model
from dpspec.models import architectures, transformer

MODELS: tuple[Model, ...] = (
    architectures.CNN_SMALL,
    architectures.LENET5,
    architectures.LINEAR,
    architectures.LOGISTIC,
    architectures.MLP,
    architectures.RESNET20,
    architectures.TABULAR_MLP,
    transformer.TRANSFORMER,
    architectures.WIDE_RESNET_16_4,
)
