"""How the cost of each mechanism grows: CPU time of bounds, of one run and of conclusions, before and after doubling.

    python tests/benchmarks/costs.py [KIND ...]

By hand. One thread; the least of three. ``x1.9`` behind a factor says by how much its doubling multiplies the time.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dpspec.contract import Spec
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.training import limited

CATALOG = load_catalog()

TRAINED = ("data.records=2000", "model.kind=mlp", "model.hidden=[64]", "mechanism.steps=100")

#: Of each mechanism: the overrides that make its example large enough to time, and what is doubled.
CASES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "group": (
        (*TRAINED, "threat_model.group_size=[1,4]"),
        {
            "records": "data.records=4000",
            "parameters": "model.hidden=[128]",
            "steps": "mechanism.steps=200",
            "largest group": "threat_model.group_size=[1,8]",
            "canaries": "audit.canary.count=64",
        },
    ),
    "rero": (
        (*TRAINED, "audit.runs=8"),
        {
            "records": "data.records=4000",
            "parameters": "model.hidden=[128]",
            "steps": "mechanism.steps=200",
            "candidates": "threat_model.prior.candidates=32",
        },
    ),
    "per-instance": (
        ("data.records=1000", "model.kind=mlp", "model.hidden=[64]", "mechanism.steps=40", "audit.runs=2"),
        {
            "records": "data.records=2000",
            "parameters": "model.hidden=[128]",
            "steps": "mechanism.steps=80",
            "observed steps": "mechanism.composition.observe_every=2",
        },
    ),
    "preprocessing": (
        ("audit.repeats=400", "data.records=400"),
        {"records": "data.records=800", "repeats": "audit.repeats=800"},
    ),
    "modelmix": (
        TRAINED,
        {
            "records": "data.records=4000",
            "parameters": "model.hidden=[128]",
            "steps": "mechanism.steps=200",
            "canaries": "audit.canary.count=64",
        },
    ),
}


def spec_of(kind: str, overrides: Sequence[str]) -> Spec:
    """The mechanism's example with overrides."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "example.yaml"
        file.write_text(CATALOG.mechanisms[kind].provider.example, encoding="utf-8")
        loaded = load_specs([file], CATALOG, overrides)
    if not loaded.ok:
        raise SystemExit(f"{kind} {overrides}: {loaded.diagnostics}")
    return loaded.specs[0]


def seconds(spec: Spec) -> tuple[float, float, float]:
    """CPU seconds of bounds, of one run, and of conclusions."""
    best = [float("inf")] * 3
    for _ in range(3):
        prepared = prepare(spec, CATALOG)
        inputs, plan = prepared.audit.trial_inputs(spec), prepared.plan()
        context = RunContext(prepared, CATALOG, inputs, device="cpu")
        _ = context.data
        marks = [time.process_time()]
        list(prepared.audit.bound(spec, context))
        marks.append(time.process_time())
        trials = list(prepared.audit.trials(inputs, context, plan.chunks[0]))
        marks.append(time.process_time())
        list(prepared.audit.conclude(spec, trials))
        marks.append(time.process_time())
        context.close()
        spent = [after - before for before, after in itertools.pairwise(marks)]
        spent[1] /= len(plan.chunks[0])
        best = [min(a, b) for a, b in zip(best, spent, strict=True)]
    return best[0], best[1], best[2]


def main() -> None:
    """Print a line per mechanism and factor."""
    print(f"{'':14}{'':16}{'bounds':>16}{'one run':>16}{'conclusions':>16}")
    with limited(1):
        for kind in sys.argv[1:] or CASES:
            base, factors = CASES[kind]
            before = seconds(spec_of(kind, base))
            print(f"{kind:14}{'':16}" + "".join(f"{s:14.3f} s" for s in before), flush=True)
            for name, override in factors.items():
                key = override.partition("=")[0]
                others = [given for given in base if given.partition("=")[0] != key]
                after = seconds(spec_of(kind, [*others, override]))
                told = "".join(f"{a:9.3f} s {f'x{a / b:.1f}':>5}" for a, b in zip(after, before, strict=True))
                print(f"{kind:14}{name:16}{told}", flush=True)


if __name__ == "__main__":
    main()
