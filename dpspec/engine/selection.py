"""The audit of the mechanism ``selection``: bounds on publishing the best of several cells, from their mechanisms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast, get_args

import dpspec.contract as dps
from dpspec.contract.audit import Dominating
from dpspec.contract.findings import Privacy, Rigor
from dpspec.results.evidence_weight import claim_scope, covers, weighed_findings
from dpspec.results.inequalities import statement

if TYPE_CHECKING:
    from dpspec.accounting import Directions, Floats, Tries
    from dpspec.engine.preparing.prepare import Prepared


#: Assumption of both bounds.
COMPARED = dps.Assumption(
    name="compared-on-releases",
    status="declared",
    text="the best cell is selected by the releases of the runs and by public data, and no other run used the records",
)

#: Assumption of the bound on a random number of tries, which an external observer cannot check.
RANDOM_TRIES = dps.Assumption(
    name="random-tries",
    status="unchecked",
    text="the number of tries has the declared distribution and the cell of each try is uniform, both independent of "
    "the data, and only the best of all tries is released",
)

_CELLS: dps.Path = ("mechanism", "cells")


class SelectionAudit(dps.Audit):
    def __init__(self, cells: Sequence[Prepared] = ()) -> None:
        self.cells = tuple(cells)

    def components(self, spec: dps.Spec) -> Iterator[tuple[str, dps.Path, dps.FrozenMap]]:
        blocks = spec.mechanism["cells"]
        claims = [
            {**dps.thaw(claim), "delta": share(claim["delta"], len(blocks)), "expect": ["proved"]}
            for claim in spec.document["claims"]
        ]
        shared = {key: dps.thaw(spec.document[key]) for key in ("dpspec", "name", "data", "training", "threat_model")}
        for number, block in enumerate(blocks):
            document = dps.FrozenMap({**shared, **dps.thaw(block), "claims": claims})
            yield f"cell {number + 1}", (*_CELLS, number), document

    def compose(self, components: Sequence[Prepared]) -> SelectionAudit:
        return SelectionAudit(components)

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
        for number, cell in enumerate(self.cells):
            for wrong in cell.diagnostics:
                message = f"cell {number + 1}: {wrong.message}"
                yield dataclasses.replace(wrong, message=message, path=(*_CELLS, number), span=None)
            pairs = zip(cell.spec.claims, spec.claims, strict=True)
            refused = {
                "a cell cannot select among cells": bool(cell.components),
                "a recorded run is a single run without others to choose from": cell.recording is not None,
                "its initial model differs from the spec's": _start(cell.spec) != _start(spec),
                "its threat model differs from the spec's": any(
                    _scope(cell_claim) != _scope(claim) for cell_claim, claim in pairs
                ),
            }
            for message in (message for message, applies in refused.items() if applies):
                text = f"cell {number + 1}: {message}"
                yield dps.Diagnostic(code="unsupported", message=text, path=(*_CELLS, number))

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding]:
        """Running every cell once and a random number of tries, which may repeat a cell, are two procedures."""
        from dpspec.accounting import Tries

        tries = spec.mechanism.get("tries")
        contexts = [cast(Any, context).for_component(cell) for cell in self.cells]
        for number, claim in enumerate(spec.claims):
            context.progress(number, len(spec.claims), "accounting")
            claims = [cell.spec.claims[number] for cell in self.cells]
            pairs = zip(self.cells, claims, strict=True)
            stated = [cell.audit.dominating(cell.spec, cell.facts, cell_claim) for cell, cell_claim in pairs]
            pairs_of_cells = [pair for pair in stated if pair is not None]
            pairs_of_cells = pairs_of_cells if len(pairs_of_cells) == len(stated) else []
            if tries is not None:
                declared = Tries(tries["distribution"], tries["mean"], tries.get("eta"))
                yield from at_random(pairs_of_cells, claim, declared) if pairs_of_cells else ()
            else:
                yield from (
                    all_composed(pairs_of_cells, claim)
                    if pairs_of_cells
                    else added_up(self.cells, claims, claim, contexts)
                )
        context.progress(len(spec.claims), len(spec.claims), "accounting")

    def notes(self, bounds: Sequence[dps.Finding | dps.Series]) -> Iterator[str]:
        if not bounds:
            yield "no bound, as the mechanism of a cell does not say what its runs leak in a form that composes."


def _start(spec: dps.Spec) -> tuple[bool, dps.Json]:
    return spec.model is not None, None if spec.model is None else spec.model.get("initial")


_scope = attrgetter(
    "adjacency", "unit", "direction", "access", "group_size", "min_records", "neighbours", "record", "over"
)


#: The spec's words for the directions, and the accountant's.
_DIRECTIONS: Mapping[str, Directions] = {"remove": "present-first", "add": "absent-first", "both": "both"}

#: Factor by which n shares of delta sum to at most delta despite rounding.
_SHARE = 1.0 - 1e-12


def _bounds(
    claim: dps.Claim,
    epsilon: float,
    method: str,
    rigor: Rigor,
    sources: Iterable[str],
    scopes: Sequence[Sequence[dps.Scope]],
    assumptions: Iterable[tuple[dps.Assumption, ...]],
    privacy: Privacy = "public",
) -> Iterator[dps.Finding]:
    """The bound in each scope that all cells have in common; ``scopes`` and ``assumptions`` are of each cell."""
    named: dict[tuple[str, dps.Json], dps.Assumption] = {}
    for assumption in (assumption for of_cell in assumptions for assumption in of_cell):
        named.setdefault((assumption.name, assumption.status), assumption)
    for scope in common_scopes(scopes):
        yield dps.Finding(
            quantity="epsilon",
            value=epsilon,
            bound="upper",
            rigor=rigor,
            method=method,
            source="; ".join(dict.fromkeys(sources)),
            at=dps.FrozenMap({"delta": float(claim["delta"]), "group_size": claim.group_size}),
            scope=scope,
            assumptions=(*named.values(), COMPARED),
            privacy=privacy,
        )


def share(delta: float, cells: int) -> float:
    return delta / cells * _SHARE


def all_composed(pairs_of_cells: Sequence[Dominating], claim: dps.Claim) -> Iterator[dps.Finding]:
    """Epsilon to a relative 1e-4."""
    from dpspec.accounting import PrivacyLoss, library_accuracy

    phases: Any = tuple(phase for pair in pairs_of_cells for phase in pair.phases)
    epsilon = PrivacyLoss(phases, _DIRECTIONS[claim.direction]).epsilon(float(claim["delta"])).upper
    sources, scopes = [pair.source for pair in pairs_of_cells], [pair.scopes for pair in pairs_of_cells]
    assumptions = [*(pair.assumptions for pair in pairs_of_cells), (library_accuracy(),)]
    return _bounds(
        claim, epsilon, f"all {len(pairs_of_cells)} cells composed", "certified", sources, scopes, assumptions
    )


def added_up(
    cells: Sequence[Prepared], claims: Sequence[dps.Claim], best: dps.Claim, contexts: Sequence[dps.Context]
) -> Iterator[dps.Finding]:
    """The sum of the cells' bounds on their ``claims``; nothing if one has none."""
    summands: list[dps.Finding] = []
    for cell, claim, context in zip(cells, claims, contexts, strict=True):
        findings = [f for f in cell.audit.bound(cell.spec, context) if isinstance(f, dps.Finding)]
        (part,) = statement(claim).parts
        weighed = weighed_findings(part, claim_scope(cell.spec, claim), findings)
        strongest = next(
            (candidate.finding for candidate in weighed if candidate.strength in ("proof", "conditional")), None
        )
        if strongest is None:
            return iter(())
        summands.append(strongest)
    return _bounds(
        best,
        math.fsum(finding.value for finding in summands) * (1.0 + 1e-15),
        f"the sum over all {len(summands)} cells",
        "certified" if all(finding.rigor == "certified" for finding in summands) else "theorem",
        [finding.source for finding in summands],
        [[finding.scope] for finding in summands],
        [finding.assumptions for finding in summands],
        max((finding.privacy for finding in summands), key=get_args(Privacy).index),
    )


