"""Full float32, whatever the process allows elsewhere: no TF32, no autocast, no algorithms chosen by the clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Within it float32 is float32 on ``device``; what the process had set before comes back at the end.

    On a GPU torch lets cuDNN's convolutions round their inputs to TF32 (10 bits) unless told otherwise.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with (
            torch.autocast(device.type, enabled=False),
            torch.backends.cudnn.flags(
                enabled=torch.backends.cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False
            ),
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
