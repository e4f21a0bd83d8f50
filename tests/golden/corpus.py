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
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

#: The largest relative difference of two numbers that a library's rounding may explain.
TOLERANCE = 1e-12

#: What of an audit is compared. Times, versions, places and texts for people are not.
AUDIT = ("name", "cell", "facts", "planned_trials", "settled_after", "power", "evidence", "checks")
VERDICT = ("claim", "kind", "verdict", "expected", "quantity", "claimed", "upper", "lower", "provable", "refutable")
FINDING = ("quantity", "value", "bound", "rigor", "method", "source", "at", "scope", "lower", "confidence", "privacy")

#: Facts in a spec's folder, which are unknown for data that is not shipped.
_SKIPPED = ("invalid", "base", "mnist", "cifar")


def specs(root: Path = ROOT) -> list[Path]:
    """Return the shipped specs by path, except parents, invalid ones and those that need other data."""
    found = sorted((root / "specs").rglob("*.yaml"))
    kept = [path.relative_to(root) for path in found if not set(_SKIPPED) & set(path.relative_to(root).parts)]
    return [path for path in kept if "mnist" not in path.name]


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
            one, other = before.get(key), now.get(key)
            if (key in before and key in now) or (one or other):
                yield from differences(one, other, f"{where}.{key}" if where else key)
    elif isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            yield f"{where}: {len(before)} -> {len(now)} items"
        for i, (one, other) in enumerate(zip(before, now, strict=False)):
            yield from differences(one, other, f"{where}[{i}]")
    elif not _equal(before, now):
        yield f"{where}: {_shown(before)} -> {_shown(now)}"


def _equal(before: Any, now: Any) -> bool:
    floats = isinstance(before, float) and isinstance(now, float)
    return before == now or (floats and math.isclose(before, now, rel_tol=TOLERANCE))


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def record(folder: Path, only: Sequence[str], limit: float, root: Path) -> None:
    """Run every spec and write its essence to ``folder``; specs that need longer than ``limit`` seconds are named."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        environment = _with_test_plugins(Path(scratch) / "site", root)
        for path in specs(root):
            if only and not any(part in str(path) for part in only):
                continue
            began = time.monotonic()
            name = "-".join(path.with_suffix("").parts[1:])
            outcome = _run(root / path, Path(scratch), folder / f"{name}.json", environment, limit)
            print(f"{path}: {outcome}, {time.monotonic() - began:.0f} s", flush=True)


def _run(path: Path, scratch: Path, target: Path, environment: Mapping[str, str], limit: float) -> str:
    report = scratch / "result.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "dpspec", "run", str(path), "--internal", "--report", f"json={report}"]
    command += ["--store", str(scratch / path.stem)]
    try:
        done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, timeout=limit, text=True)
    except subprocess.TimeoutExpired:
        return f"left out, takes longer than {limit:g} s"
    if not report.exists():
        return f"no result, exit {done.returncode}: {done.stderr.strip()[-200:]}"
    text = json.dumps(essence(json.loads(report.read_text(encoding="utf-8"))), indent=1)
    target.write_text(text + "\n", encoding="utf-8")
    return f"exit {done.returncode}"


def _with_test_plugins(site: Path, root: Path) -> dict[str, str]:
    info = site / "dpspec_faulty-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dpspec-faulty\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[dpspec]\nfaulty = dpspec_faulty\n", encoding="utf-8")
    path = [str(site), str(root / "tests" / "plugins" / "dpspec_faulty"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def compare(before: Path, now: Path) -> int:
    """Print one line per spec, and return the number of differences."""
    differing = 0
    for path in sorted(before.glob("*.json")):
        other = now / path.name
        if not other.exists():
            print(f"{path.stem}: not recorded now")
            differing += 1
            continue
        one, two = (json.loads(p.read_text(encoding="utf-8")) for p in (path, other))
        found = list(differences(one, two))
        print(f"{path.stem}: " + (f"{len(found)} differences, first {found[0]}" if found else "equal"))
        differing += bool(found)
    return differing


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("only", nargs="*", help="parts of paths: only specs with one of them")
    recording.add_argument("--limit", type=float, default=120.0, help="seconds a spec may take")
    recording.add_argument("--root", type=Path, default=ROOT, help="the checkout whose specs are run")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("now", type=Path)
    given = parser.parse_args()
    if given.command == "record":
        record(given.folder, given.only, given.limit, given.root.resolve())
        return 0
    return min(compare(given.before, given.now), 1)


if __name__ == "__main__":
    sys.exit(main())
