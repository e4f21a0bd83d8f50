"""The layers of a spec, in their order: parent < child < cell of the matrix < ``--set``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from dpspec.contract import Diagnostic, FrozenMap
from dpspec.spec import matrix, overrides
from dpspec.spec.tree import Node, locate, origin

#: Keys that choose what is composed, and are gone once it is.
COMPOSING = ("extends", "matrix")


@dataclass(frozen=True, kw_only=True)
class Composed:
    """One cell's whole document."""

    root: Node
    cell: FrozenMap
    suffix: str


def compose(root: Node, given: Sequence[overrides.Override]) -> tuple[list[Composed], list[Diagnostic]]:
    """Every cell of a document whose parents are merged already, and what is wrong with cells and overrides.

    What is wrong is left out of the documents, so that everything else can still be checked.
    """
    # The command line may replace the matrix itself, which must be known before it is expanded.
    shaping = [o for o in given if o.place.split(".")[0] == "matrix"]
    others = [o for o in given if o not in shaping]
    root, problems = overrides.apply(root, shaping)
    cells, found = matrix.expand(root, others)
    problems += found
    documents: list[Composed] = []
    for cell, suffix in zip(cells, matrix.suffixes(cells), strict=True):
        document, misplaced = matrix.place_cell(root, cell)
        document, wrong = overrides.apply(document, others)
        problems += misplaced + wrong
        documents.append(Composed(root=_without_extends(document), cell=cell.frozen(), suffix=suffix))
    spans = origin(root)
    return documents, list(dict.fromkeys(locate(d, spans) for d in problems))


def _without_extends(root: Node) -> Node:
    entries = root.value if isinstance(root.value, dict) else {}
    return dataclasses.replace(root, value={k: v for k, v in entries.items() if k not in COMPOSING})
