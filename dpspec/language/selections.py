"""Specs about the best of several cells: what they are called, and how they are told. Light: names alone.

``composing.selection`` makes them of claims ``over: matrix``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dpspec.contract import Json

#: The kind of the mechanism that publishes the best of its cells, and the kind of the claims about it.
SELECTION, CLAIM_KIND = "selection", "approx-dp"

#: What of a cell decides what it loses; data stands beside them, once.
CELL_BLOCKS = ("mechanism", "model", "training", "threat_model")

#: Of the names that specs may have, the longest; and what a selection adds to the name of its cells' spec.
_LONGEST_NAME = 80
_NAMED = re.compile(r" best of [0-9]+$")


def is_selection(document: Mapping[str, Json]) -> bool:
    """Whether a resolved document is of the best of several cells."""
    mechanism = document.get("mechanism")
    return isinstance(mechanism, Mapping) and mechanism.get("kind") == SELECTION


def best_of(name: str) -> str:
    """The name of the spec whose cells a selection of this name chooses among; cut where it was too long."""
    return _NAMED.sub("", name)


def named_after(name: str, cells: int) -> str:
    """What the selection among the cells of a spec is called."""
    suffix = f" best of {cells}"
    return name[: _LONGEST_NAME - len(suffix)] + suffix
