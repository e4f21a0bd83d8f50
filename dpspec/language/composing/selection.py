"""Claims ``over: matrix``: what is said of publishing the best of all cells, as a spec of its own beside the cells'.

The claims leave the cells and become those of one more document, ``NAME best of N``: its mechanism, of kind
``selection``, holds the resolved mechanism, model, training and threat model of every cell, and the random number of
tries where ``tuning`` declares one. So it is judged, reported and verified as any other spec is. Where the cells have
no claim besides these, they are no audits of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dpspec.contract import Diagnostic, FrozenMap, Json, Path, Span, Spec, thaw
from dpspec.language.composing.compose import Composed
from dpspec.language.reading.tree import Node, child, from_plain, plain
from dpspec.language.selections import CELL_BLOCKS, CLAIM_KIND, SELECTION, named_after
from dpspec.text import quoted

#: What all cells must have in common, since one claim speaks of all of them.
_SAME = (("data",), ("threat_model",), ("training", "backend"), ("model", "initial"))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The claims over a matrix, without their ``over``, with all else that the cells' documents agree about."""

    claims: list[Node]
    root: Node
    tries: Node | None
    matrix: Node
    over: Span | None

    def differing(self, cells: Sequence[Spec]) -> Iterator[Diagnostic]:
        """Why no one claim can be about all of these cells."""
        for path in _SAME:
            if any(_value(cell, path) != _value(cells[0], path) for cell in cells):
                message = f"cells of a claim over: matrix must agree in {'.'.join(path)}, which varies here"
                hint = "take it out of the matrix: what is published is the best of runs on the same data"
                yield Diagnostic(code="bad-matrix", message=message, span=self.over, help=hint)

    def composed(self, cells: Sequence[Spec]) -> Composed:
        """The document of the best of the cells."""
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
class Parted:
    """The cells without claims over the matrix, and these.

    bare: whether cells have no claim of their own; they are given those about the matrix then, so that all of a cell
    is checked, and are no audits.
    """

    cells: list[Composed]
    selection: Selection | None = None
    bare: bool = False
    diagnostics: tuple[Diagnostic, ...] = ()


#: The keys of a threat model that are core's own: cells bring those of their mechanisms themselves.
_CORE_THREAT = ("adjacency", "unit", "access", "direction", "group_size", "min_records", "neighbours")


def part(cells: Sequence[Composed]) -> Parted:
    """Take the claims over the matrix out of the cells' documents."""
    split = [_split(cell.root) for cell in cells]
    if not any(over for _, over in split):
        return Parted(cells=list(cells), diagnostics=tuple(dict.fromkeys(_no_claim(cells))))
    over = next(found for _, found in split if found)
    wrong = list(dict.fromkeys(d for claim in over for d in _refused(claim, cells[0].matrix)))
    if any([plain(claim) for claim in found] != [plain(claim) for claim in over] for _, found in split):
        message = "a claim over: matrix is about all cells, and cannot vary over them"
        wrong.append(Diagnostic(code="bad-matrix", message=message, span=_at(over[0], "over")))
    matrix = cells[0].matrix
    # What is refused is left in place: all else that is wrong with it is told as well.
    claims = [_without_over(claim) for claim in over]
    bare = not any(own for own, _ in split)
    parted = [
        replace(cell, root=_with_claims(cell.root, claims if bare else own))
        for cell, (own, _) in zip(cells, split, strict=True)
    ]
    if wrong or matrix is None:
        return Parted(cells=parted, bare=bare, diagnostics=tuple(wrong))
    tuning = cells[0].tuning
    selection = Selection(
        claims=claims,
        root=cells[0].root,
        tries=None if tuning is None else child(tuning, "tries"),
        matrix=matrix,
        over=_at(over[0], "over"),
    )
    return Parted(cells=parted, selection=selection, bare=bare)


def _split(root: Node) -> tuple[list[Node], list[Node]]:
    """A document's claims: its own, and those over the matrix. Each keeps the id that its place gives it."""
    claims = child(root, "claims")
    if claims is None or not isinstance(claims.value, list):
        return [], []
    over = [_text(claim, "over") == "matrix" for claim in claims.value]
    if not any(over):
        return list(claims.value), []
    named = [_named(claim, number) for number, claim in enumerate(claims.value, 1)]
    own = [claim for claim, is_over in zip(named, over, strict=True) if not is_over]
    return own, [claim for claim, is_over in zip(named, over, strict=True) if is_over]


def _named(claim: Node, number: int) -> Node:
    if not isinstance(claim.value, dict) or "id" in claim.value:
        return claim
    return replace(claim, value={"id": Node(f"claim-{number}"), **claim.value})


def _without_over(claim: Node) -> Node:
    assert isinstance(claim.value, dict)
    return replace(claim, value={key: value for key, value in claim.value.items() if key != "over"})


def _with_claims(root: Node, claims: list[Node]) -> Node:
    assert isinstance(root.value, dict)
    return replace(root, value={**root.value, "claims": replace(root.value["claims"], value=claims)})


def _refused(claim: Node, matrix: Node | None) -> Iterator[Diagnostic]:
    if matrix is None:
        message = "over: matrix speaks of the best of a matrix's cells, and this spec has no matrix"
        hint = "add a matrix, or leave over out"
        yield Diagnostic(code="bad-value", message=message, span=_at(claim, "over"), help=hint)
    kind = _text(claim, "kind")
    if kind is not None and kind != CLAIM_KIND:
        message = f"a claim over: matrix is of kind {quoted(CLAIM_KIND)}, not {quoted(kind)}"
        hint = f"write kind: {CLAIM_KIND}, or leave over out: the claim is then about each cell by itself"
        yield Diagnostic(code="claim-not-judged", message=message, span=_at(claim, "kind"), help=hint)
    if child(claim, "record") is not None:
        message = "a claim over: matrix is about all records, not about one"
        yield Diagnostic(code="bad-value", message=message, span=_at(claim, "record"), help="leave record out")


def _no_claim(cells: Sequence[Composed]) -> Iterator[Diagnostic]:
    for cell in cells:
        if cell.tuning is not None:
            message = "tuning says how the best cell of a matrix was found, and no claim is over: matrix"
            hint = "write over: matrix into a claim of kind approx-dp, or leave tuning out"
            yield Diagnostic(code="bad-value", message=message, span=cell.tuning.key, help=hint)


def _text(node: Node, key: str) -> str | None:
    found = child(node, key)
    return found.value if found is not None and isinstance(found.value, str) else None


def _at(node: Node, key: str) -> Span | None:
    found = child(node, key)
    return None if found is None else found.span


def _key(entries: dict[str, Node], name: str) -> Span | None:
    return entries[name].key if name in entries else None


def _value(spec: Spec, path: Path) -> Json:
    value: Json = spec.document
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
