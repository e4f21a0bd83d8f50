"""Names of selection specs, which audit publishing the best of several matrix cells.

``composing.selection`` builds these specs from claims ``over: matrix``. This module imports nothing heavy.
"""

from __future__ import annotations

import re

#: Kind of the mechanism that publishes the best cell, and kind of the claims about it.
SELECTION, CLAIM_KIND = "selection", "approx-dp"

#: Blocks of a cell that determine its privacy loss. All cells share the data block.
CELL_BLOCKS = ("mechanism", "model", "training", "threat_model")

#: Maximum length of a spec name, and the suffix of a selection's name.
_LONGEST_NAME = 80
_NAMED = re.compile(r" best of [0-9]+$")


def best_of(name: str) -> str:
    """Possibly truncated."""
    return _NAMED.sub("", name)


def named_after(name: str, cells: int) -> str:
    suffix = f" best of {cells}"
    return name[: _LONGEST_NAME - len(suffix)] + suffix
