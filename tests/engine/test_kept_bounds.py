"""Bounds of earlier runs: taken where everything that they rest on is the same and the folder is the user's own."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import counting

from dpspec.contract import Finding, FrozenMap, Plan, Series
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import Prepared, prepare
from dpspec.engine.results.codec import encode
from dpspec.engine.results.result import Result
from dpspec.engine.running.run_options import RunOptions
from dpspec.engine.running.runner import run
from dpspec.engine.storage import kept_bounds
from dpspec.engine.storage.kept_bounds import MOST_FILES, KeptBounds
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verification.verify import verify
from dpspec.language.load import load_specs
from dpspec.registry.sources import own_code


class Bounding:
    """An audit whose bounds and plan are given, and which counts how often it was asked."""

    def __init__(self, *, reads: str = "facts", found: Any = None) -> None:
        self.asked = 0
        self._reads, self._found = reads, found

    def bound(self, spec: Any, context: Any) -> Iterator[Finding | Series]:
        self.asked += 1
        getattr(context, self._reads)
        yield self._found or Finding(
            quantity="epsilon", value=math.inf, bound="upper", rigor="certified", method="by hand", source="here",
            at=FrozenMap({"delta": 1e-6, "limit": math.inf, "size": 1}),
        )  # fmt: skip
        yield Series(
            name="curve", title="a curve", columns=FrozenMap({"x": [1, 2.0, math.inf], "who": ["a", "b", "c"]}),
            units=FrozenMap({"x": "", "who": ""}), rigor="certified", source="here",
        )  # fmt: skip

    def plan(self, spec: Any, facts: Any) -> Plan:
        self.asked += 1
        return Plan(chunks=((0, 1), (2,)), seconds=0.1, memory_bytes=7)

    def trial_inputs(self, spec: Any) -> FrozenMap:
        return FrozenMap({"seed": spec.audit.seed})


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a fresh checkout are minutes old at most."""
    monkeypatch.setattr(kept_bounds, "_BEGAN", math.inf)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "bounds"


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Prepared]:
    """A spec of a mechanism that dpspec itself would offer."""

    def make(*overrides: str, audit: Any = None, distribution: str = "dpspec") -> Prepared:
        path = tmp_path / "coin.yaml"
        path.write_text(counting.EXAMPLE, encoding="utf-8")
        catalog = counting.catalog()
        loaded = load_specs([path], catalog, overrides)
        ready = prepare(loaded.specs[0], catalog)
        offers = {
            part: (kind, dataclasses.replace(offered, distribution=distribution if part == "mechanism" else "dpspec"))
            for part, (kind, offered) in ready.offers.items()
        }
        return dataclasses.replace(ready, offers=offers, audit=audit or ready.audit)

    return make


def asked(kept: KeptBounds, prepared: Prepared) -> list[Finding | Series]:
    context = RunContext(prepared, counting.catalog(), FrozenMap(), device="cpu")
    return kept.bounds(prepared, context)


def test_they_come_back_to_the_last_digit_and_are_computed_once(made: Any, folder: Path) -> None:
    audit = Bounding()
    prepared, kept = made(audit=audit), KeptBounds(folder)
    first, second = asked(kept, prepared), asked(KeptBounds(folder), prepared)
    assert audit.asked == 1
    assert repr(first) == repr(second)  # 1 and 1.0 are equal, and not the same; so with inf and "inf"
    assert kept.plan(prepared) == kept.plan(prepared) == Plan(chunks=((0, 1), (2,)), seconds=0.1, memory_bytes=7)
    assert audit.asked == 2
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


@pytest.mark.parametrize(
    "override", ["mechanism.epsilon=1.25", "claims.held.epsilon=1.4", "threat_model.access=final-model", "audit.seed=4"]
)
def test_another_spec_has_bounds_of_its_own(made: Any, folder: Path, override: str) -> None:
    audit = Bounding()
    asked(KeptBounds(folder), made(audit=audit))
    asked(KeptBounds(folder), made(override, audit=audit))
    assert audit.asked == 2


