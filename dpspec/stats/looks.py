"""Which steps of a run are looked at, where looking at all of them would take too long."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


def looked(steps: int, looks: int | None) -> Array:
    """(steps,) bool: at most ``looks`` of the steps, spread evenly, the first one among them; all where it is None."""
    seen = np.zeros(steps, dtype=bool)
    seen[np.linspace(0, steps - 1, min(looks or steps, steps)).round().astype(int)] = True
    return seen
