"""The memory of GPUs as in torch's allocator, and counts of waits, copies and products."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch

#: Folders whose lines are reported.
_ROOT = Path(__file__).parents[3]
_OURS = tuple(str(_ROOT / folder) for folder in ("dpspec", "plugins"))


class Account:
    """Counts by line of the project, as ``path:number``.

    waits: synchronizations of the host with the device. copies: between host and device, synchronous or not.
    coarse: products whose factors TF32 may round.
    """

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.coarse: Counter[str] = Counter()

    def wait(self) -> None:
        self.waits[_line()] += 1

    def copy(self, *, waits: bool) -> None:
        line = _line()
        self.copies[line] += 1
        self.waits[line] += waits

    def product(self) -> None:
        self.coarse[_line()] += 1

    def since(self, earlier: Account) -> Account:
        """The waits and copies after ``earlier``, a copy of this account."""
        rest = Account()
        rest.waits, rest.copies = self.waits - earlier.waits, self.copies - earlier.copies
        return rest

    def now(self) -> Account:
        return self.since(Account())


def _line() -> str:
    """The innermost line of the project on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OURS):
            return f"{Path(file).relative_to(_ROOT)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "external"


class Card:
    """One GPU. ``capacity``, in bytes, can change at any time. Freed memory stays reserved in the cache."""

    def __init__(self, index: int, capacity: int) -> None:
        self.index, self.capacity, self.name = index, capacity, f"cuda:{index}"
        self.allocated = self.reserved = self.most_reserved = self.refusals = 0
        self.holders: Counter[int] = Counter()

    def free(self) -> int:
        """The free memory as in the driver's report, which counts the cache as used."""
        return max(0, self.capacity - self.reserved)


class Lease:
    """The memory of a storage on a card, shared by its tensors and freed with the last one."""

    def __init__(self, card: Card, storage: torch.UntypedStorage, *, forced: bool) -> None:
        """Raise ``torch.OutOfMemoryError`` if memory is short, unless ``forced``."""
        pointer, size = storage.data_ptr(), storage.nbytes()
        if size and not card.holders[pointer]:
            if card.allocated + size > card.capacity and not forced:
                card.refusals += 1
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
            card.allocated += size
            card.reserved = max(card.reserved, card.allocated)
            card.most_reserved = max(card.most_reserved, card.reserved)
        card.holders[pointer] += 1
        self._held = card, pointer, size

    def __del__(self) -> None:
        if not hasattr(self, "_held"):
            return
        card, pointer, size = self._held
        card.holders[pointer] -= 1
        if not card.holders[pointer]:
            del card.holders[pointer]
            card.allocated -= size
