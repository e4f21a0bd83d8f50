"""Parameters that FSDP2 shards over the processes, and the rows of this process."""

import sys
from typing import Any

import torch
from torch import nn

from dpspec.errors import UsageError

_ADVICE = "use FSDP2Wrapper of Opacus, without mp_policy, on a model in float32, over all processes"


def local(value: Any) -> Any:
    """The rows of a sharded tensor in this process; any other value unchanged."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return value if kind is None or type(value) is not kind else value._local_tensor


def shard_of(p: Any) -> tuple[int, int]:
    """The place of the first coordinate of this process in a parameter, and the number of all its coordinates.

    ``UsageError`` unless the processes hold consecutive rows, each row once, in float32 or float64.
    """
    mesh, local_shard, rows = getattr(p, "device_mesh", None), local(p), len(p) if p.dim() else 0
    if mesh is None or not rows:
        raise UsageError(f"the optimizer is for sharded parameters, and one is whole: {_ADVICE}")
    rows_per_process = -(-rows // mesh.size())
    start = min(mesh.get_local_rank() * rows_per_process, rows) if mesh.ndim == 1 else 0
    fits = mesh.ndim == 1 and mesh.size() == torch.distributed.get_world_size()
    fits = fits and [type(placement).__name__ for placement in p.placements] == ["Shard"] and p.placements[0].dim == 0
    if (
        not fits
        or local_shard.shape != (min(rows_per_process, rows - start), *p.shape[1:])
        or local_shard.dtype not in (torch.float32, torch.float64)
    ):
        raise UsageError(f"a parameter is not sharded by rows over all processes: {_ADVICE}")
    return start * (p.numel() // rows), p.numel()


def refuse_precision(model: nn.Module) -> None:
    """Raise ``UsageError`` if FSDP2 gathers parameters or sums gradients in another precision than their own."""
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", None)
        policy = getattr(state(), "_mp_policy", None) if callable(state) else None
        kinds = {getattr(policy, name, None) for name in ("param_dtype", "reduce_dtype", "output_dtype")}
        if kinds - {None, torch.float32}:
            raise UsageError(
                f"the model has a mixed precision policy, whose rounding the recorder cannot bound: {_ADVICE}"
            )
