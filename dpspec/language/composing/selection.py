"""Claims ``over: matrix``, about publishing the best of all cells, become a separate spec.

The claims move from the cells to a document named ``NAME best of N``. Its mechanism, of kind ``selection``, contains
the resolved mechanism, model, training and threat model of each cell, and the random number of tries if ``tuning``
declares one. It is judged, reported and verified like any other spec. If the cells have no other claims, they are not
audited separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dpspec.contract import Diagnostic, FrozenMap, Json, Path, Span, Spec, thaw
from dpspec.language.composing.compose import Composed
from dpspec.language.reading.tree import Node, child, from_plain, plain
from dpspec.language.selections import CELL_BLOCKS, CLAIM_KIND, SELECTION, named_after
from dpspec.text import quoted

#: Values that must be equal in all cells, because one claim covers all cells.
_SHARED = (("data",), ("threat_model",), ("training", "backend"), ("model", "initial"))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Claims over a matrix, and the common parts of the cells' documents.

    Attributes:
        claims: The claims without their ``over`` key.
        root: The document of the first cell.
        tries: The random number of tries, or None.
        matrix: The matrix block.
        over: The span of the first ``over`` key.
    """

    claims: list[Node]
    root: Node
    tries: Node | None
    matrix: Node
    over: Span | None

    def differing(self, cells: Sequence[Spec]) -> Iterator[Diagnostic]:
        """Report values that must be equal in all cells but vary."""
        for path in _SHARED:
            if any(_value(cell, path) != _value(cells[0], path) for cell in cells):
                message = f"cells of a claim over: matrix must agree in {'.'.join(path)}, which varies here"
                hint = "remove it from the matrix: the claim is about the best of several runs on the same data"
                yield Diagnostic(code="bad-matrix", message=message, span=self.over, help=hint)

    def composed(self, cells: Sequence[Spec]) -> Composed:
        """Return the document of the selection spec."""
        entries = dict(self.root.value) if isinstance(self.root.value, dict) else {}
        entries.pop("audit", None)
        name = plain(entries["name"])
        entries["name"] = replace(entries["name"], value=named_after(name, len(cells)))
        entries["claims"] = replace(entries["claims"], value=self.claims)
        entries["training"] = from_plain(thaw(cells[0].document["training"]))
        threat = {key: thaw(value) for key, value in cells[0].document["threat_model"].items() if key in _CORE_THREAT}
        entries["threat_model"] = replace(from_plain(threat), key=_key(entries, "threat_model"))
        blocks = [from_plain({key: thaw(c.document[key]) for key in CELL_BLOCKS if key in c.document}) for c in cells]
        mechanism = {"kind": Node(SELECTION), "cells": Node(list(blocks))}
        if self.tries is not None:
            mechanism["tries"] = self.tries
        entries["mechanism"] = Node(mechanism, self.matrix.span, self.matrix.key)
        return Composed(root=Node(entries, self.root.span, self.root.key), cell=FrozenMap(), suffix="")


@dataclass(frozen=True, kw_only=True)
class SplitClaims:
    """Cells without the claims over the matrix, and the selection for these claims.

    Attributes:
        cells: The remaining documents.
        selection: The selection, or None.
        bare: True if the cells have no other claims. They then keep the claims over the matrix, so that validation
            covers the whole cell, and are not audited.
        diagnostics: Errors in the claims over the matrix.
    """

    cells: list[Composed]
    selection: Selection | None = None
    bare: bool = False
    diagnostics: tuple[Diagnostic, ...] = ()


#: Keys of a threat model that core defines. The cells' blocks contain the mechanisms' keys.
_CORE_THREAT = ("adjacency", "unit", "access", "direction", "group_size", "min_records", "neighbours")


