"""A claim that a command states without a spec, and the result of a spec that a command wrote."""

from __future__ import annotations

import dataclasses
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING

from dpspec.contract import FrozenMap, Json, Spec
from dpspec.contract.catalog import Catalog
from dpspec.errors import UsageError

if TYPE_CHECKING:
    from dpspec.contract.results import Result

#: The id of the claim.
CLAIM = "claim"

#: The largest number of group sizes in a spec.
_MOST_SIZES = 1000


@dataclass(frozen=True, kw_only=True)
class StatedClaim:
    """A claim of approximate DP. epsilon: for the first of the group sizes; None if nothing is claimed."""

    delta: float = 1e-5
    epsilon: float | None = None
    group_sizes: tuple[int, ...] = (1,)

    @property
    def claims(self) -> list[Json]:
        """The block ``claims`` of a spec."""
        if self.epsilon is None:
            return []
        stated = {"kind": "approx-dp", "epsilon": float(self.epsilon), "delta": float(self.delta)}
        return [{"id": CLAIM, **stated, "group_size": int(self.group_sizes[0])}]

    def require_valid(self) -> None:
        """Raise ``UsageError`` for a value of another type or outside its range."""
        numbers: tuple[tuple[str, object], ...] = (("--delta", self.delta), ("--epsilon", self.epsilon))
        for name, number in numbers:  # callers of the function may ignore the types
            if number is not None and (isinstance(number, bool) or not isinstance(number, Real)):
                raise UsageError(f"{name} must be a number, got {number!r}")
        sizes: tuple[object, ...] = self.group_sizes
        if any(isinstance(size, bool) or not isinstance(size, Integral) for size in sizes):
            raise UsageError(f"--group-size must be integers, got {sizes!r}")
        if not 0.0 < self.delta < 1.0:
            raise UsageError(f"--delta must be above 0 and below 1, got {self.delta!r}")
        if self.epsilon is not None and not 0.0 <= self.epsilon < math.inf:
            raise UsageError(f"--epsilon must be finite and not negative, got {self.epsilon!r}")
        if any(not 1 <= size <= 10_000 for size in self.group_sizes):
            raise UsageError("--group-size must be from 1 to 10000")
        if not 1 <= len(sizes) <= _MOST_SIZES:
            raise UsageError(f"--group-size must be 1 to {_MOST_SIZES} numbers, got {len(sizes)}")


def spec_name(text: str) -> str:
    """A text as the name of a spec, which has no spaces and begins with a letter or digit; "" if the text has none."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:60].strip("-.").lstrip("-._")


def run_spec(spec: Spec, catalog: Catalog, command: Sequence[str], options: Mapping[str, Sequence[object]]) -> Result:
    """The result of a spec without trials that a command with options made; the environment names the command."""
    from dpspec.engine.remedies import Search
    from dpspec.engine.running import runner
    from dpspec.engine.storage.trial_store import Store

    with tempfile.TemporaryDirectory() as folder:
        result = runner.run([spec], catalog, store=Store(folder), train=False, remedies=Search(catalog))
    option_words = [word for option, values in options.items() for value in values for word in (option, str(value))]
    environment = FrozenMap({**result.environment, "command": [*command, *option_words]})
    return dataclasses.replace(result, environment=environment, requires_claim=True)
