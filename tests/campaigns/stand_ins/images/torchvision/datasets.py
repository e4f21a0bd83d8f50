"""Digits in the place and the size of MNIST's and CIFAR-10's images."""

from typing import Any

import torch
from PIL import Image
from sklearn.datasets import load_digits

#: Digits of the training set; the others are the test set.
_TRAINING = 1200


class MNIST(torch.utils.data.Dataset):
    """Images of 28 x 28 grey values."""

    side, mode, levels = 28, "L", 16

    def __init__(
        self, root: str = "", train: bool = True, transform: Any = None, target_transform: Any = None, **_: object
    ) -> None:
        digits = load_digits()
        part = slice(None, _TRAINING) if train else slice(_TRAINING, None)
        self.data = torch.tensor(digits.images[part] / self.levels * 255.0).to(torch.uint8)
        self.targets = torch.tensor(digits.target[part])
        self.transform, self.target_transform = transform, target_transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image = Image.fromarray(self.data[index].numpy()).resize((self.side, self.side)).convert(self.mode)
        target = int(self.targets[index])
        return (
            self.transform(image) if self.transform else image,
            self.target_transform(target) if self.target_transform else target,
        )


class CIFAR10(MNIST):
    """Images of 32 x 32 pixels in three colors."""

    side, mode = 32, "RGB"