def at_random(pairs_of_cells: Sequence[Dominating], claim: dps.Claim, tries: Tries) -> Iterator[dps.Finding]:
    """The best of a random number of tries, each of a uniform cell."""
    import numpy as np

    from dpspec.accounting import SELECTION_ORDERS, best_epsilon, drawn_cell_rdp, selection_rdp

    orders = np.array(SELECTION_ORDERS)
    step_divergences: dict[object, Floats] = {}
    cells = np.zeros((len(pairs_of_cells), len(orders)))  # the divergences of each run in both directions
    for cell, cell_pair in zip(cells, pairs_of_cells, strict=True):
        pairs: Any = cell_pair.phases
        for pair, steps in pairs:
            if pair.key not in step_divergences:
                step_divergences[pair.key] = _step_rdp(pair, orders)
            cell += steps * step_divergences[pair.key]
    rdp = selection_rdp(orders, drawn_cell_rdp(orders, cells), tries)
    called = f"{'Poisson' if tries.law == 'poisson' else tries.law.replace('-', ' ')} tries"
    called += f", eta {tries.eta:g}" if tries.eta is not None else ""
    theorem = f"Papernot & Steinke 2022, Theorem {6 if tries.law == 'poisson' else 2}"
    return _bounds(
        claim,
        best_epsilon(orders, rdp, float(claim["delta"])).epsilon,
        f"{called}, {tries.mean:g} on average",
        "theorem",
        [theorem, *(cell_pair.source for cell_pair in pairs_of_cells)],
        [cell_pair.scopes for cell_pair in pairs_of_cells],
        [*(cell_pair.assumptions for cell_pair in pairs_of_cells), (RANDOM_TRIES,)],
    )


def _step_rdp(pair: Any, orders: Floats) -> Floats:
    import numpy as np

    from dpspec.accounting import Laplace, Mixture, composed_rdp, gaussian_rdp

    if isinstance(pair, Mixture | Laplace):
        return composed_rdp([(pair, 1)], orders)
    effect = pair.dominating_effect
    return gaussian_rdp(orders, effect) if math.isfinite(effect) else np.full(orders.shape, math.inf)


def common_scopes(scopes_of_cells: Sequence[Sequence[dps.Scope]]) -> tuple[dps.Scope, ...]:
    """The scopes in which every cell's bound holds, each with the smallest sufficient minimum of records."""
    common: dict[dps.Scope, None] = {}
    first = [
        scope
        for own_scope in scopes_of_cells[0]
        for scope in (own_scope, replace(own_scope, data="this", min_records=0))
    ]
    for candidate in first:
        fewest = []
        for scopes in scopes_of_cells:
            fits = [s.min_records for s in scopes if covers(s, replace(candidate, min_records=s.min_records))]
            if candidate.data == "this":
                fits = [number for number in fits if number == 0]
            if not fits:
                break
            fewest.append(min(fits))
        else:
            common_scope = replace(candidate, min_records=max(fewest))
            common[common_scope] = None
            if common_scope.data == "all" and common_scope.min_records == 0:
                break
    return tuple(common)
