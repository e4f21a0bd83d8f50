"""The directions of a sketch, written out in full."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from dpspec_recording.watching.noise_sketch import NoiseSketch


def directions(sketch: NoiseSketch, sizes: Sequence[int]) -> Tensor:
    """(width, sum of sizes) unit vectors."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = torch.zeros(sketch.width, int(starts[-1]), dtype=torch.float64)
    for low, high in pairwise(starts.tolist()):
        for i in range(high - low):
            rows[i % sketch.width, low + i] = sketch._signs[i // sketch.width % len(sketch._signs), i % sketch.width]
    return rows / sketch._lengths[: sketch.width, None]
