"""The function whose name Transformers reads when it is imported."""

from typing import Any

import numpy as np
import torch


def pil_to_tensor(image: Any) -> torch.Tensor:
    values = np.array(image)
    return torch.tensor(values[None] if values.ndim == 2 else values.transpose(2, 0, 1))
