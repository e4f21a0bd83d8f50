"""What the host asked of its GPUs, by the line of the project that asked."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

#: Lines of these folders are named; whoever called torch from elsewhere is named by whom it was called.
_ROOT = Path(__file__).parents[3]
_OURS = tuple(str(_ROOT / folder) for folder in ("dpspec", "plugins"))


class Account:
    """Counts by line, as ``path:number``.

    waits: how often the host stood still until the device was done. copies: how often something was copied between
    them, waiting or not. coarse: products whose factors may be rounded to TF32. launches: operations that a device
    computes.
    """

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.coarse: Counter[str] = Counter()
        self.launches = 0

    def wait(self) -> None:
        self.waits[_line()] += 1

    def copy(self, *, waits: bool) -> None:
        line = _line()
        self.copies[line] += 1
        self.waits[line] += waits

    def product(self) -> None:
        """A product or a convolution in less than float32."""
        self.coarse[_line()] += 1

    def since(self, earlier: Account) -> Account:
        """What came after ``earlier``, a copy of this account."""
        rest = Account()
        for name in ("waits", "copies", "coarse"):
            setattr(rest, name, getattr(self, name) - getattr(earlier, name))
        rest.launches = self.launches - earlier.launches
        return rest

    def now(self) -> Account:
        return self.since(Account())

    def table(self, steps: int = 1) -> str:
        """Waits and copies per step by line, the most first."""
        lines = sorted(self.copies.keys() | self.waits.keys(), key=lambda line: -self.waits[line])
        rows = [f"{self.waits[line] / steps:8.2f} {self.copies[line] / steps:8.2f}  {line}" for line in lines]
        total = f"{self.waits.total() / steps:8.2f} {self.copies.total() / steps:8.2f}  all"
        return "\n".join(["   waits   copies", *rows, total])


def _line() -> str:
    """The innermost line of the project on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OURS):
            return f"{Path(file).relative_to(_ROOT)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere"
