"""The golden corpus: results of every shipped spec, recorded by one version and compared with another.

    python tests/golden/corpus.py record BEFORE       run every spec with the dpspec that is installed
    python tests/golden/corpus.py compare BEFORE NOW  one line per spec: equal, or where it first differs and how often

``record`` runs one process per spec, with the faulty backends of tests/plugins, and skips specs that need missing data
or take longer than ``--limit`` seconds; ``--root`` names the checkout of the specs. Floats are compared to a relative
1e-12, everything else exactly. Trained numbers are equal only on one machine, so record both sides there.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.installed import expose

ROOT = Path(__file__).parents[2]

#: The largest relative difference of two numbers that a library's rounding may explain.
TOLERANCE = 1e-12

#: What of an audit is compared. Times, versions, places and texts for people are not.
AUDIT = ("name", "cell", "facts", "planned_trials", "settled_after", "power", "evidence", "checks")
VERDICT = ("claim", "kind", "verdict", "expected", "quantity", "claimed", "upper", "lower", "provable", "refutable")
FINDING = ("quantity", "value", "bound", "rigor", "method", "at", "lower", "confidence", "privacy")

#: Folders of specs that are parents, invalid, or need data that is not shipped.
_SKIPPED = {"invalid", "base", "mnist", "cifar"}


def essence(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the part of a result (as JSON) that only a change with a CHANGELOG line may alter."""
    assumptions = result["assumptions"]
    return [
        {
            **{name: audit.get(name) for name in AUDIT},
            "verdicts": [{name: verdict.get(name) for name in VERDICT} for verdict in audit["verdicts"]],
            "conformance": audit["conformance"]["status"],
            "findings": [
                {name: finding.get(name) for name in FINDING}
                | {"scope": result["scopes"][finding["scope"]], "source": result["sources"][finding["source"]]}
                | {"assumptions": [[assumptions[i]["name"], assumptions[i]["status"]] for i in finding["assumptions"]]}
                for finding in audit["findings"]
            ],
            "keys": [trial["key"] for trial in audit["trials"]],
        }
        for audit in result["audits"]
    ]


def differences(before: Any, now: Any, where: str = "") -> Iterator[str]:
    """Return every difference of two values, as ``where: before -> now``.

    An empty value of a key that one side lacks is not a difference, because results get new keys.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            if (key in before and key in now) or before.get(key) or now.get(key):
                yield from differences(before.get(key), now.get(key), f"{where}.{key}" if where else key)
    elif isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            yield f"{where}: {len(before)} -> {len(now)} items"
        for i, pair in enumerate(zip(before, now, strict=False)):
            yield from differences(*pair, f"{where}[{i}]")
    else:
        floats = isinstance(before, float) and isinstance(now, float)
        if before != now and not (floats and math.isclose(before, now, rel_tol=TOLERANCE)):
            yield f"{where}: {json.dumps(before)[:60]} -> {json.dumps(now)[:60]}"


def record(folder: Path, limit: float, root: Path) -> None:
    """Run every spec and write its essence to ``folder``; specs that need longer than ``limit`` seconds are named."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        expose(Path(scratch) / "site", "dpspec-faulty", "faulty", "dpspec_faulty")
        paths = [f"{scratch}/site", str(root / "tests/plugins/dpspec_faulty"), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        for path in sorted((root / "specs").rglob("*.yaml")):
            parts = path.relative_to(root / "specs").with_suffix("").parts
            if _SKIPPED & set(parts) or "mnist" in path.name:
                continue
            command = [sys.executable, "-m", "dpspec", "run", str(path), "--internal", "--report", "json=result.json"]
            command += ["--store", path.stem]
            report = Path(scratch) / "result.json"
            report.unlink(missing_ok=True)
            try:
                done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, timeout=limit)
            except subprocess.TimeoutExpired:
                print(f"{path}: omitted, takes longer than {limit:g} s", flush=True)
                continue
            print(f"{path}: exit {done.returncode}{'' if report.exists() else ', no result'}", flush=True)
            if report.exists():
                text = json.dumps(essence(json.loads(report.read_text(encoding="utf-8"))), indent=1)
                (folder / f"{'-'.join(parts)}.json").write_text(text + "\n", encoding="utf-8")


def compare(before: Path, now: Path) -> int:
    differing = 0
    for path in sorted(before.glob("*.json")):
        other = now / path.name
        found = ["not recorded now"]
        if other.exists():
            found = list(differences(*(json.loads(p.read_text(encoding="utf-8")) for p in (path, other))))
        print(f"{path.stem}: " + (f"{len(found)} differences, first {found[0]}" if found else "equal"))
        differing += bool(found)
    return differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["record", "compare"])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a spec may take")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose specs are run")
    options = parser.parse_args()
    if options.command == "record":
        record(options.folders[0], options.limit, options.root.resolve())
        return 0
    return min(compare(*options.folders), 1)


if __name__ == "__main__":
    sys.exit(main())
