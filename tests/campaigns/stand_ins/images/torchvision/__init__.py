"""The part of torchvision that official examples use, on scikit-learn's digits."""

from . import datasets, models, transforms, utils

__all__ = ["datasets", "models", "transforms", "utils"]
