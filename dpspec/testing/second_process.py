"""A second run of an example in another process, with another hash seed and another time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.json_records import write
from dpspec.registry.loader import FAMILIES, Registry
from dpspec.registry.project import MODULE_PREFIX
from dpspec.results.diff import differing
from dpspec.testing.provider import require

if TYPE_CHECKING:
    from dpspec.testing.example import Executed

#: The program of the other process. It shifts the clock before any plugin is imported.
_SCRIPT = """
import datetime, json, sys, time
sys.path[:] = json.loads(sys.argv[1])
SHIFT = 86400.0 * 400 + 12345.0
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
        return super().today() + datetime.timedelta(days=400)
datetime.date = LaterDate
from pathlib import Path
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.loader import Candidate, build
from dpspec.testing.second_process import parts
names = ("distribution", "version", "plugin", "value")
catalog = build([Candidate(**dict(zip(names, c))) for c in json.loads(sys.argv[2])]).catalog
example = Path(sys.argv[3])
loaded = load_specs([example], catalog, json.loads(sys.argv[4]))
if not loaded.specs:
    sys.exit("the example is an invalid spec there: " + "; ".join(d.message for d in loaded.diagnostics))
result = run(loaded.specs, catalog, store=Store(example.with_name("second-process")), device="cpu")
example.with_name("second-process.json").write_text(json.dumps(parts(result)))
"""

#: The hash seed of the other process; the first one's is random, or another.
_HASH_SEED = "4711"


def parts(result: Any) -> list[Any]:
    """What may not differ: trials, findings, series, checks, evidence and verdicts."""
    return [
        {
            "trials": [{"index": t.index, "evidence": write(t.evidence)} for t in audit.trials],
            **{name: write(getattr(audit, name)) for name in ("findings", "series", "checks", "evidence", "verdicts")},
        }
        for audit in result.audits
    ]


def second_run(registry: Registry, first: Executed, example: Path, overrides: Sequence[str] = ()) -> list[str]:
    """Run the file of an example again in another process; describe what differs."""
    candidates = {}
    for family in FAMILIES:
        for offered in getattr(registry.catalog, family.field).values():
            plugin = registry.module(offered.distribution, offered.plugin)
            name = getattr(plugin, "__name__", "")
            if name.startswith(MODULE_PREFIX):
                raise unittest.SkipTest("another process imports no file of a project by name")
            if name:
                candidates[offered.plugin, offered.distribution] = (
                    *(offered.distribution, offered.version, offered.plugin, name),
                )
    arguments = [
        json.dumps(sys.path),
        json.dumps(sorted(candidates.values())),
        str(example),
        json.dumps(list(overrides)),
    ]
    seed = _HASH_SEED if os.environ.get("PYTHONHASHSEED") != _HASH_SEED else "42"
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    require(done.returncode == 0, f"failed in another process:\n{done.stderr[-2000:]}")
    again = json.loads(example.with_name("second-process.json").read_text())
    expected = json.loads(json.dumps(parts(first.result)))
    return [f"{path}: {once} here, {then} there" for path, once, then in differing(expected, again, "audits")]
