"""The attack: whoever knows all records but the group's asks which of two histograms a release is of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dpspec.contract as dps

if TYPE_CHECKING:
    import numpy as np


class Sees(dps.Observer):
    """What the threat model says is released: the counts."""

    def __init__(self) -> None:
        self.counts: Any = None

    def released(self, step: int, state: Any) -> None:
        """Keep the release."""
        self.counts = state.copy()


def with_group(labels: np.ndarray[Any, Any], adjacency: str, size: int) -> np.ndarray[Any, Any]:
    """The records with a group: added to class 0, or ``size`` of class 0 replaced by as many of class 1."""
    import numpy as np

    if adjacency == "add-remove":
        return np.concatenate([labels, np.zeros(size, dtype=labels.dtype)])
    changed = labels.copy()
    changed[np.flatnonzero(labels == 0)[:size]] = 1
    return changed


def score(release: np.ndarray[Any, Any], present: np.ndarray[Any, Any], absent: np.ndarray[Any, Any]) -> float:
    """The log-likelihood ratio of the two histograms, in units of 1 / scale; no test of them is more powerful."""
    return float((abs(release - absent) - abs(release - present)).sum())
