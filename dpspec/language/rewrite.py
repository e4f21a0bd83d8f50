"""Move claims about the best cell of a matrix into a separate document, and find settings without effect.

Claims ``over: matrix``, about publishing the best of all cells, move from the cells to a separate document, named
``NAME best of N``. Its mechanism, of kind ``selection``, contains the resolved mechanism, model, training and threat
model of each cell, and the random number of tries if ``tuning`` declares one. It is judged, reported and verified like
any other spec. If the cells have no other claims, they are not audited separately.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dpspec.contract import Diagnostic, FrozenMap, Json, Path, Span, Spec, thaw
from dpspec.language.blocks import CELL_BLOCKS, CLAIM_KIND, SELECTION
from dpspec.language.compose import Composed
from dpspec.language.yaml_source import Node, child, from_plain, plain, value_at
from dpspec.text import quoted


def unused_settings(document: Json, chosen: Iterable[Path]) -> Iterator[Diagnostic]:
    """The report would default show a value that the audit did not use, because each phase overrides it."""
    mechanism = document.get("mechanism") if isinstance(document, dict) else None
    phases = mechanism.get("phases") if isinstance(mechanism, dict) else None
    if not isinstance(phases, list) or not phases or not all(isinstance(phase, dict) for phase in phases):
        return
    assert isinstance(mechanism, dict)
    for path in chosen:
        if len(path) < 2 or path[0] != "mechanism" or path[1] in ("phases", "steps"):
            continue  # the validator rejects steps together with phases
        value = value_at(mechanism, path[1:])
        effective = [value_at(phase if path[1] in phase else mechanism, path[1:]) for phase in phases]
        set_in_each_phase = all(path[1] in phase for phase in phases)
        differ = [used != value for used in effective]
        if value is not None and (all(differ) or (set_in_each_phase and any(differ))):
            name = ".".join(map(str, path))
            yield Diagnostic(
                code="conflicting-key",
                message=f"{quoted(name)} is set but has no effect: each phase sets its own value",
                path=path,
                help=f"set {quoted(f'mechanism.phases.0.{path[1]}')} and so on, or take it out of the phases",
            )


#: Maximum length of a spec name, and the suffix of a selection's name.
_LONGEST_NAME = 80
_NAMED = re.compile(r" best of [0-9]+$")

#: Values that must be equal in all cells, because one claim covers all cells.
_SHARED = (("data",), ("threat_model",), ("training", "backend"), ("model", "initial"))


#: Keys of a threat model that core defines. The cells' blocks contain the mechanisms' keys.
_CORE_THREAT = ("adjacency", "unit", "access", "direction", "group_size", "min_records", "neighbours")


@dataclass(frozen=True, kw_only=True)
class Split:
    """Cells without the claims over the matrix, and these claims; ``bare`` if the cells have no other claims."""

    cells: list[Composed]
    claims: tuple[Node, ...] = ()
    over: Span | None = None
    bare: bool = False
    diagnostics: tuple[Diagnostic, ...] = ()

    def differing(self, specs: Sequence[Spec]) -> Iterator[Diagnostic]:
        for path in _SHARED:
            if any(value_at(spec.document, path) != value_at(specs[0].document, path) for spec in specs):
                message = f"cells of a claim over: matrix must agree in {'.'.join(path)}, which varies here"
                hint = "remove it from the matrix: the claim is about the best of several runs on the same data"
                yield Diagnostic(code="bad-matrix", message=message, span=self.over, help=hint)

    def best(self, specs: Sequence[Spec]) -> Composed:
        """The document of the selection among the specs of the cells."""
        first = self.cells[0]
        assert isinstance(first.root.value, dict)
        assert first.matrix is not None
        entries = {key: value for key, value in first.root.value.items() if key != "audit"}
        suffix = f" best of {len(specs)}"
        name = plain(entries["name"])[: _LONGEST_NAME - len(suffix)] + suffix
        entries["name"] = replace(entries["name"], value=name)
        entries["claims"] = replace(entries["claims"], value=list(self.claims))
        entries["training"] = from_plain(thaw(specs[0].document["training"]))
        threat = {key: thaw(value) for key, value in specs[0].document["threat_model"].items() if key in _CORE_THREAT}
        key = entries["threat_model"].key if "threat_model" in entries else None
        entries["threat_model"] = replace(from_plain(threat), key=key)
        blocks = [from_plain({key: thaw(s.document[key]) for key in CELL_BLOCKS if key in s.document}) for s in specs]
        mechanism = {"kind": Node(SELECTION), "cells": Node(list(blocks))}
        tries = None if first.tuning is None else child(first.tuning, "tries")
        if tries is not None:
            mechanism["tries"] = tries
        entries["mechanism"] = Node(mechanism, first.matrix.span, first.matrix.key)
        return Composed(root=Node(entries, first.root.span, first.root.key), cell=FrozenMap(), suffix="")


def split_claims(cells: Sequence[Composed]) -> Split:
    split = list(map(_partition, cells))
    over = next((over_matrix for _, over_matrix in split if over_matrix), [])
    if over and cells[0].matrix is None:  # validation reports it
        return Split(cells=list(cells))
    if not over:
        unused: dict[Diagnostic, None] = {}
        for cell in cells:
            if cell.tuning is not None:
                message = "tuning describes the selection of a matrix cell, but no claim has over: matrix"
                hint = "add over: matrix to a claim of kind approx-dp, or remove tuning"
                unused[Diagnostic(code="bad-value", message=message, span=cell.tuning.key, help=hint)] = None
        return Split(cells=list(cells), diagnostics=tuple(unused))
    wrong = []
    for claim in over:
        kind = child(claim, "kind")
        if kind is not None and isinstance(kind.value, str) and kind.value != CLAIM_KIND:
            message = f"a claim over: matrix must be of kind {quoted(CLAIM_KIND)}, got {quoted(kind.value)}"
            hint = f"write kind: {CLAIM_KIND}, or remove over to claim it for each cell separately"
            wrong.append(Diagnostic(code="claim-not-judged", message=message, span=kind.span, help=hint))
        if child(claim, "record") is not None:
            message, span = "a claim over: matrix covers all records and cannot have record", _span_of(claim, "record")
            wrong.append(Diagnostic(code="bad-value", message=message, span=span, help="remove record"))
    if any([plain(claim) for claim in over_matrix] != [plain(claim) for claim in over] for _, over_matrix in split):
        message = "a claim over: matrix must be equal in all cells"
        wrong.append(Diagnostic(code="bad-matrix", message=message, span=_span_of(over[0], "over")))
    # Invalid claims stay in the cells, so that validation reports their other errors too.
    claims = [replace(claim, value={k: v for k, v in _entries(claim).items() if k != "over"}) for claim in over]
    bare = not any(cell_claims for cell_claims, _ in split)
    remaining = []
    for cell, (cell_claims, _) in zip(cells, split, strict=True):
        entries = _entries(cell.root)
        claims_node = replace(entries["claims"], value=claims if bare else cell_claims)
        remaining.append(replace(cell, root=replace(cell.root, value={**entries, "claims": claims_node})))
    return Split(
        cells=remaining,
        claims=tuple(claims),
        over=_span_of(over[0], "over"),
        bare=bare,
        diagnostics=tuple(wrong),
    )


def _entries(node: Node) -> dict[str, Node]:
    assert isinstance(node.value, dict)
    return node.value


def _partition(cell: Composed) -> tuple[list[Node], list[Node]]:
    """Own claims and claims over the matrix, with the ids that positions in the document give."""
    claims = child(cell.root, "claims")
    cell_claims: list[Node] = []
    over: list[Node] = []
    for number, claim in enumerate(claims.value if claims is not None and isinstance(claims.value, list) else (), 1):
        if isinstance(claim.value, dict) and "id" not in claim.value:
            claim = replace(claim, value={"id": Node(f"claim-{number}"), **claim.value})
        collection = child(claim, "over")
        (over if collection is not None and collection.value == "matrix" else cell_claims).append(claim)
    return cell_claims, over


def _span_of(node: Node, key: str) -> Span | None:
    value_node = child(node, key)
    return None if value_node is None else value_node.span


def best_of(name: str) -> str:
    """Possibly truncated."""
    return _NAMED.sub("", name)
