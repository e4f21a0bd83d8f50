"""Where faults are put to runs, and what came of each."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.victim import Ended, Victim


@dataclass
class Row:
    """What came of one fault. ``wrong`` holds everything that should not be so."""

    fault: str
    saw: str = ""
    codes: list[int] = field(default_factory=list)
    kept: str = ""
    again: str = ""
    counts: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def note(self, done: Ended, *codes: int) -> None:
        """Take down how a hurt run ended, and that it should have ended with one of some codes."""
        self.saw, self.codes = done.said or self.saw, [*self.codes, done.code]
        if done.code not in codes:
            self.wrong.append(f"exit {done.code}, expected {' or '.join(map(str, codes))}: {done.err[-300:]}")
        if not done.clean:
            self.wrong.append(f"it tells a traceback: {done.err[-500:]}")


class Bench:
    """Where faults are put to runs: a folder, how long trials are, and what an undisturbed run comes to."""

    def __init__(self, root: Path, *, steps: int, runs: int, times: int, seed: int, warm: bool = True) -> None:
        """``warm``: whether the undisturbed run is made twice, so that its duration is that of later ones."""
        self.root, self.times, self._size = root, times, {"steps": steps, "runs": runs}
        self.chance = random.Random(seed)
        self.seconds = float("inf")
        for store in ("warming-up", ".dpspec/store") if warm else (".dpspec/store",):
            victim, began = self.victim("undisturbed"), time.monotonic()
            done, whole = victim.again("--store", store, fresh=True)
            self.seconds = min(self.seconds, time.monotonic() - began)
        if done.code or whole is None:
            raise SystemExit(f"the undisturbed run ends with {done.code}:\n{done.err}")
        self.whole = whole

    def victim(self, name: str, **changes: Any) -> Victim:
        """A fresh folder to run in."""
        return Victim(self.root / name, **self._size, **changes)

    def settle(self, row: Row, victim: Victim, store: str = ".dpspec/store", whole: Any = None) -> None:
        """Run again: only what is missing is made, and the result is that of a run that nothing happened to."""
        kept = victim.stored(store)
        done, again = victim.again("--store", store)
        same = again == (self.whole if whole is None else whole)
        row.counts.append(kept)
        row.kept = f"{min(row.counts)} to {max(row.counts)} of {victim.runs}"
        if min(row.counts) == max(row.counts):
            row.kept = f"{kept} of {victim.runs}"
        row.again = f"exit {done.code}, {'identical' if same else 'DIFFERENT'}"
        if done.code or not same:
            row.wrong.append(f"run again: {row.again}: {done.err[-300:]}")
        if done.trained != victim.runs - kept:
            row.wrong.append(f"run again: {done.trained} trials made, {victim.runs - kept} were missing")

    def moments(self, least: float = 0.0) -> Iterator[float]:
        """Random moments of a run, in seconds after its start."""
        for _ in range(self.times):
            yield self.chance.uniform(least, self.seconds)