def split_claims(cells: Sequence[Composed]) -> SplitClaims:
    """Move the claims over the matrix out of the cells' documents."""
    split = [_partition(cell.root) for cell in cells]
    if not any(over for _, over in split):
        return SplitClaims(cells=list(cells), diagnostics=tuple(dict.fromkeys(_unused_tuning(cells))))
    over = next(found for _, found in split if found)
    wrong = list(dict.fromkeys(d for claim in over for d in _invalid(claim, cells[0].matrix)))
    if any([plain(claim) for claim in found] != [plain(claim) for claim in over] for _, found in split):
        message = "a claim over: matrix must be equal in all cells"
        wrong.append(Diagnostic(code="bad-matrix", message=message, span=_span_of(over[0], "over")))
    matrix = cells[0].matrix
    # Invalid claims stay in the cells, so that validation reports their other errors too.
    claims = [_without_over(claim) for claim in over]
    bare = not any(own for own, _ in split)
    remaining = [
        replace(cell, root=_with_claims(cell.root, claims if bare else own))
        for cell, (own, _) in zip(cells, split, strict=True)
    ]
    if wrong or matrix is None:
        return SplitClaims(cells=remaining, bare=bare, diagnostics=tuple(wrong))
    tuning = cells[0].tuning
    selection = Selection(
        claims=claims,
        root=cells[0].root,
        tries=None if tuning is None else child(tuning, "tries"),
        matrix=matrix,
        over=_span_of(over[0], "over"),
    )
    return SplitClaims(cells=remaining, selection=selection, bare=bare)


def _partition(root: Node) -> tuple[list[Node], list[Node]]:
    """Return a document's own claims and those over the matrix, with the ids that their positions give them."""
    claims = child(root, "claims")
    if claims is None or not isinstance(claims.value, list):
        return [], []
    over = [_text(claim, "over") == "matrix" for claim in claims.value]
    if not any(over):
        return list(claims.value), []
    named = [_with_id(claim, number) for number, claim in enumerate(claims.value, 1)]
    own = [claim for claim, is_over in zip(named, over, strict=True) if not is_over]
    return own, [claim for claim, is_over in zip(named, over, strict=True) if is_over]


def _with_id(claim: Node, number: int) -> Node:
    if not isinstance(claim.value, dict) or "id" in claim.value:
        return claim
    return replace(claim, value={"id": Node(f"claim-{number}"), **claim.value})


def _without_over(claim: Node) -> Node:
    assert isinstance(claim.value, dict)
    return replace(claim, value={key: value for key, value in claim.value.items() if key != "over"})


def _with_claims(root: Node, claims: list[Node]) -> Node:
    assert isinstance(root.value, dict)
    return replace(root, value={**root.value, "claims": replace(root.value["claims"], value=claims)})


def _invalid(claim: Node, matrix: Node | None) -> Iterator[Diagnostic]:
    if matrix is None:
        message = "over: matrix needs a matrix, and this spec has none"
        hint = "add a matrix, or remove over"
        yield Diagnostic(code="bad-value", message=message, span=_span_of(claim, "over"), help=hint)
    kind = _text(claim, "kind")
    if kind is not None and kind != CLAIM_KIND:
        message = f"a claim over: matrix must be of kind {quoted(CLAIM_KIND)}, got {quoted(kind)}"
        hint = f"write kind: {CLAIM_KIND}, or remove over to claim it for each cell separately"
        yield Diagnostic(code="claim-not-judged", message=message, span=_span_of(claim, "kind"), help=hint)
    if child(claim, "record") is not None:
        message = "a claim over: matrix covers all records and cannot have record"
        yield Diagnostic(code="bad-value", message=message, span=_span_of(claim, "record"), help="remove record")


def _unused_tuning(cells: Sequence[Composed]) -> Iterator[Diagnostic]:
    for cell in cells:
        if cell.tuning is not None:
            message = "tuning describes the selection of a matrix cell, but no claim has over: matrix"
            hint = "add over: matrix to a claim of kind approx-dp, or remove tuning"
            yield Diagnostic(code="bad-value", message=message, span=cell.tuning.key, help=hint)


def _text(node: Node, key: str) -> str | None:
    found = child(node, key)
    return found.value if found is not None and isinstance(found.value, str) else None


def _span_of(node: Node, key: str) -> Span | None:
    found = child(node, key)
    return None if found is None else found.span


def _key(entries: dict[str, Node], name: str) -> Span | None:
    return entries[name].key if name in entries else None


def _value(spec: Spec, path: Path) -> Json:
    value: Json = spec.document
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
