"""The audit of the mechanism ``selection``: bounds on publishing the best of several cells, from their mechanisms."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
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
    Series,
    Spec,
    thaw,
)
from dpspec.contract.audit import Component, Dominating
from dpspec.contract.findings import Privacy
from dpspec.engine.results.decimals import upper

if TYPE_CHECKING:
    from dpspec.engine.selection.bounds import SelectionBound

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
        from dpspec.engine.selection.bounds import share

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
        from dpspec.engine.selection import bounds

        rows: list[tuple[Json, ...]] = []
        privacy: Privacy = "public"
        contexts = [cast(Any, context).for_component(cell) for cell in self.cells]
        for number, claim in enumerate(spec.claims):
            context.progress(number, len(spec.claims), "accounting")
            claims = [cell.spec.claims[number] for cell in self.cells]
            every = bounds.dominated(self.cells, claims)
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
            privacy = bounds.strictest([privacy, *(each.privacy for each in found)])
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
        from dpspec.engine.selection import bounds

        tries = spec.mechanism.get("tries")
        declared = None if tries is None else Tries(tries["distribution"], tries["mean"], tries.get("eta"))
        plain = bounds.all_composed(every, claim) if every else bounds.added_up(self.cells, claims, contexts)
        if declared is not None:
            random = bounds.at_random(every, claim, declared, (RANDOM_TRIES,)) if every else None
            return random, [] if plain is None else [plain]
        if (
            not every
            or len({tuple((getattr(pair, "key", None), steps) for pair, steps in run.phases) for run in every})
            > _MOST_FOR_INFORMATION
        ):
            return plain, []
        usual = [Tries(law, float(len(every))) for law in ("logarithmic", "geometric")]
        return plain, [bounds.at_random(every, claim, tries) for tries in usual]


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
