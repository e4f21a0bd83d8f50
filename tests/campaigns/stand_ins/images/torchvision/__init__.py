"""The part of torchvision that official examples use, on scikit-learn's digits."""

from . import datasets, models, transforms, utils

__all__ = ["datasets", "models", "transforms", "utils"]

#: Transformers reads this name when it is imported.
io = None
