"""The audit of the mechanism ``selection``: bounds alone, from the mechanisms of its cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, cast

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
from dpspec.contract.audit import Dominating
from dpspec.contract.catalog import Catalog
from dpspec.contract.findings import Privacy
from dpspec.engine.selection.notes import COSTS
from dpspec.errors import SpecError
from dpspec.language.load import from_document
from dpspec.language.reading.tree import locate
from dpspec.language.selections import SELECTION

if TYPE_CHECKING:
    from dpspec.accounting import Tries
    from dpspec.engine.selection.ways import Cell, Way

#: What both bounds rest on.
COMPARED = Assumption(
    name="compared-on-releases",
    status="declared",
    text="the best cell is told by what the runs release and by public data, and no other run was made on the records",
)

#: What nobody can check from outside.
RANDOM_TRIES = Assumption(
    name="random-tries",
    status="unchecked",
    text="the number of tries is drawn from the declared law, each try's cell uniformly, both whatever the data, and "
    "of all tries the best alone is shown",
)

#: What is known of constants, the least first.
_KNOWN = ("false", "unchecked", "reported", "declared", "not-rejected", "by-construction")

#: Of more cells that differ, laws that nobody declared are not worth the time that they take.
_MOST_FOR_INFORMATION = 32


class RunsOthers(Protocol):
    """A context that makes those of other audits on the same data."""

    def beside(self, prepared: Cell) -> Context:
        """A context for another audit."""


class SelectionAudit(Audit):
    """Bounds the choice of the best cell: of all, each run once, or of a random number of tries.

    cells: as they were prepared, each with the claims at its share of delta; core fills them in.
    """

    def __init__(self, cells: Sequence[Cell] = ()) -> None:
        self.cells = tuple(cells)

    @property
    def constants(self) -> Assumption:
        """Where those of the cell come from of which the least is known: the choice rests on all."""
        return min((cell.constants for cell in self.cells), key=lambda said: _KNOWN.index(said.status))

    def check(self, spec: Spec, facts: Facts) -> Iterator[Diagnostic]:
        """What is wrong with a cell, and cells of which nothing can be said together."""
        for number, cell in enumerate(self.cells):
            for wrong in cell.diagnostics:
                yield _of_cell(number, wrong)
            if cell.spec.training.kind == "recorded":
                yield _refused(number, "a recorded run is one run, and says nothing of others that it was chosen from")
            if _start(cell.spec) != _start(spec):
                yield _refused(number, "its model starts otherwise than that of the spec")
            if any(_about(own) != _about(said) for own, said in zip(cell.spec.claims, spec.claims, strict=True)):
                yield _refused(number, "its threat model is another one than that of the spec")

    def bound(self, spec: Spec, context: Context) -> Iterator[Finding | Series]:
        """Epsilon of the choice at each claim's delta; and what other ways to choose would have cost, as a table."""
        from dpspec.engine.selection import ways

        rows: list[tuple[Json, ...]] = []
        privacy: Privacy = "public"
        contexts = [cast(RunsOthers, context).beside(cell) for cell in self.cells]
        for number, claim in enumerate(spec.claims):
            context.progress(number, len(spec.claims), "accounting")
            claims = [cell.spec.claims[number] for cell in self.cells]
            every = ways.dominated(self.cells, claims)
            ran, others = self._ways(spec, claim, claims, every, contexts)
            if ran is not None:
                yield from _findings(ran, claim)
                rows.append(_row(claim, ran, "yes"))
            rows += [_row(claim, way, "no") for way in others]
            privacy = ways.strictest([privacy, *(way.privacy for way in (ran, *others) if way is not None)])
        context.progress(len(spec.claims), len(spec.claims), "accounting")
        if rows:
            yield _series(rows, privacy)

    def _ways(
        self,
        spec: Spec,
        claim: Claim,
        claims: Sequence[Claim],
        every: Sequence[Dominating] | None,
        contexts: Sequence[Context],
    ) -> tuple[Way | None, list[Way]]:
        """The bound on what ran as the spec says, None without one; and what other ways to choose would have cost.

        Every cell run once and a random number of tries, which may run one cell often, are two procedures: a bound on
        the one says nothing of the other.
        """
        from dpspec.engine.selection import ways

        declared = _tries(spec)
        plain = ways.all_composed(every, claim) if every else ways.added_up(self.cells, claims, contexts)
        if declared is not None:
            random = ways.at_random(every, claim, declared, (RANDOM_TRIES,)) if every else None
            return random, [] if plain is None else [plain]
        if not every or len({_identity(one) for one in every}) > _MOST_FOR_INFORMATION:
            return plain, []
        return plain, [ways.at_random(every, claim, law) for law in _others(every)]