def test_so_have_other_facts_other_code_and_other_libraries(
    made: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = Bounding()
    prepared = made(audit=audit)
    asked(KeptBounds(folder), prepared)
    facts = dataclasses.replace(prepared.facts, records=prepared.facts.records + 1)
    asked(KeptBounds(folder), dataclasses.replace(prepared, facts=facts))
    assert audit.asked == 2
    with monkeypatch.context() as patched:
        patched.setattr(kept_bounds, "version_of", lambda library: "9.9")
        asked(KeptBounds(folder), prepared)
        assert audit.asked == 3
    monkeypatch.setattr(kept_bounds, "own_code", lambda *, before: "other")
    asked(KeptBounds(folder), prepared)
    assert audit.asked == 4


def test_the_code_is_every_file_of_dpspec_and_its_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpspec.registry import sources

    root = tmp_path / "dpspec"
    root.mkdir()
    (root / "a.py").write_text("1", encoding="utf-8")
    monkeypatch.setattr(sources, "_shipped", lambda: frozenset({"dpspec"}))
    monkeypatch.setattr(sources, "_locate", lambda name: (name, [tmp_path / name]))
    first = own_code(before=math.inf)
    assert first is not None
    assert first == own_code(before=math.inf)
    (root / "a.py").write_text("22", encoding="utf-8")
    second = own_code(before=math.inf)
    (root / "a.py").rename(root / "b.py")
    assert len({first, second, own_code(before=math.inf)}) == 3
    assert own_code(before=(root / "b.py").stat().st_mtime) is None  # changed since: imported may be either
    (root / "b.py").unlink()
    root.rmdir()
    assert own_code(before=math.inf) is None


def test_nothing_is_kept_that_may_rest_on_more(made: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Bounding(reads="directory")
    for _ in range(2):
        asked(KeptBounds(folder), made(audit=reader))
    foreign = Bounding()
    for _ in range(2):
        asked(KeptBounds(folder), made(audit=foreign, distribution="acme"))
    unsettled = Bounding()
    monkeypatch.setattr(kept_bounds, "own_code", lambda *, before: None)
    for _ in range(2):
        asked(KeptBounds(folder), made(audit=unsettled))
    assert (reader.asked, foreign.asked, unsettled.asked) == (2, 2, 2)
    assert not folder.exists()


def forged(file: Path) -> None:
    """Make the kept bound say 0.001, as somebody would who knows the format."""
    import hashlib

    _, _, text = file.read_bytes().partition(b"\n")
    findings = json.loads(text)
    findings[0]["value"] = 0.001
    content = json.dumps(findings).encode()
    file.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


@pytest.mark.parametrize("what", ["folder others read", "folder others write", "file others write", "link", "damage"])
def test_what_others_could_have_written_is_not_read(made: Any, folder: Path, tmp_path: Path, what: str) -> None:
    audit = Bounding()
    prepared = made(audit=audit)
    asked(KeptBounds(folder), prepared)
    (file,) = folder.iterdir()
    forged(file)
    if what == "folder others read":
        folder.chmod(0o755)
    elif what == "folder others write":
        folder.chmod(0o770)
    elif what == "file others write":
        file.chmod(0o620)
    elif what == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.write_bytes(file.read_bytes().replace(b"0.001", b"0.002"))
    kept = KeptBounds(folder)
    assert isinstance(bound := asked(kept, prepared)[0], Finding)
    assert bound.value == math.inf
    assert (audit.asked, kept.used) == (2, 0)
    if what.startswith("folder"):
        assert b"0.001" in file.read_bytes()  # nothing is written into it either


def test_a_folder_of_somebody_else_is_not_read(made: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = Bounding()
    prepared = made(audit=audit)
    asked(KeptBounds(folder), prepared)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    asked(KeptBounds(folder), prepared)
    assert audit.asked == 2


def test_too_many_files_make_room(made: Any, folder: Path) -> None:
    kept = KeptBounds(folder)
    asked(kept, made(audit=Bounding()))
    (first,) = folder.iterdir()
    os.utime(first, (1, 1))
    for number in range(MOST_FILES):
        (folder / f"{number:064d}").touch(mode=0o600)
    asked(kept, made("audit.seed=9", audit=Bounding()))
    names = {file.name for file in folder.iterdir()}
    assert len(names) == MOST_FILES * 3 // 4
    assert first.name not in names


def test_a_folder_that_cannot_be_written_to_stops_nothing(made: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert asked(KeptBounds(tmp_path / "file" / "bounds"), made(audit=Bounding()))


def test_the_environment_decides_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def where(**environ: str) -> Path | None:
        found = kept_bounds.kept_bounds(environ)
        return None if found is None else found._folder

    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert where() == tmp_path / ".cache" / "dpspec" / "bounds"
    assert where(XDG_CACHE_HOME="/cache") == Path("/cache/dpspec/bounds")
    assert where(CI="true") is None
    assert where(CI="true", DPSPEC_KEPT_BOUNDS="/mine") == Path("/mine")
    assert where(DPSPEC_KEPT_BOUNDS="off") is None


def test_a_second_run_finds_the_same_and_says_what_was_kept(tmp_path: Path) -> None:
    from dpspec.registry.loader import load_catalog
    from dpspec.reporters.view.limits import facts

    catalog = load_catalog()
    path = tmp_path / "bounds.yaml"
    path.write_text(
        "dpspec: 1\nname: bounds\n"
        "mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, "
        "sampling: {scheme: poisson, rate: 0.01}, steps: 10}\n"
        "data: {kind: declared, records: 5000, features: 3, classes: 2}\n"
        "claims: [{id: one, kind: approx-dp, epsilon: 3.0, delta: 1e-6}]\n",
        encoding="utf-8",
    )

    def audited() -> Result:
        kept = KeptBounds(tmp_path / "kept")
        specs = load_specs([path], catalog, ()).specs
        return run(specs, catalog, store=Store(tmp_path / "store"), options=RunOptions(kept=kept))

    first, second = audited(), audited()
    assert [encode(a.findings) for a in first.audits] == [encode(a.findings) for a in second.audits]
    assert [encode(a.series) for a in first.audits] == [encode(a.series) for a in second.audits]
    assert [encode(a.verdicts) for a in first.audits] == [encode(a.verdicts) for a in second.audits]
    assert "kept_bounds" not in first.environment
    assert second.environment["kept_bounds"] == 1
    assert dict(facts(second))["bounds"] == "of 1 audit kept from an earlier run by the same user with the same code"
    assert not [mismatch for mismatch in verify(second, catalog) if mismatch.differs]
    (kept,) = (tmp_path / "kept").iterdir()
    forged(kept)  # the user's own doing: the run believes it, verify does not
    assert audited().audits[0].findings[0].value == 0.001
    assert [mismatch for mismatch in verify(audited(), catalog) if mismatch.differs]
