"""All audits of one invocation, step by step: bounds, then the trials that the store lacks, then what follows.

Each step of all audits is one queue, so that the cells of a matrix and the specs of a folder keep every worker busy.
Trials of audits with claims that bounds leave open come first: what ends a run early, ends it where it matters least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dpspec.contract import (
    Catalog,
    DataError,
    Finding,
    Needs,
    Noticed,
    Plan,
    Pool,
    Progressed,
    Series,
    TrialsPlanned,
)
from dpspec.engine.dispatch import Limits, Piece, work_off
from dpspec.engine.judge import Unjudged, confidence_of, judge
from dpspec.engine.means import Means, Workshop
from dpspec.engine.outcomes import Outcomes
from dpspec.engine.prepare import Prepared, beyond, unreadable
from dpspec.engine.settled import Share, Watch, among
from dpspec.engine.store import Store
from dpspec.engine.trials import Listener, Trials
from dpspec.engine.work import Bench, Bounding, Concluding, Made, Training, Work
from dpspec.errors import IncompleteError, SpecError
from dpspec.executors.inline import Inline
from dpspec.stats import nulls

#: Bounds, plan and conclusions of so many audits are done before workers have started; and the seconds of one.
_FEW, _EACH = 8, 2.0

#: Arrays of more bytes stay where they are: they may be larger than anything that is computed from them.
_HEAVY = 1 << 20

NOTHING = Plan(chunks=(), seconds=0.0, memory_bytes=0)


@dataclass
class Audit:
    """One audit on its way."""

    prepared: Prepared
    trials: Trials
    bounds: Sequence[Finding | Series] = ()
    plan: Plan = NOTHING
    outcomes: Outcomes = field(default_factory=Outcomes)
    seconds: float = 0.0
    settled_after: int | None = None
    pieces: list[Piece] = field(default_factory=list)
    watch: Watch | None = None


class Campaign:
    """Some audits, to be run with some means."""

    def __init__(
        self, prepared: Sequence[Prepared], catalog: Catalog, *, store: Store, means: Means, emit: Listener
    ) -> None:
        self._catalog, self._store, self._means, self._emit = catalog, store, means, emit
        self._bench = Bench(prepared)
        self._workshop = Workshop(means, catalog, lambda said: emit(said.value))
        self._all = prepared[0].spec.name if len(prepared) == 1 else f"{len(prepared)} audits"
        self.audits = [Audit(prepared=p, trials=Trials(p, NOTHING, store, emit)) for p in prepared]

    def run(self, *, train: bool) -> list[Audit]:
        """Go through with it; ``train``: whether trials are planned and made."""
        try:
            self._bound(train)
            if train:
                self._train()
            self._conclude()
        finally:
            self._workshop.close()
            self._bench.close()
        return self.audits

    def _bound(self, train: bool) -> None:
        def make(audit: int, indices: Sequence[int]) -> Work:
            return Bounding(**self._common(audit), planned=train)

        def hear(piece: Piece, made: Made) -> None:
            audit = self.audits[piece.audit]
            (audit.bounds, audit.plan), audit.seconds = made.value, made.seconds

        self._small("bound", range(len(self.audits)), make, hear)

    def _conclude(self) -> None:
        def make(audit: int, indices: Sequence[int]) -> Work:
            state = self.audits[audit]
            trials = [stored.trial for stored in state.trials.sorted]
            return Concluding(**self._common(audit), bounds=state.bounds, trials=trials)

        def hear(piece: Piece, made: Made) -> None:
            audit = self.audits[piece.audit]
            (audit.outcomes, tests), audit.seconds = made.value, audit.seconds + made.seconds
            nulls.learn(tests)

        heavy = {number for number, audit in enumerate(self.audits) if audit.trials.array_bytes > _HEAVY}
        self._small("conclude", [i for i in range(len(self.audits)) if i not in heavy], make, hear)
        self._small("conclude", sorted(heavy), make, hear, here=True)

    def _train(self) -> None:
        specs = [audit.prepared.spec for audit in self.audits]
        shares = [
            Share.of((claim.kind for claim in spec.claims), audit.plan.trials, audit.plan.power)
            for spec, audit in zip(specs, self.audits, strict=True)
        ]
        for audit, rule in zip(self.audits, among(shares, confidence_of(specs)), strict=True):
            audit.trials = Trials(audit.prepared, audit.plan, self._store, self._emit)
            if audit.plan.sequential:
                audit.watch = Watch(audit.prepared, audit.bounds, audit.plan, rule)
            if audit.plan.chunks:
                audit.trials.look()
                self._settle(audit)
                name, total = audit.prepared.spec.name, audit.trials.plan.trials
                stored, seconds = total - audit.trials.missing_trials, audit.plan.seconds
                self._emit(TrialsPlanned(audit=name, total=total, stored=stored, seconds=seconds))
        waiting = [(n, missing) for n in self._order() for missing in self.audits[n].trials.missing()]
        chosen = _first(waiting, self._means.max_trials)
        if not chosen:
            return
        seconds = sum(a.plan.seconds * a.trials.missing_trials / max(1, a.plan.trials) for a in self.audits)
        pool = self._workshop.pool(len(chosen), seconds)
        apart = not isinstance(pool, Inline)
        pieces = [self._training(number, missing, apart=apart) for number, missing in chosen]
        for piece in pieces:
            self.audits[piece.audit].pieces.append(piece)
        done, total = 0, sum(len(missing) for _, missing in chosen)

        def hear(piece: Piece, made: Made) -> None:
            nonlocal done
            audit = self.audits[piece.audit]
            audit.trials.keep(made)
            audit.seconds += made.seconds
            done += 1
            self._settle(audit)
            if pool.size > 1:
                self._emit(Progressed(audit=self._all, what="trials", done=done, total=total, unit="trials"))

        self._work_off(pieces, pool, hear, Limits(seconds=self._means.seconds_left))
        self._tell_what_is_missing(cut=len(chosen) < len(waiting))

    def _settle(self, audit: Audit) -> None:
        """Ask for no more of an audit whose claims are decided."""
        if audit.watch is None or audit.settled_after is not None:
            return
        chunks = audit.watch.after(audit.trials.found, lambda index: audit.trials.found[index].trial)
        if chunks is None:
            return
        audit.settled_after = audit.trials.cut(chunks)
        for piece in audit.pieces:
            piece.missing.clear()
        message = f"its claims are decided after {audit.settled_after} of {audit.plan.trials} trials: no more are made"
        self._emit(Noticed(audit=audit.prepared.spec.name, message=message))

    def _training(self, number: int, missing: list[int], *, apart: bool) -> Piece:
        """What is missing of a chunk; ``apart``: to be made by other processes than this one."""
        audit = self.audits[number]
        threads = self._means.threads_of(audit.plan)

        def make(indices: Sequence[int]) -> Work:
            folders = audit.trials.folders(indices, made=apart)
            return Training(**self._common(number, threads), indices=tuple(indices), folders=folders)

        needs = Needs(threads=threads, memory_bytes=audit.plan.memory_bytes, device=self._means.device)
        return self._piece(number, "trials", needs, missing, make)

    def _order(self) -> list[int]:
        """The audits with claims that bounds leave open, then the others."""
        if len(self.audits) == 1:
            return [0]
        found = [tuple(bound for bound in a.bounds if isinstance(bound, Finding)) for a in self.audits]
        judged = judge([Unjudged(spec=a.prepared.spec, findings=f) for a, f in zip(self.audits, found, strict=True)])
        open_ = [any(verdict.verdict == "open" for verdict in j.verdicts) for j in judged]
        return sorted(range(len(self.audits)), key=lambda number: not open_[number])

    def _small(
        self,
        stage: str,
        numbers: Sequence[int],
        make: Callable[[int, Sequence[int]], Work],
        hear: Callable[[Piece, Made], None],
        *,
        here: bool = False,
    ) -> None:
        """A step that is one task per audit, on one core, and short."""
        pieces = [self._piece(n, stage, Needs(), [0], partial(make, n)) for n in numbers]
        few = here or len(pieces) <= _FEW
        pool = self._workshop.here() if few else self._workshop.pool(len(pieces), _EACH * len(pieces))
        done = 0

        def heard(piece: Piece, made: Made) -> None:
            nonlocal done
            hear(piece, made)
            done += 1
            if pool.size > 1:
                total = len(pieces)
                self._emit(Progressed(audit=self._all, what=stage, done=done, total=total, unit="audits"))

        self._work_off(pieces, pool, heard, Limits())
        if lost := [piece.name for piece in pieces if piece.missing]:
            raise IncompleteError(f"{stage} of {', '.join(lost)} was lost again and again")

    def _piece(
        self, number: int, stage: str, needs: Needs, missing: list[int], make: Callable[[Sequence[int]], Work]
    ) -> Piece:
        name = self.audits[number].prepared.spec.name
        return Piece(audit=number, name=name, stage=stage, needs=needs, missing=missing, make=make)

    def _work_off(
        self, pieces: Sequence[Piece], pool: Pool, hear: Callable[[Piece, Made], None], limits: Limits
    ) -> None:
        work_off(pieces, pool, hear=hear, failed=self._failed, emit=self._emit, limits=limits)

    def _failed(self, piece: Piece, error: BaseException) -> None:
        if isinstance(error, DataError):
            raise SpecError([unreadable(error, self.audits[piece.audit].prepared.spec)]) from error
        if piece.stage == "bound" and isinstance(error, ArithmeticError) and not isinstance(error, ZeroDivisionError):
            raise SpecError([beyond(error, self.audits[piece.audit].prepared.spec)]) from error
        raise error

    def _common(self, audit: int, threads: int = 1) -> dict[str, Any]:
        prepared = self.audits[audit].prepared
        return {
            "spec": prepared.spec,
            "catalog": self._catalog,
            "facts": prepared.facts,
            "threads": threads,
            "bench": self._bench,
        }

    def _tell_what_is_missing(self, *, cut: bool) -> None:
        """Say of each audit that is not complete why it is not."""
        why = f"stopped after {self._means.max_trials} trials" if cut else "stopped at the time limit"
        late = (self._means.seconds_left() or 0.0) < 0.0
        for audit in self.audits:
            if audit.trials.missing_trials and (cut or late):
                message = f"{why}; running the same command again continues"
                self._emit(Noticed(audit=audit.prepared.spec.name, message=message))


def _first(chunks: list[tuple[int, list[int]]], most: int | None) -> list[tuple[int, list[int]]]:
    """So many trials from the front; what is trained together is not split, and the first is always taken."""
    if most is None:
        return chunks
    taken: list[tuple[int, list[int]]] = []
    count = 0
    for number, missing in chunks:
        count += len(missing)
        if taken and count > most:
            break
        taken.append((number, missing))
    return taken
