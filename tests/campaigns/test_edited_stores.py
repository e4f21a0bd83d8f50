"""Edited stores, also with rebuilt digests: a damaged trial is made again, a sealed one is never believed.

CAMPAIGN=500 in the environment makes 500 edits.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from support import counting
from support.drawn_edits import edited_bytes, edited_json
from support.record_files import record_files, unbundle

from dpspec.contract import Evidence, FrozenMap, Json, Spec, Trial, thaw
from dpspec.contract.frozen import canonical_json, digest
from dpspec.contract.results import Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage.bundle_file import write_bundle
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import stored_trials, verify
from dpspec.errors import DpspecError, ExitCode
from dpspec.stores import BUNDLE, RECORD

KEY = b"k" * 32

#: Edits that rebuild no digest, and those of one file of a record or of the index of a bundle that rebuild all.
PLAIN = ("flip", "bytes", "cut", "duplicate", "swap", "copy", "remove", "folder", "link")
REBUILT = ("record", "array", "exchanged records", "index")


class ArrayAudit(counting.CountingAudit):
    """Keeps the answers in an array."""

    def trials(self, inputs: Any, context: Any, indices: Sequence[int]) -> Iterator[Trial]:
        for trial in super().trials(inputs, context, indices):
            answers = np.array([trial.evidence["hits"], trial.evidence["alarms"]])
            yield Trial(index=trial.index, evidence=FrozenMap({"of": trial.index}), arrays={"answers": answers})

    def conclude(self, spec: Spec, trials: Sequence[Trial]) -> Iterator[Any]:
        hits, alarms = np.sum([trial.arrays["answers"] for trial in trials], axis=0).tolist()
        for outcome in super().conclude(spec, ()):
            if isinstance(outcome, Evidence):
                total = 200 * len(trials)
                counts = {"present": total, "absent": total, "true_positives": hits, "false_positives": alarms}
                yield Evidence(**{**vars(outcome), "statistics": FrozenMap(counts)})
            else:
                yield outcome


class Edited:
    """A copy of a store whose records are edited with all digests rebuilt, as an adversary without the key can."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: dict[str, dict[str, bytes]] = {}
        for (key, name), content in record_files(folder).items():
            self.records.setdefault(key, {})[name] = content

    def rebuild(self, key: str) -> None:
        """Write the digests of the arrays into a record, and its own digest; the seal stays."""
        files = self.records[key]
        body = json.loads(files[RECORD])
        if isinstance(body, dict):
            arrays = body.get("arrays")
            for name, about in arrays.items() if isinstance(arrays, dict) else ():
                if isinstance(about, dict) and f"{name}.npy" in files:
                    about["digest"] = hashlib.sha256(files[f"{name}.npy"]).hexdigest()
            seal = {part: body.pop(part) for part in ("seal", "digest") if part in body}
            try:
                files[RECORD] = canonical_json({**body, **seal, "digest": digest(body)}).encode()
            except (TypeError, ValueError, RecursionError):  # no digest of such a value exists
                files[RECORD] = json.dumps({**body, **seal}).encode()

    def write(self, *, bundled: bool, index: bytes | None = None) -> None:
        shutil.rmtree(self.folder / "trials")
        parts: dict[str, dict[str, Path]] = {}
        for key, files in self.records.items():
            folder = self.folder / "trials" / key[:2] / key
            folder.mkdir(parents=True)
            parts[key] = {name: folder / name for name in files}
            for name, content in files.items():
                (folder / name).write_bytes(content)
        if bundled:
            first = next(iter(parts))
            file = self.folder / "trials" / first[:2] / f"{first}{BUNDLE}"
            assert write_bundle(file, parts)
            for key in parts:
                shutil.rmtree(self.folder / "trials" / key[:2] / key)


def edit(folder: Path, data: st.DataObject) -> str:
    """Edit one file of a store and return the name of the edit."""
    kind = data.draw(st.sampled_from(PLAIN + REBUILT), "edit")
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    if kind in PLAIN:
        edit_plainly(kind, data.draw(st.sampled_from(files), "file"), files, data)
        return kind
    bundles = [file for file in files if file.suffix == BUNDLE]
    if kind == "index":
        if bundles:
            edit_index(bundles[0], data)
        return kind
    store = Edited(folder)
    key, other = (data.draw(st.sampled_from(sorted(store.records)), "key") for _ in range(2))
    record = store.records[key]
    if kind == "record":
        record[RECORD] = edited_json(record[RECORD], data)
    elif kind == "array":
        name = data.draw(st.sampled_from(sorted(record.keys() - {RECORD})), "array")
        record[name] = edited_bytes(record[name], data)
    else:
        store.records[key], store.records[other] = store.records[other], record
        for renamed in (key, other):
            body = json.loads(store.records[renamed][RECORD])
            store.records[renamed][RECORD] = json.dumps({**body, "key": renamed}).encode()
    for changed in {key, other}:
        store.rebuild(changed)
    store.write(bundled=bool(bundles))
    return kind


