"""Chunk sizes from the memory per record and the free memory."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

#: Target bytes per chunk. Larger chunks on a CPU make the C library return and request memory repeatedly; a GPU needs
#: more to stay busy.
_PREFERRED = {"cpu": 48 * 2**20, "cuda": 2**30}

#: Minimum number of records per call for efficiency. A chunk may be this many times larger for large records.
RECORDS = 32
_STRETCH = 4

#: Fragments of out-of-memory errors that have no type of their own. cuDNN without workspace memory reports that no
#: algorithm exists.
_RAN_OUT = (
    *("not enough memory", "can't allocate memory", "bad_alloc", "ALLOC_FAILED", "out of memory"),
    *("CUDNN_STATUS_NOT_SUPPORTED", "CUDNN_STATUS_INTERNAL_ERROR", "valid cuDNN algorithm", "unable to find an engine"),
)

T = TypeVar("T")

#: Assumed free bytes if the system does not report them.
_UNKNOWN = 2**30


def free_bytes(device: str | torch.device) -> int:
    """Free memory of a device in bytes, including torch's cached GPU blocks and respecting container limits."""
    where = torch.device(device)
    if where.type == "cuda":
        cached = torch.cuda.memory_reserved(where) - torch.cuda.memory_allocated(where)
        return int(torch.cuda.mem_get_info(where)[0]) + max(0, cached)
    limits = [value for value in (_available(), _container()) if value is not None]
    return min(limits, default=_UNKNOWN)


def chunk_size(bytes_per_record: int, device: str | torch.device, large: int = RECORDS) -> int:
    """Number of records per chunk: at least 1, rounded down to a power of two.

    The constants and the rounding keep chunk sizes, and thus the last bits of sums, independent of the current load.
    """
    where = torch.device(device)
    preferred = _PREFERRED.get(where.type, _PREFERRED["cpu"])
    stretched = max(preferred, min(large * bytes_per_record, _STRETCH * preferred))
    budget = min(stretched, free_bytes(where) // 4)
    records = max(1, budget // max(1, bytes_per_record))
    return 1 << (int(records).bit_length() - 1)


def halving(work: Callable[[int], T], size: int, most: int | None = None) -> tuple[T, int | None]:
    """Run ``work(size)`` from scratch with half the size while it runs out of memory; return the last size that fit."""
    size = size if most is None else min(size, most)
    while True:
        try:
            return work(size), most
        except (RuntimeError, MemoryError) as error:
            if size == 1 or not ran_out(error):
                raise
        most = size = size // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def ran_out(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _RAN_OUT)


def activation_bytes(model: nn.Module, x: Tensor) -> int:
    """Bytes that autograd keeps for one record, measured by a forward pass over ``x`` (1, ...)."""
    x = x.clone()  # a view would count the whole dataset
    parameter_storages = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved_bytes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameter_storages:
            saved_bytes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(x)
    return sum(saved_bytes.values())


def _available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    for pages, share in (("SC_AVPHYS_PAGES", 1), ("SC_PHYS_PAGES", 2)):  # macOS does not report free memory
        with suppress(AttributeError, OSError, ValueError):
            return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") // share
    return None


def _container() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = int((folder / "memory.max").read_text(encoding="ascii"))
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        files = int(statistics["inactive_file"])  # the page cache, which is reclaimed on demand
    except (OSError, ValueError, KeyError):  # "max" means no limit
        return None
    return max(0, limit - used + files)
