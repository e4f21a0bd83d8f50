"""The memory of a GPU as torch's allocator keeps it: what was freed stays reserved until the cache is emptied."""

from __future__ import annotations

from collections import Counter

import torch


class Card:
    """One GPU. ``capacity``, in bytes, may be changed at any time."""

    def __init__(self, index: int, capacity: int) -> None:
        self.index, self.capacity = index, capacity
        self.allocated = self.reserved = self.most_reserved = self.refusals = 0
        self._holders: Counter[int] = Counter()

    @property
    def name(self) -> str:
        return f"cuda:{self.index}"

    @property
    def free(self) -> int:
        """As the driver says it: the cache counts as taken."""
        return max(0, self.capacity - self.reserved)

    def lease(self, storage: torch.UntypedStorage, *, forced: bool) -> Lease:
        """Room for a storage, once for all tensors that share it; ``torch.OutOfMemoryError`` where there is none.

        forced: even then.
        """
        pointer, size = storage.data_ptr(), storage.nbytes()
        if size and not self._holders[pointer]:
            if self.allocated + size > self.capacity and not forced:
                self.refusals += 1
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {size} bytes. GPU {self.index} has a total capacity of "
                    f"{self.capacity} bytes of which {self.capacity - self.allocated} bytes are free."
                )
            self.allocated += size
            self.reserved = max(self.reserved, self.allocated)
            self.most_reserved = max(self.most_reserved, self.reserved)
        self._holders[pointer] += 1
        return Lease(self, pointer, size)

    def give_back(self, pointer: int, size: int) -> None:
        self._holders[pointer] -= 1
        if not self._holders[pointer]:
            del self._holders[pointer]
            self.allocated -= size

    def empty_cache(self) -> None:
        """Give the driver what no tensor holds."""
        self.reserved = self.allocated


class Lease:
    """What a tensor holds of a card as long as it lives."""

    def __init__(self, card: Card, pointer: int, size: int) -> None:
        self._held = card, pointer, size

    def __del__(self) -> None:
        card, pointer, size = self._held
        card.give_back(pointer, size)
