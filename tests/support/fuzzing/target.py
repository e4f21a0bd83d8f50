"""What a target of the campaign is: it makes cases by chance, and feeds one to the code that must take it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: A case: the files that it consists of, by name, and whatever else the target needs to know.
Files = Mapping[str, bytes]


class Target(ABC):
    """``name`` is what the command line calls it."""

    name: str

    @abstractmethod
    def warm(self, folder: Path) -> None:
        """Import and make everything that cases need, so that a case alone is measured."""

    @abstractmethod
    def case(self, chance: random.Random) -> Any:
        """Make a case; the same choices make the same one."""

    @abstractmethod
    def feed(self, case: Any, folder: Path) -> str:
        """Give a case to dpspec, with all its files in ``folder``; returns a word for what became of it.

        Anything raised but a ``DpspecError`` or ``DataError`` of dpspec's own, caught here, is a finding.
        """


def write(files: Files, folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