def edit_plainly(kind: str, file: Path, files: Sequence[Path], data: st.DataObject) -> None:
    content = file.read_bytes()
    other = data.draw(st.sampled_from(files), "other") if kind in ("swap", "copy") else file
    start = data.draw(st.integers(0, max(0, len(content) - 1)), "start")
    if kind == "flip":
        bit = 1 << data.draw(st.integers(0, 7), "bit")
        file.write_bytes(content[:start] + bytes([content[start] ^ bit]) + content[start + 1 :])
    elif kind == "bytes":
        file.write_bytes(edited_bytes(content, data))
    elif kind == "cut":
        file.write_bytes(content[:start])
    elif kind == "duplicate":
        end = data.draw(st.integers(start, len(content)), "end")
        file.write_bytes(content[:end] + content[start:])
    elif kind in ("swap", "copy"):
        file.write_bytes(other.read_bytes())
        if kind == "swap":
            other.write_bytes(content)
    else:
        file.unlink()
        if kind == "folder":
            file.mkdir()
        elif kind == "link":
            file.symlink_to(files[0])


def edit_index(file: Path, data: st.DataObject) -> None:
    """Change a value of the index of a bundle, and rebuild its digest; what follows may move."""
    first, _, rest = file.read_bytes().partition(b"\n")
    schema, size, _ = first.split(b" ")
    index = edited_json(rest[: int(size)], data)
    line = b"%s %d %s\n" % (schema, len(index), hashlib.sha256(index).hexdigest().encode())
    head = len(first) + 1 + int(size)
    body = file.read_bytes()[-(-head // 64) * 64 :]
    file.write_bytes((line + index).ljust(-(-len(line + index) // 64) * 64, b"\n") + body)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[tuple[Spec, ...], dict[bool, Path], Result]]:
    """An audit, its sealed stores with and without a bundle, and its result."""
    folder = tmp_path_factory.mktemp("audited")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "CountingAudit", ArrayAudit)
        specs = counting.load(folder)
        result = run(specs, counting.catalog(), store=Store(folder / "bundled", KEY))
        shutil.copytree(folder / "bundled", folder / "single")
        unbundle(folder / "single")
        yield specs, {True: folder / "bundled", False: folder / "single"}, result


def statements(result: Result) -> Json:
    """What a result states about trials and claims, without the origin of the trials."""
    (audit,) = result.audits
    trials: list[Json] = [[t.index, thaw(t.evidence), thaw(t.arrays)] for t in audit.trials]
    return [trials, [verdict.verdict for verdict in audit.verdicts], result.exit_code]


def compare_with_unedited(audited: Any, folder: Path, data: st.DataObject, *, bundled: bool) -> None:
    """Edit a store, and audit from it with and without the key."""
    specs, stores, expected = audited
    for name in ("store", "unsealed"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(stores[bundled], folder / "store")
    kind = edit(folder / "store", data)
    shutil.copytree(folder / "store", folder / "unsealed", symlinks=True)
    for key, name in ((KEY, "store"), (None, "unsealed")):
        refused: ExitCode | None = None
        try:
            reading = Store(folder / name, key, only_read=True)
            verify(expected, counting.catalog(), store=reading)
            stored_trials(expected, reading)
            result = run(specs, counting.catalog(), store=Store(folder / name, key))
        except DpspecError as error:
            refused = error.exit_code
        event(f"{'sealed' if key else 'unsealed'}, {kind}: {'judged' if refused is None else f'refused, {refused:d}'}")
        if kind in PLAIN or key is not None:  # a record with rebuilt digests is believed where no key seals it
            assert refused is ExitCode.USAGE if refused is not None else statements(result) == statements(expected)
        else:
            assert refused in (None, ExitCode.USAGE, ExitCode.PLUGIN)


@pytest.mark.ci
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(data=st.data(), bundled=st.booleans())
def test_an_edited_trial_is_made_again(audited: Any, tmp_path: Path, data: st.DataObject, bundled: bool) -> None:
    compare_with_unedited(audited, tmp_path, data, bundled=bundled)


@pytest.mark.ci
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=2)
@given(data=st.data(), bundled=st.booleans())
def test_a_few_edits(audited: Any, tmp_path: Path, data: st.DataObject, bundled: bool) -> None:
    compare_with_unedited(audited, tmp_path, data, bundled=bundled)
