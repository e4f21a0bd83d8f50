"""What a replay compared, and what differed."""

from __future__ import annotations

from dataclasses import dataclass

from dpspec.text import plain


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that moved with the records: ``whole`` is its value on all of them, ``other`` that on ``neighbour``."""

    name: str
    neighbour: str
    whole: str
    other: str


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The outcome of :func:`dpspec.replay`.

    neighbours: the data sets that the whole one was held against, in words. compared: what was. differences: what
    moved. unseen: what was not looked at, with the reason. Values of what moved may tell of the records.
    """

    neighbours: tuple[str, ...]
    compared: tuple[str, ...]
    differences: tuple[Difference, ...]
    unseen: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether nothing that was compared moved; it says nothing of other neighbours, and of what is ``unseen``."""
        return bool(self.compared) and not self.differences

    def require_same(self) -> None:
        """Raise ``AssertionError`` with all that is told, unless something was compared and nothing of it moved."""
        if not self.same:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        """A line for each thing that moved, and one each for what did not and for what was not looked at."""
        moved = dict.fromkeys(one.name for one in self.differences)
        still = [name for name in self.compared if name not in moved]
        lines = [
            f"{one.name} depends on the records: {one.whole} on all of them, {one.other} on {one.neighbour}"
            for one in self.differences
        ]
        if still:
            lines.append(f"the same on all records, {', '.join(self.neighbours)}: {', '.join(still)}")
        lines += [f"not looked at: {reason}" for reason in self.unseen]
        return "\n".join(map(plain, lines)) or "nothing was compared"