def with_cells(spec: Spec, catalog: Catalog, prepare: Callable[[Spec], Cell]) -> SelectionAudit:
    """The audit of a spec of this mechanism, its cells prepared. Raises ``SpecError`` where one of them is no spec."""
    from dpspec.engine.selection.ways import share

    cells: list[Cell] = []
    blocks = spec.mechanism["cells"]
    claims = [
        {**thaw(claim), "delta": share(claim["delta"], len(blocks)), "expect": ["proved"]}
        for claim in spec.document["claims"]
    ]
    shared = {key: thaw(spec.document[key]) for key in ("dpspec", "name", "data", "training", "threat_model")}
    for number, block in enumerate(blocks):
        try:
            if block["mechanism"].get("kind") == SELECTION:
                raise SpecError([_refused(number, "a cell cannot choose among cells of its own")])
            cell = from_document({**shared, **thaw(block), "claims": claims}, catalog, spec.directory)
            cells.append(prepare(cell))
        except SpecError as error:
            wrong = [d if d.path[:2] == _CELLS else _of_cell(number, d) for d in error.diagnostics]
            raise SpecError([locate(d, spec.origin) for d in wrong]) from None
    return SelectionAudit(cells)


_CELLS: Path = ("mechanism", "cells")


def _of_cell(number: int, wrong: Diagnostic) -> Diagnostic:
    message = f"cell {number + 1}: {wrong.message}"
    return dataclasses.replace(wrong, message=message, path=(*_CELLS, number), span=None)


def _refused(number: int, message: str) -> Diagnostic:
    return Diagnostic(code="unsupported", message=f"cell {number + 1}: {message}", path=(*_CELLS, number))


def _start(spec: Spec) -> tuple[bool, Json]:
    """Whether there is a model, and what it starts from: both decide what bounds rest on."""
    return spec.model is not None, None if spec.model is None else spec.model.get("initial")


def _about(claim: Claim) -> tuple[Json, ...]:
    """Of which neighbours and adversary a claim speaks."""
    return (
        *(claim.adjacency, claim.unit, claim.direction, claim.access, claim.group_size),
        *(claim.min_records, claim.neighbours, claim.record, claim.over),
    )


def _tries(spec: Spec) -> Tries | None:
    from dpspec.accounting import Tries

    said = spec.mechanism.get("tries")
    return None if said is None else Tries(said["distribution"], said["mean"], said.get("eta"))


def _others(every: Sequence[Dominating]) -> list[Tries]:
    """Laws with as many tries on average as there are cells."""
    from dpspec.accounting import Tries

    return [Tries("logarithmic", float(len(every))), Tries("geometric", float(len(every)))]


def _identity(one: Dominating) -> object:
    pairs = [(getattr(pair, "key", None), steps) for pair, steps in one.phases]
    return tuple(pairs)


def _findings(way: Way, claim: Claim) -> Iterator[Finding]:
    """The way's upper bound in each of its scopes."""
    for scope in way.scopes:
        yield Finding(
            quantity="epsilon",
            value=way.epsilon,
            bound="upper",
            rigor=way.rigor,
            method=way.name,
            source=way.source,
            at=FrozenMap({"delta": float(claim["delta"]), "group_size": claim.group_size}),
            scope=scope,
            assumptions=(*way.assumptions, COMPARED),
            privacy=way.privacy,
        )


def _row(claim: Claim, way: Way, declared: str) -> tuple[Json, ...]:
    return claim.id, way.label, way.trainings, way.epsilon, way.lower, float(claim["delta"]), declared


def _series(rows: Sequence[tuple[Json, ...]], privacy: Privacy) -> Series:
    from dpspec import kit

    return kit.series(
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
