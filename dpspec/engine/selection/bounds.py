"""Two bounds on the choice of the best of n cells, all trained on the same data.

*All cells composed*: the choice depends on the cells' releases only. If every cell has dominating pairs, the epsilon of
their composition is certified; otherwise the cells' own epsilons, each at delta / n, are added (Dwork et al. 2006). *A
random number of tries*: Papernot and Steinke 2022, with the cell of each try drawn uniformly. A pair that is not a
mixture of Gaussian or Laplace distributions is replaced by a dominating Gaussian pair. These are two procedures with
separate upper bounds, because a random number of tries may repeat a cell. The choice has no lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpspec.contract import Assumption, Claim, Context, Finding, Json, Scope
from dpspec.contract.audit import Component, Dominating
from dpspec.contract.findings import Privacy, Rigor
from dpspec.engine.judging.evidence_weight import claim_scope, covers, weighed_findings
from dpspec.engine.judging.inequalities import statement

if TYPE_CHECKING:
    from dpspec.accounting import Directions, Floats, Tries

#: The spec's words for the directions, and the accountant's.
_DIRECTIONS: Mapping[str, Directions] = {"remove": "present-first", "add": "absent-first", "both": "both"}

#: Factor by which n shares of delta sum to at most delta despite rounding.
_SHARE = 1.0 - 1e-12


@dataclass(frozen=True, kw_only=True)
class SelectionBound:
    """``lower`` is the lower end of the composition's interval, which does not bound the choice from below."""

    label: str
    epsilon: float
    lower: float | None = None
    trainings: float
    rigor: Rigor
    source: str
    scopes: tuple[Scope, ...]
    assumptions: tuple[Assumption, ...]
    privacy: Privacy = "public"
    drawn: bool = False

    @property
    def name(self) -> str:
        return f"{self.label}, {self.trainings:g} on average" if self.drawn else self.label


def share(delta: float, cells: int) -> float:
    return delta / cells * _SHARE


def dominated(cells: Sequence[Component], claims: Sequence[Claim]) -> list[Dominating] | None:
    every = [cell.audit.dominating(cell.spec, cell.facts, claim) for cell, claim in zip(cells, claims, strict=True)]
    known = [one for one in every if one is not None]
    return known if len(known) == len(every) else None


def all_composed(every: Sequence[Dominating], claim: Claim) -> SelectionBound:
    """Epsilon to a relative 1e-4, with its lower end."""
    from dpspec.accounting import PrivacyLoss, library_accuracy

    phases: Any = tuple(phase for one in every for phase in one.phases)
    epsilon = PrivacyLoss(phases, _DIRECTIONS[claim.direction]).epsilon(float(claim["delta"]))
    return SelectionBound(
        label=f"all {len(every)} cells composed",
        epsilon=epsilon.upper,
        lower=epsilon.lower,
        trainings=float(len(every)),
        rigor="certified",
        source=_joined(one.source for one in every),
        scopes=common_scopes([one.scopes for one in every]),
        assumptions=(*_united(one.assumptions for one in every), library_accuracy()),
    )


def added_up(cells: Sequence[Component], claims: Sequence[Claim], contexts: Sequence[Context]) -> SelectionBound | None:
    found: list[Finding] = []
    for cell, claim, context in zip(cells, claims, contexts, strict=True):
        findings = [f for f in cell.audit.bound(cell.spec, context) if isinstance(f, Finding)]
        (part,) = statement(claim).parts
        weighed = weighed_findings(part, claim_scope(cell.spec, claim), findings)
        held = next((one.finding for one in weighed if one.strength in ("proof", "conditional")), None)
        if held is None:
            return None
        found.append(held)
    return SelectionBound(
        label=f"the sum over all {len(found)} cells",
        epsilon=math.fsum(finding.value for finding in found) * (1.0 + 1e-15),
        trainings=float(len(found)),
        rigor="certified" if all(finding.rigor == "certified" for finding in found) else "theorem",
        source=_joined(finding.source for finding in found),
        scopes=common_scopes([[finding.scope] for finding in found]),
        assumptions=_united(finding.assumptions for finding in found),
        privacy=strictest([finding.privacy for finding in found]),
    )


#: Privacy classes, from public to secret.
_PRIVACY = ("public", "data-dependent", "per-record")


def strictest(every: Sequence[Privacy]) -> Privacy:
    return max(every, key=_PRIVACY.index)


def at_random(
    every: Sequence[Dominating], claim: Claim, tries: Tries, assumptions: tuple[Assumption, ...] = ()
) -> SelectionBound:
    """The best of a random number of tries, each of a uniform cell; ``assumptions`` extend the cells' assumptions."""
    import numpy as np

    from dpspec.accounting import SELECTION_ORDERS, best_epsilon, drawn_cell_rdp, selection_rdp

    orders = np.array(SELECTION_ORDERS)
    known: dict[object, Floats] = {}
    cells = np.zeros((len(every), len(orders)))  # the divergences of each run in both directions
    for cell, one in zip(cells, every, strict=True):
        pairs: Any = one.phases
        for pair, steps in pairs:
            if pair.key not in known:
                known[pair.key] = _step_rdp(pair, orders)
            cell += steps * known[pair.key]
    rdp = selection_rdp(orders, drawn_cell_rdp(orders, cells), tries)
    return SelectionBound(
        label=called(tries),
        epsilon=best_epsilon(orders, rdp, float(claim["delta"])).epsilon,
        trainings=tries.mean,
        drawn=True,
        rigor="theorem",
        source=f"Papernot & Steinke 2022, Theorem {6 if tries.law == 'poisson' else 2}; "
        + _joined(one.source for one in every),
        scopes=common_scopes([one.scopes for one in every]),
        assumptions=(*_united(one.assumptions for one in every), *assumptions),
    )


def called(tries: Tries) -> str:
    shape = f", eta {tries.eta:g}" if tries.eta is not None else ""
    return f"{'Poisson' if tries.law == 'poisson' else tries.law.replace('-', ' ')} tries{shape}"


def _step_rdp(pair: Any, orders: Floats) -> Floats:
    import numpy as np

    from dpspec.accounting import Laplace, Mixture, composed_rdp, gaussian_rdp

    if isinstance(pair, Mixture | Laplace):
        return composed_rdp([(pair, 1)], orders)
    effect = pair.dominating_effect
    return gaussian_rdp(orders, effect) if math.isfinite(effect) else np.full(orders.shape, math.inf)


def common_scopes(every: Sequence[Sequence[Scope]]) -> tuple[Scope, ...]:
    """The scopes in which every cell's bound holds; none if they have nothing in common.

    For datasets with a minimum number of records, the smallest minimum that suffices for all cells.
    """
    common: dict[Scope, None] = {}
    first = [scope for one in every[0] for scope in (one, replace(one, data="this", min_records=0))]
    for candidate in first:
        fewest = []
        for scopes in every:
            fits = [s.min_records for s in scopes if covers(s, replace(candidate, min_records=s.min_records))]
            if candidate.data == "this":
                fits = [number for number in fits if number == 0]
            if not fits:
                break
            fewest.append(min(fits))
        else:
            found = replace(candidate, min_records=max(fewest))
            common[found] = None
            if found.data == "all" and found.min_records == 0:
                break
    return tuple(common)


def _united(every: Iterable[tuple[Assumption, ...]]) -> tuple[Assumption, ...]:
    named: dict[tuple[str, Json], Assumption] = {}
    for assumptions in every:
        for one in assumptions:
            named.setdefault((one.name, one.status), one)
    return tuple(named.values())


def _joined(sources: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(sources))
