"""Transforms of one image, with torchvision's names. Random ones draw from torch's generator, as torchvision's do."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.nn import functional

#: Transformers reads these names when it is imported.
InterpolationMode = Enum("InterpolationMode", "NEAREST NEAREST_EXACT BOX BILINEAR HAMMING BICUBIC LANCZOS")


class Compose:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image: Any) -> torch.Tensor:
        values = np.asarray(image, dtype=np.float32) / 255.0
        return torch.tensor(values[None] if values.ndim == 2 else values.transpose(2, 0, 1))


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - self.mean) / self.std


class Resize:
    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Any) -> Any:
        return image.resize((self.size, self.size))


class RandomHorizontalFlip:
    def __call__(self, image: Any) -> Any:
        flipped = float(torch.rand(())) < 0.5
        return image.transpose(0) if flipped else image  # 0: PIL's code of left to right


class RandomCrop:
    def __init__(self, size: int, padding: int = 0) -> None:
        self.size, self.padding = size, padding

    def __call__(self, image: Any) -> Any:
        padded = functional.pad(torch.tensor(np.asarray(image)).permute(2, 0, 1), (self.padding,) * 4)
        top, left = torch.randint(padded.shape[-1] - self.size + 1, (2,)).tolist()
        cropped = padded[:, top : top + self.size, left : left + self.size]
        return _image(cropped.permute(1, 2, 0).numpy())


def _image(values: Any) -> Any:
    from PIL import Image

    return Image.fromarray(values)
