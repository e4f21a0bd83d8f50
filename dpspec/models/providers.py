"""The model kinds that come with dpspec. Importing this does not import torch."""

from __future__ import annotations

from dpspec.contract import Model
from dpspec.models import cnn_small, lenet5, linear, mlp

MODELS: tuple[Model, ...] = (cnn_small.MODEL, lenet5.MODEL, linear.MODEL, mlp.MODEL)
