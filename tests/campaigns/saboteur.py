"""Run every backend fault by access, optimizer, canaries and method: ``python tests/campaigns/saboteur.py``.

A cell trains a tiny model with a faulty backend (``support.saboteur``) and compares the checks that were made with
those that the plan promised. A cell is a **hole** if its conformance is as expected although

* a promised check was not made,
* a source that the backend declares detects the fault, or
* nothing was observed and the spec does not expect ``not-run``.

It is a **false alarm** if a correct run is not as expected. An error of the backend is not a hole: it cannot pass for
a sound audit.
"""

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.saboteur import FAULTS, Saboteur

from dpspec.contract import CAPABILITIES, Backend, Check
from dpspec.contract.catalog import Catalog, Offered
from dpspec.engine.judging.judge import judge
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.running.conclude import conclude
from dpspec.engine.storage.stored_trials import AuditState
from dpspec.language.load import from_document
from dpspec.registry.loader import load_catalog

MECHANISM = {"noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "poisson", "rate": 0.3}, "steps": 8}
TRAINING = {"backend": "saboteur", "learning_rate": 0.5}

#: What backends declare: everything, states alone, logs alone, and nothing.
DECLARED = {
    "all": CAPABILITIES - {"parts"},
    "states": frozenset({"iterates", "gradient-canaries"}),
    "logs": frozenset({"sampling-log", "noise-log", "gradient-canaries"}),
    "nothing": frozenset({"gradient-canaries"}),
}

METHODS = ("group/one-run", "group/many-run", "per-instance", "rero")

#: A spec needs a claim; none is judged here.
CLAIMS: list[dict[str, Any]] = [
    {"kind": "approx-dp", "epsilon": 100.0, "delta": 1e-5},
    {"kind": "rero", "kappa": 0.25, "gamma": 0.9},
]


@dataclass(frozen=True)
class Cell:
    fault: str
    declared: str
    method: str
    access: str
    optimizer: str
    space: str
    seed: int = 1

    @property
    def sources(self) -> set[str]:
        found = set(DECLARED[self.declared])
        if "iterates" in found and self.optimizer != "adam":
            found.add("undone")
        return found

    @property
    def visible(self) -> bool:
        """Whether a declared source detects the fault, in a run that the audit has."""
        fault, runs = FAULTS[self.fault], 1 if self.method == "group/one-run" else 2
        return bool(fault.detected_by & self.sources) and (fault.run is None or fault.run <= runs)

    def document(self, expect: str | None = None) -> dict[str, Any]:
        methods: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "group/one-run": ({"method": "one-run", "canary": {"space": self.space, "count": 30}}, {}),
            "group/many-run": ({"canary": {"space": self.space}, "runs": 16}, {}),
            "per-instance": ({"runs": 2}, {"points": {"count": 4, "seed": 1}, "direction": "remove"}),
            "rero": ({"runs": 4}, {"prior": {"candidates": 4}}),
        }
        audit, threat = methods[self.method]
        if expect is not None:
            audit["expect"] = expect
        return {
            "dpspec": 1,
            "name": "cell",
            "description": "A backend with a fault",
            "mechanism": {"kind": self.method.partition("/")[0], **MECHANISM},
            "data": {"kind": "synthetic", "records": 80, "features": 10, "classes": 3},
            "model": {"kind": "mlp", "hidden": [8]},
            "training": {**TRAINING, "optimizer": {"kind": self.optimizer}, "fault": self.fault},
            "threat_model": {"access": self.access, **threat},
            "claims": [{"id": "any", **CLAIMS[self.method == "rero"]}],
            "audit": {"method": "many-run", **audit, "seed": self.seed},
        }


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell: messages ``refused`` and ``error``, the conformance, and promised checks ``missing``."""

    refused: str = ""
    error: str = ""
    status: str = ""
    expected: bool = True
    missing: tuple[str, ...] = ()


def catalog(declared: frozenset[str]) -> Catalog:
    installed = load_catalog()
    backend = Backend(
        kind="saboteur",
        summary="has a fault",
        schema={
            "type": "object",
            "properties": {"fault": {"enum": list(FAULTS), "default": "none", "description": "The fault."}},
            "additionalProperties": False,
        },
        capabilities=declared,
        trainer="support.saboteur:Saboteur",
    )
    offered = Offered(provider=backend, plugin="saboteur", distribution="saboteur", version="0")
    return replace(installed, backends={**installed.backends, "saboteur": offered})


def cells(seeds: int = 1) -> Iterator[Cell]:
    runs = (("all-iterates", "final-model"), ("sgd", "momentum", "adam"), ("gradient", "input"), range(1, seeds + 1))
    for cell in itertools.starmap(Cell, itertools.product(FAULTS, DECLARED, METHODS, *runs)):
        if cell.method.startswith("group") or cell.space == "input":
            yield cell


def run(cell: Cell, catalogs: dict[str, Catalog], expect: str | None = None) -> Outcome:
    """Train and conclude as ``dpspec run`` does, without bounds."""
    known = catalogs.setdefault(cell.declared, catalog(DECLARED[cell.declared]))
    prepared = prepare(from_document(cell.document(expect), known), known)
    errors = [d.message for d in prepared.diagnostics if d.severity == "error"]
    if errors:
        return Outcome(refused=errors[0])
    plan, inputs = prepared.plan(), prepared.trial_inputs()
    context = RunContext(prepared, known, inputs, device="cpu")
    Saboteur.watched = 0
    try:
        trials = [t for chunk in plan.chunks for t in prepared.audit.trials(inputs, context, chunk)]
        concluded = conclude(AuditState(prepared=prepared, plan=plan), trials)
    except Exception as error:
        return Outcome(error=f"{type(error).__name__}: {error}")
    (judged,) = judge([concluded])
    return Outcome(
        status=judged.conformance.status,
        expected=judged.conformance.expected,
        missing=tuple(unkept(plan.checks, concluded.checks)),
    )


def unkept(promised: tuple[Check, ...], made: tuple[Check, ...]) -> Iterator[str]:
    notes = ((c, c.note.partition(", not tested")[0].partition(", least in")[0]) for c in made)
    there = Counter((c.assumption, c.observed, note) for c, note in notes)
    for promise in promised:
        key = (promise.assumption, promise.observed, promise.note)
        if there[key] > 0:
            there[key] -= 1
        else:
            yield f"{promise.assumption} ({promise.observed}) {promise.note}".strip()


def hole(cell: Cell, found: Outcome) -> str:
    """Return a description of the hole or false alarm, or an empty string."""
    if found.error.startswith(("AttributeError", "NameError", "TypeError")):
        return f"the backend itself is broken: {found.error}"
    if found.refused or found.error:
        return "" if found.refused or cell.fault != "none" else f"a correct run fails: {found.error}"
    if cell.fault == "none":
        if cell.declared == "nothing" and found.status == "not-run":
            return "nothing was observed, and that is as expected" if found.expected else ""
        return "" if found.expected and not found.missing else f"false alarm: {found.status}, {found.missing}"
    if not found.expected:
        return ""
    if found.missing:
        return f"promised and not made: {', '.join(found.missing[:3])}"
    if found.status == "not-run":
        return "nothing was observed, and that is as expected"
    return "the fault is not detected" if cell.visible else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="the number of seeds for each cell")
    parser.add_argument("--only", help="run the cells of one fault")
    options = parser.parse_args()
    chosen = [cell for cell in cells(options.seeds) if options.only in (None, cell.fault)]
    counts: Counter[str] = Counter()
    catalogs: dict[str, Catalog] = {}
    for cell in chosen:
        found = run(cell, catalogs)
        wrong = hole(cell, found)
        outcome = "refused" if found.refused else "error" if found.error else found.status
        counts[outcome] += 1
        if not wrong and found.expected and cell.fault != "none" and not (found.refused or found.error):
            counts["not detected, not detectable"] += 1
        if wrong:
            counts["HOLES"] += 1
            print(f"HOLE {cell}: {wrong}", flush=True)
    tried = len(chosen) - counts["refused"]
    print(f"{len(chosen)} cells, {tried} run: {dict(counts)}")
    return 1 if counts["HOLES"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
