"""The audit of the mechanism ``selection``: bounds on publishing the best of several cells, from their mechanisms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from dpspec.contract import (
    Assumption,
    Audit,
    Claim,
    Context,
    Diagnostic,
    Facts,
    Finding,
    FrozenMap,
    Json,
    Path,
    Scope,
    Series,
    Spec,
    thaw,
)
from dpspec.contract.audit import Component, Dominating
from dpspec.contract.findings import Privacy, Rigor
from dpspec.engine.judging.evidence_weight import claim_scope, covers, weighed_findings
from dpspec.engine.judging.inequalities import statement
from dpspec.engine.results.decimals import upper

if TYPE_CHECKING:
    from dpspec.accounting import Directions, Floats, Tries


#: Assumption of both bounds.
COMPARED = Assumption(
    name="compared-on-releases",
    status="declared",
    text="the best cell is selected by the releases of the runs and by public data, and no other run used the records",
)

#: Assumption of the bound on a random number of tries, which an external observer cannot check.
RANDOM_TRIES = Assumption(
    name="random-tries",
    status="unchecked",
    text="the number of tries has the declared distribution and the cell of each try is uniform, both independent of "
    "the data, and only the best of all tries is released",
)

#: Name of the series with all bounds.
COSTS = "what-tuning-costs"

#: Maximum number of different cells for which undeclared numbers of tries are bounded.
_MOST_FOR_INFORMATION = 32

_CELLS: Path = ("mechanism", "cells")

#: The note for declared tries without a bound.
_NONE = "no bound on these tries, as the mechanism of a cell does not say what its runs leak in a form that composes"


class SelectionAudit(Audit):
    def __init__(self, cells: Sequence[Component] = ()) -> None:
        self.cells = tuple(cells)

    def components(self, spec: Spec) -> Iterator[tuple[str, Path, FrozenMap]]:

        blocks = spec.mechanism["cells"]
        claims = [
            {**thaw(claim), "delta": share(claim["delta"], len(blocks)), "expect": ["proved"]}
            for claim in spec.document["claims"]
        ]
        shared = {key: thaw(spec.document[key]) for key in ("dpspec", "name", "data", "training", "threat_model")}
        for number, block in enumerate(blocks):
            yield f"cell {number + 1}", (*_CELLS, number), FrozenMap({**shared, **thaw(block), "claims": claims})

    def compose(self, components: Sequence[Component]) -> SelectionAudit:
        return SelectionAudit(components)

    def check(self, spec: Spec, facts: Facts) -> Iterator[Diagnostic]:
        for number, cell in enumerate(self.cells):
            for wrong in cell.diagnostics:
                message = f"cell {number + 1}: {wrong.message}"
                yield dataclasses.replace(wrong, message=message, path=(*_CELLS, number), span=None)
            if cell.components:
                yield _refused(number, "a cell cannot select among cells")
            if cell.recording is not None:
                yield _refused(number, "a recorded run is a single run without others to choose from")
            if _start(cell.spec) != _start(spec):
                yield _refused(number, "its initial model differs from the spec's")
            if any(_scope(own) != _scope(claim) for own, claim in zip(cell.spec.claims, spec.claims, strict=True)):
                yield _refused(number, "its threat model differs from the spec's")

    def bound(self, spec: Spec, context: Context) -> Iterator[Finding | Series]:
        from dpspec import kit

        rows: list[tuple[Json, ...]] = []
        privacy: Privacy = "public"
        contexts = [cast(Any, context).for_component(cell) for cell in self.cells]
        for number, claim in enumerate(spec.claims):
            context.progress(number, len(spec.claims), "accounting")
            claims = [cell.spec.claims[number] for cell in self.cells]
            every = dominated(self.cells, claims)
            declared, others = self._bounds(spec, claim, claims, every, contexts)
            if declared is not None:
                for scope in declared.scopes:
                    yield Finding(
                        quantity="epsilon",
                        value=declared.epsilon,
                        bound="upper",
                        rigor=declared.rigor,
                        method=declared.name,
                        source=declared.source,
                        at=FrozenMap({"delta": float(claim["delta"]), "group_size": claim.group_size}),
                        scope=scope,
                        assumptions=(*declared.assumptions, COMPARED),
                        privacy=declared.privacy,
                    )
                rows.append(_row(claim, declared, "yes"))
            rows += [_row(claim, other, "no") for other in others]
            found = [declared, *others] if declared is not None else others
            privacy = strictest([privacy, *(each.privacy for each in found)])
        context.progress(len(spec.claims), len(spec.claims), "accounting")
        if rows:
            yield kit.series(
                COSTS,
                "What publishing the best cell costs, by each way to find it",
                kit.columns_of(("claim", "way", "trainings", "epsilon", "lower", "delta", "declared"), rows),
                units={"trainings": "on average"},
                rigor="theorem",
                source="composition of all cells; Papernot & Steinke 2022",
                privacy=privacy,
                upper=["epsilon"],
                lower=["lower"],
            )

    def notes(self, bounds: Sequence[Finding | Series]) -> Iterator[str]:
        for table in bounds:
            if not isinstance(table, Series) or table.name != COSTS or table.privacy != "public":
                continue
            names = ("claim", "way", "trainings", "epsilon", "declared")
            rows = list(zip(*(table.columns[name] for name in names), strict=True))
            for claim in dict.fromkeys(table.columns["claim"]):
                ways = [row[1:] for row in rows if row[0] == claim]
                ran = next((way for way in ways if way[3] == "yes"), None)
                text = f"{claim}: {_NONE if ran is None else _cost(*ran[:3])}."
                others = [way for way in ways if way[3] != "yes"]
                costs = "; ".join(_cost(*way[:3]) for way in others)
                yield f"{text} For comparison, not run: {costs}." if costs else text

    def _bounds(
        self,
        spec: Spec,
        claim: Claim,
        claims: Sequence[Claim],
        every: Sequence[Dominating] | None,
        contexts: Sequence[Context],
    ) -> tuple[SelectionBound | None, list[SelectionBound]]:
        """The bound on the declared procedure, None without one, and the bounds on other ways to choose.

        Running every cell once and a random number of tries, which may repeat a cell, are two procedures: a bound on
        one does not apply to the other.
        """
        from dpspec.accounting import Tries

        tries = spec.mechanism.get("tries")
        declared = None if tries is None else Tries(tries["distribution"], tries["mean"], tries.get("eta"))
        plain = all_composed(every, claim) if every else added_up(self.cells, claims, contexts)
        if declared is not None:
            random = at_random(every, claim, declared, (RANDOM_TRIES,)) if every else None
            return random, [] if plain is None else [plain]
        if (
            not every
            or len({tuple((getattr(pair, "key", None), steps) for pair, steps in run.phases) for run in every})
            > _MOST_FOR_INFORMATION
        ):
            return plain, []
        usual = [Tries(law, float(len(every))) for law in ("logarithmic", "geometric")]
        return plain, [at_random(every, claim, tries) for tries in usual]


def _refused(number: int, message: str) -> Diagnostic:
    return Diagnostic(code="unsupported", message=f"cell {number + 1}: {message}", path=(*_CELLS, number))


def _start(spec: Spec) -> tuple[bool, Json]:
    return spec.model is not None, None if spec.model is None else spec.model.get("initial")


def _scope(claim: Claim) -> tuple[Json, ...]:
    return (
        *(claim.adjacency, claim.unit, claim.direction, claim.access, claim.group_size),
        *(claim.min_records, claim.neighbours, claim.record, claim.over),
    )


def _row(claim: Claim, found: SelectionBound, declared: str) -> tuple[Json, ...]:
    return claim.id, found.label, found.trainings, found.epsilon, found.lower, float(claim["delta"]), declared


def _cost(way: str, trainings: float, epsilon: float | None) -> str:
    bound = "no finite epsilon" if epsilon is None else f"epsilon <= {upper(epsilon)}"
    return f"{bound} by {way} ({trainings:g} trainings{'' if way.startswith(('all', 'the sum')) else ' on average'})"


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
