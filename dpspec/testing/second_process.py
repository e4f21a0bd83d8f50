"""Runs of an example in fresh processes, with different hash seeds and at different times.

The process of a plugin's tests takes no part: its fixtures may have changed modules or cached answers. ``dpspec plugins
--check`` has no fixtures, and compares its own run with one process.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpspec.json_records import write
from dpspec.registry.loader import FAMILIES, Candidate, Registry, used_project
from dpspec.registry.project import ProjectFile
from dpspec.results.differing import differing
from dpspec.testing.provider import require

#: The program of a process. It shifts the clock before any plugin is imported, and writes its parts to a file.
_SCRIPT = """
import datetime, json, pickle, sys, time
sys.path[:] = json.loads(sys.argv[1])
DAYS = int(sys.argv[5])
SHIFT = 86400.0 * DAYS + 123.45 * DAYS
for name in ("time", "monotonic", "perf_counter"):
    setattr(time, name, lambda real=getattr(time, name): real() + SHIFT)
    setattr(time, name + "_ns", lambda real=getattr(time, name + "_ns"): real() + int(SHIFT) * 10**9)
class Later(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds=SHIFT)
    @classmethod
    def utcnow(cls):
        return cls.now(datetime.UTC).replace(tzinfo=None)
datetime.datetime = Later
class LaterDate(datetime.date):
    @classmethod
    def today(cls):
        return super().today() + datetime.timedelta(days=DAYS)
datetime.date = LaterDate
from pathlib import Path
from dpspec.engine.running.runner import run
from dpspec.engine.running.train import RunOptions
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.loader import build
from dpspec.registry.project import load_file
from dpspec.testing.second_process import parts
candidates, files = pickle.loads(Path(sys.argv[2]).read_bytes())
for file in files:
    load_file(file)
catalog = build(candidates).catalog
example = Path(sys.argv[3])
loaded = load_specs([example], catalog, json.loads(sys.argv[4]))
if not loaded.specs:
    sys.exit("the example is an invalid spec there: " + "; ".join(d.message for d in loaded.diagnostics))
store = Store(example.with_name(f"store-after-{DAYS}-days"))
result = run(loaded.specs, catalog, store=store, options=RunOptions(device="cpu"))
example.with_name(f"after-{DAYS}-days.json").write_text(json.dumps(parts(result)))
"""

#: The hash seed of each process, and the days by which its clock is ahead.
_PROCESSES = (("42", 0), ("4711", 400))


def parts(result: Any) -> list[Any]:
    """What may not differ: trials, findings, series, checks, evidence and verdicts."""
    return [
        {
            "trials": [{"index": t.index, "evidence": write(t.evidence)} for t in audit.trials],
            **{name: write(getattr(audit, name)) for name in ("findings", "series", "checks", "evidence", "verdicts")},
        }
        for audit in result.audits
    ]


def differences_of_runs(
    registry: Registry, example: Path, overrides: Sequence[str] = (), own_result: Any = None
) -> list[str]:
    """Run the file of an example in two processes, or in one if ``own_result`` is given; describe what differs.

    Args:
        registry: The plugins that the processes load.
        example: The spec; results and stores are written to its folder.
        overrides: Values of ``--set``.
        own_result: The result of this process.

    Returns:
        A line for each part that differs; empty if none does.
    """
    candidates: dict[tuple[str, str], Candidate] = {}
    files: dict[str, ProjectFile] = {}
    of_project = {file.module: file for file in used_project()}
    for family in FAMILIES:
        for offered in getattr(registry.catalog, family.field).values():
            name = getattr(registry.module(offered.distribution, offered.plugin), "__name__", "")
            if name in of_project:
                files[name] = of_project[name]
            if name:
                candidates[offered.distribution, offered.plugin] = Candidate(
                    distribution=offered.distribution,
                    version=offered.version,
                    plugin=offered.plugin,
                    value=name,
                    code=files[name].digest if name in files else "",
                )
    plugins = example.with_name("plugins.pickle")
    plugins.write_bytes(pickle.dumps(([candidates[key] for key in sorted(candidates)], list(files.values()))))
    arguments = [json.dumps(sys.path), str(plugins), str(example), json.dumps(list(overrides))]
    running = {
        days: subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, *arguments, str(days)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed, days in _PROCESSES[own_result is not None :]
    }
    results = [] if own_result is None else [json.loads(json.dumps(parts(own_result)))]
    for days, process in running.items():
        _, errors = process.communicate(timeout=600)
        require(process.returncode == 0, f"failed in another process:\n{errors[-2000:]}")
        results.append(json.loads(example.with_name(f"after-{days}-days.json").read_text()))
    unequal = differing(results[0], results[1], "audits")
    return [f"{path}: {once} in one, {then} in the other" for path, once, then in unequal]
