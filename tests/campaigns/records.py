"""Replace one leaf of a stored record and recompute its digest: ``python tests/campaigns/records.py --seed 1``.

A small audit of every mechanism fills a store. Each case edits one leaf of a record or one of its arrays, as an
attacker who knows the format can, and concludes the audit from the store. The record is ``set aside`` (the reader
rejects it, and a run repeats the trial), ``refused`` (the mechanism raises an error), ``same`` (no number or verdict
depends on the leaf), or ``believed``: the result differs and is plausible. Only ``--store-key`` detects those.

Anything else is a finding: an exception after the trials are read, a result that cannot be written, read and shown, or
more than two seconds of processor time.
"""

import argparse
import collections
import dataclasses
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.forger.leaves import put, walk
from support.forger.specs import TRAINED, spec_of
from support.record_files import unbundle

from dpspec.contract.frozen import digest
from dpspec.engine.judging.judge import judge
from dpspec.engine.preparing.context import WorkerCache
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.running.conclude import conclude
from dpspec.engine.running.runner import assemble, bound_all, run
from dpspec.engine.storage.array_files import file_digest
from dpspec.engine.storage.stored_trials import StoredTrials
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.reporters.terminal import render
from dpspec.results.codec import dump, load

#: Seconds of processor time of one case.
SECONDS = 2.0

#: Parts of a record that cases edit.
PARTS = ("evidence", "arrays", "recorded", "index", "schema", "key")

