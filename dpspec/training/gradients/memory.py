"""How many records to take at once: measured bytes per record against measured free memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

#: Bytes that one chunk aims at. On a CPU, more make the C library hand memory back and forth. A GPU wants enough
#: work to be busy.
_PREFERRED = {"cpu": 48 * 2**20, "cuda": 2**30}

#: Fewer records than this leave too little work for each call: for them a chunk may be so many times as large.
RECORDS = 32
_STRETCH = 4

#: What errors say that are, or may be, those of an allocator and have no type of their own: cuDNN, where it gets no
#: memory to work in, says that there is no way to compute this at all.
_RAN_OUT = (
    *("not enough memory", "can't allocate memory", "bad_alloc", "ALLOC_FAILED", "out of memory"),
    *("CUDNN_STATUS_NOT_SUPPORTED", "CUDNN_STATUS_INTERNAL_ERROR", "valid cuDNN algorithm", "unable to find an engine"),
)

T = TypeVar("T")

#: Where the system tells nothing about its memory.
_UNKNOWN = 2**30


def free_bytes(device: str | torch.device) -> int:
    """The memory that is free on a device now, in bytes.

    On a GPU what torch keeps of earlier work for the next counts as free; on a CPU the limits of a container count.
    """
    where = torch.device(device)
    if where.type == "cuda":
        kept = torch.cuda.memory_reserved(where) - torch.cuda.memory_allocated(where)
        return int(torch.cuda.mem_get_info(where)[0]) + max(0, kept)
    found = [value for value in (_available(), _container()) if value is not None]
    return min(found, default=_UNKNOWN)


def chunk_size(
    bytes_per_record: int, device: str | torch.device, budget: int | None = None, large: int = RECORDS
) -> int:
    """Records per chunk, at least one, rounded down to a power of two.

    Without a ``budget`` (bytes) it is a constant of the device, up to four times that for as many as ``large`` records,
    and less where a quarter of the free memory is less. The constants and the rounding keep the chunks, and so the last
    bits of every sum, from following the weather of the machine.
    """
    if budget is None:
        where = torch.device(device)
        preferred = _PREFERRED.get(where.type, _PREFERRED["cpu"])
        stretched = max(preferred, min(large * bytes_per_record, _STRETCH * preferred))
        budget = min(stretched, free_bytes(where) // 4)
    records = max(1, budget // max(1, bytes_per_record))
    return 1 << (int(records).bit_length() - 1)


def keep_freed() -> None:
    """Let the C library keep what a chunk frees for the next one.

    GNU's gives memory back to the system beyond twice the largest block that it has ever seen freed (at most 32 MiB),
    and every page that it gets again costs microseconds. One large block, never touched, shows it the size of things.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


def halving(work: Callable[[int], T], size: int, most: int | None = None) -> tuple[T, int | None]:
    """``work(size)``, or where that runs out of memory ``work(size // 2)``, and so on; and the size that did not.

    most: the size that an earlier call came down to, or None where none had to; in turn the second result. ``work``
    starts afresh each time, so that what it returns depends on the last size alone.
    """
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
    """Whether an error says that there is not enough memory, on a GPU or not."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _RAN_OUT)


def activation_bytes(model: nn.Module, x: Tensor) -> int:
    """The bytes that autograd keeps for one record, measured by one forward pass over ``x`` (1, ...)."""
    x = x.clone()  # a view would be charged with the whole data set that it looks into
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(x)
    return sum(kept.values())


def _available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    for pages, share in (("SC_AVPHYS_PAGES", 1), ("SC_PHYS_PAGES", 2)):  # macOS does not tell what is free of all
        with suppress(AttributeError, OSError, ValueError):
            return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") // share
    return None


def _container() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = int((folder / "memory.max").read_text(encoding="ascii"))
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        told = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        files = int(told["inactive_file"])  # copies of files, which make room when it is needed
    except (OSError, ValueError, KeyError):  # no limit is written as "max"
        return None
    return max(0, limit - used + files)
