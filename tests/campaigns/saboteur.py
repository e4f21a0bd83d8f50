"""Every lie of a backend, crossed with access, optimizer, canaries and method: ``python tests/campaigns/saboteur.py``.

A cell trains a tiny model by a backend that lies (``support.saboteur``), and holds what came of it against what its
plan promised. It is a **hole** where

* a check that the plan promised is not among those made, and the conformance is as expected all the same;
* the lie is one that something the backend declares gives away, and the conformance is as expected all the same;
* nothing at all could be looked at, and the conformance is as expected though the spec expects no ``not-run``;

and a **false alarm** where an honest run is not as expected. A backend's error is no hole: nobody is told that all is
well. ``--only NAME`` tries the cells of one lie, ``--seeds N`` each cell with N seeds.
"""

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.saboteur import LIES, Saboteur

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
    """One backend that lies in one setting."""

    lie: str
    declared: str
    method: str
    access: str
    optimizer: str
    space: str
    seed: int = 1

    @property
    def sources(self) -> set[str]:
        """What may give a lie away here."""
        found = set(DECLARED[self.declared])
        if "iterates" in found and self.optimizer != "adam":
            found.add("undone")
        return found

    @property
    def visible(self) -> bool:
        """Whether something that the backend declares gives its lie away, in a run that there is."""
        lie, runs = LIES[self.lie], 1 if self.method == "group/one-run" else 2
        return bool(lie.shown_by & self.sources) and (lie.run is None or lie.run <= runs)

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
            "description": "A backend that lies",
            "mechanism": {"kind": self.method.partition("/")[0], **MECHANISM},
            "data": {"kind": "synthetic", "records": 80, "features": 10, "classes": 3},
            "model": {"kind": "mlp", "hidden": [8]},
            "training": {**TRAINING, "optimizer": {"kind": self.optimizer}, "lie": self.lie},
            "threat_model": {"access": self.access, **threat},
            "claims": [{"id": "any", **CLAIMS[self.method == "rero"]}],
            "audit": {"method": "many-run", **audit, "seed": self.seed},
        }


@dataclass(frozen=True)
class Told:
    """What came of a cell: ``refused`` and ``error`` in words, ``status`` of the conformance, ``missing`` promises."""

    refused: str = ""
    error: str = ""
    status: str = ""
    expected: bool = True
    missing: tuple[str, ...] = ()


def catalog(declared: frozenset[str]) -> Catalog:
    installed = load_catalog()
    backend = Backend(
        kind="saboteur",
        summary="lies",
        schema={
            "type": "object",
            "properties": {"lie": {"enum": list(LIES), "default": "none", "description": "How it lies."}},
            "additionalProperties": False,
        },
        capabilities=declared,
        trainer="support.saboteur:Saboteur",
    )
    offered = Offered(provider=backend, plugin="saboteur", distribution="saboteur", version="0")
    return replace(installed, backends={**installed.backends, "saboteur": offered})


def cells(seeds: int = 1) -> Iterator[Cell]:
    """Every cell, those too that a spec of is refused."""
    runs = (("all-iterates", "final-model"), ("sgd", "momentum", "adam"), ("gradient", "input"), range(1, seeds + 1))
    for cell in itertools.starmap(Cell, itertools.product(LIES, DECLARED, METHODS, *runs)):
        if cell.method.startswith("group") or cell.space == "input":
            yield cell


def run(cell: Cell, catalogs: dict[str, Catalog], expect: str | None = None) -> Told:
    """Train and conclude, as a run does; bounds are left out."""
    known = catalogs.setdefault(cell.declared, catalog(DECLARED[cell.declared]))
    prepared = prepare(from_document(cell.document(expect), known), known)
    errors = [d.message for d in prepared.diagnostics if d.severity == "error"]
    if errors:
        return Told(refused=errors[0])
    plan, inputs = prepared.plan(), prepared.audit.trial_inputs(prepared.spec)
    context = RunContext(prepared, known, inputs, device="cpu")
    Saboteur.watched = 0
    try:
        trials = [t for chunk in plan.chunks for t in prepared.audit.trials(inputs, context, chunk)]
        concluded = conclude(AuditState(prepared=prepared, plan=plan), trials)
    except Exception as error:
        return Told(error=f"{type(error).__name__}: {error}")
    (judged,) = judge([concluded])
    return Told(
        status=judged.conformance.status,
        expected=judged.conformance.expected,
        missing=tuple(unkept(plan.checks, concluded.checks)),
    )


def unkept(promised: tuple[Check, ...], made: tuple[Check, ...]) -> Iterator[str]:
    """The promises that no check keeps."""
    notes = ((c, c.note.partition(", not tested")[0].partition(", least in")[0]) for c in made)
    there = Counter((c.assumption, c.observed, note) for c, note in notes)
    for promise in promised:
        key = (promise.assumption, promise.observed, promise.note)
        if there[key] > 0:
            there[key] -= 1
        else:
            yield f"{promise.assumption} ({promise.observed}) {promise.note}".strip()


def hole(cell: Cell, told: Told) -> str:
    """What is wrong with how a cell came out; empty where nothing is."""
    if told.error.startswith(("AttributeError", "NameError", "TypeError")):
        return f"the backend itself is broken: {told.error}"
    if told.refused or told.error:
        return "" if told.refused or cell.lie != "none" else f"an honest run fails: {told.error}"
    if cell.lie == "none":
        if cell.declared == "nothing" and told.status == "not-run":
            return "nothing was looked at, and that is as expected" if told.expected else ""
        return "" if told.expected and not told.missing else f"false alarm: {told.status}, {told.missing}"
    if not told.expected:
        return ""
    if told.missing:
        return f"promised and not made: {', '.join(told.missing[:3])}"
    if told.status == "not-run":
        return "nothing was looked at, and that is as expected"
    return "the lie is believed" if cell.visible else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds each cell is tried with")
    parser.add_argument("--only", help="the cells of one lie")
    parser.add_argument("--sample", type=int, help="so many cells, drawn by chance")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    asked = parser.parse_args()
    chosen = [cell for cell in cells(asked.seeds) if asked.only in (None, cell.lie)]
    if asked.sample is not None:
        chosen = random.Random(asked.seed).sample(chosen, min(asked.sample, len(chosen)))
    counts: Counter[str] = Counter()
    catalogs: dict[str, Catalog] = {}
    began = time.monotonic()
    for number, cell in enumerate(chosen):
        if number and number % 100 == 0:
            print(f"after {number} cells, {time.monotonic() - began:.0f} s: {dict(counts)}", flush=True)
        told = run(cell, catalogs)
        wrong = hole(cell, told)
        outcome = "refused" if told.refused else "error" if told.error else told.status
        counts[outcome] += 1
        if not wrong and told.expected and cell.lie != "none" and not (told.refused or told.error):
            counts["believed, beyond what is shown"] += 1
        if wrong:
            counts["HOLES"] += 1
            print(f"HOLE {cell}: {wrong}", flush=True)
    tried = len(chosen) - counts["refused"]
    print(f"{len(chosen)} cells, {tried} run in {time.monotonic() - began:.0f} s: {dict(counts)}")
    return 1 if counts["HOLES"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
