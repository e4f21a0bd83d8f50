"""The model kinds that come with dpspec. Importing this does not import torch."""

from __future__ import annotations

from dpspec.contract import Model
from dpspec.models import cnn_small, lenet5, linear, logistic, mlp, resnet20, tabular_mlp, wide_resnet_16_4

MODELS: tuple[Model, ...] = (
    cnn_small.MODEL,
    lenet5.MODEL,
    linear.MODEL,
    logistic.MODEL,
    mlp.MODEL,
    resnet20.MODEL,
    tabular_mlp.MODEL,
    wide_resnet_16_4.MODEL,
)