#: Values of each type, ends of ranges, and strings that break terminals, parsers or slow patterns.
VALUES: Sequence[Any] = (
    None, True, 0, -1, 3, 0.5, 1e308, -0.0, 2**62, 2**64, "inf", "-inf", "", "x", "all", [], [1], ["x"], [[1]], [None],
    {}, {"x": 1}, {"": None}, "\ud800", "\x1b[2J\x07\u202e", "\n::error::x", "1" * 50_000, "0" * 300, "2026-01-01",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One edit of a record: of the JSON at a path, or of the array that is the only name in the path."""

    key: str
    path: tuple[str | int, ...]
    value: Any
    array: bool = False

    def __str__(self) -> str:
        place = f"array {self.path[0]}" if self.array else ".".join(map(str, self.path))
        return f"{place} = {ascii(self.value)[:40]}"


def edits_of(array: np.ndarray) -> dict[str, Any]:
    size = max(1, array.size)
    flat = array.reshape(-1)
    return {
        "zeros": np.zeros_like(array),
        "ones": np.ones_like(array),
        "negative": -flat.astype(np.float64).reshape(array.shape),
        "reversed": flat[::-1].reshape(array.shape),
        "empty": flat[:0],
        "shorter": flat[: size // 2],
        "longer": np.concatenate([flat, flat]),
        "a scalar": np.asarray(flat[0] if array.size else 0),
        "one more axis": array[None],
        "float16": array.astype(np.float16),
        "int8": np.nan_to_num(array.astype(np.float64)).astype(np.int8),
        "bool": array.astype(bool),
        "NaN": np.full(array.shape, np.nan),
        "inf": np.full(array.shape, np.inf),
        "huge": np.full(array.shape, 1e308),
    }


class Bench:
    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._root = folder / kind
        self._root.mkdir()
        path = self._root / "audit.yaml"
        path.write_text(spec_of(kind, trained=True), encoding="utf-8")
        self._catalog = load_catalog()
        self.specs = load_specs([path], self._catalog).specs
        self.store = Store(self._root / "store")
        unedited = run(self.specs, self._catalog, store=self.store, device="cpu")
        self.signature = signature_of(dump(unedited))
        self._cache = WorkerCache([prepared := prepare(self.specs[0], self._catalog)])
        (self._bounded,) = bound_all([prepared], self._catalog, self._cache, plan=True, emit=lambda event: None)
        unbundle(self._root / "store")
        self._folders = {file.parent.name: file.parent for file in (self._root / "store").rglob("record.json")}
        self._kept = {
            key: {file.name: file.read_bytes() for file in place.iterdir()} for key, place in self._folders.items()
        }
        self._bodies = {key: json.loads(files["record.json"]) for key, files in self._kept.items()}
        stored = StoredTrials(self._bounded, self.store, lambda event: None)
        stored.look()
        self._stored = {trial.record.key: trial for trial in stored.trained().trials}

    def cases(self) -> list[Case]:
        """Return every edit of two records; further trials resemble the second."""
        found = []
        for key in sorted(self._kept)[:2]:
            body = self._bodies[key]
            paths = [path for path, _ in walk(body) if path and path[0] in PARTS]
            found += [Case(key=key, path=path, value=value) for path in paths for value in VALUES]
            for name in body["arrays"]:
                edits = edits_of(np.load(self._folders[key] / f"{name}.npy", allow_pickle=False))
                found += [Case(key=key, path=(name,), value=edit, array=True) for edit in edits]
        return found

    def edit(self, case: Case) -> None:
        place = self._folders[case.key]
        body = {part: value for part, value in self._bodies[case.key].items() if part not in ("digest", "seal")}
        if case.array:
            (name,) = case.path
            file = place / f"{name}.npy"
            array = np.asarray(edits_of(np.load(file, allow_pickle=False))[case.value])
            np.save(file, array, allow_pickle=False)
            entry = {"digest": file_digest(file), "shape": list(array.shape), "dtype": str(array.dtype)}
            body["arrays"] = {**body["arrays"], name: entry}
        else:
            body = put(body, case.path, case.value)
        body["digest"] = digest(body)
        (place / "record.json").write_text(json.dumps(body), encoding="utf-8")

    def restore(self, case: Case) -> None:
        place = self._folders[case.key]
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name, content in self._kept[case.key].items():
            (place / name).write_bytes(content)

    def try_case(self, case: Case) -> str:
        """Return the outcome of one case; raise exceptions that a user would see as a bug in dpspec."""
        self.edit(case)
        try:
            stored = self.store.get(case.key, index=self._stored[case.key].record.index)
        finally:
            self.restore(case)
        if stored is None:
            return "set aside"
        trials = tuple({**self._stored, case.key: stored}.values())
        trained = dataclasses.replace(self._bounded, trials=trials, from_store=len(trials))
        try:
            concluded = conclude(trained, [stored.trial for stored in trained.trials])
        except Exception:
            return "refused"
        written = dump(assemble([trained], [concluded], judge([concluded]), self._catalog))
        render(load(written), internal=True)
        return "same" if signature_of(written) == self.signature else "believed"

    def finding(self, case: Case) -> tuple[str, str]:
        began = time.process_time()
        try:
            outcome = self.try_case(case)
        except Exception as error:
            last = [f for f in traceback.extract_tb(error.__traceback__) if "/dpspec" in f.filename]
            where = f"{Path(last[-1].filename).name}:{last[-1].lineno}" if last else "?"
            return "crash", f"{type(error).__name__} at {where}: {str(error)[:120]}"
        seconds = time.process_time() - began
        return outcome, f"slow: {seconds:.1f} s" if seconds > SECONDS else ""


def signature_of(written: str) -> str:
    tree = json.loads(written)
    kept = [
        {key: audit[key] for key in ("verdicts", "conformance", "findings", "series", "checks", "evidence")}
        for audit in tree["audits"]
    ]
    return json.dumps(kept, sort_keys=True)


def campaign(bench: Bench, cases: Iterable[Case]) -> tuple[collections.Counter[str], dict[str, list[str]]]:
    counts: collections.Counter[str] = collections.Counter()
    wrong: dict[str, list[str]] = {}
    for case in cases:
        outcome, what = bench.finding(case)
        counts[outcome] += 1
        if what:
            wrong.setdefault(what[:80], []).append(f"{what}  [{bench.kind}, {case}]")
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=TRAINED, help="the mechanisms")
    parser.add_argument("--count", type=int, default=20_000, help="the number of cases of each")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="dpspec-records-") as folder:
        for kind in options.kinds:
            bench = Bench(kind, Path(folder))
            cases, used = bench.cases(), time.process_time()
            counts, wrong = campaign(bench, random.Random(options.seed).sample(cases, min(options.count, len(cases))))
            used = time.process_time() - used
            print(f"{kind}: {dict(counts)}, seed {options.seed}, {used:.0f} s of processor time", flush=True)
            for several in wrong.values():
                print(f"  {len(several)} x {several[0]}", flush=True)
            failed = failed or bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
