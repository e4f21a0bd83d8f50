"""Trial keys contain the code: another version or an edited file invalidates trials, and results report the code."""

import dataclasses
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import packages_distributions
from pathlib import Path
from site import addsitedir
from typing import Any

import pytest
from support import counting

from dpspec.contract import FrozenMap, frozen
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.events import Event, Noticed
from dpspec.contract.results import Result
from dpspec.engine.preparing import trial_keys
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.preparing.trial_keys import TrialKeys, UnknownCodeError, source_digest
from dpspec.engine.running import trial_work
from dpspec.engine.running.runner import run
from dpspec.engine.storage import stored_trials
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.reporters import markdown, terminal
from dpspec.results import codec, origins

FAMILIES = {"mechanism": "mechanisms", "data": "datasets", "backend": "backends"}
NAMES = {"mechanism": ("audit", "Audit"), "data": ("source", "Source"), "backend": ("trainer", "Trainer")}

CODE = """\
from support.counting import CountingAudit as Audit, Nothing as Source, NoTrainer as Trainer
"""


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    package = tmp_path / "site" / "acme_code"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(package.parent)
    yield package
    forget()
    sys.modules.pop("acme_code", None)


def forget() -> None:
    source_digest.cache_clear()


def catalog(part: str, version: str = "0.1", distribution: str = "acme", **changes: Any) -> Catalog:
    known = counting.catalog()
    for family in FAMILIES.values():
        offers = {k: dataclasses.replace(o, distribution="dpspec") for k, o in getattr(known, family).items()}
        known = dataclasses.replace(known, **{family: offers})
    ((kind, offered),) = getattr(known, FAMILIES[part]).items()
    field, name = NAMES[part]
    provider = dataclasses.replace(offered.provider, **{field: f"acme_code:{name}"}, **changes)
    theirs = Offered(provider=provider, plugin="plug", distribution=distribution, version=version)
    return dataclasses.replace(known, **{FAMILIES[part]: {kind: theirs}})


@pytest.fixture
def audited(tmp_path: Path) -> Callable[..., Result]:
    def make(known: Catalog, events: list[Event] | None = None) -> Result:
        forget()
        counting.RAN.clear()
        specs = counting.load(tmp_path, known=known)
        listeners = [] if events is None else [events.append]
        result = run(specs, known, store=Store(tmp_path / "store"), listeners=listeners)
        return codec.load(codec.dump(result))

    return make


@pytest.mark.family
@pytest.mark.parametrize("part", FAMILIES)
def test_another_version_or_code_of_any_part_is_trained_again(audited: Any, site: Path, part: str) -> None:
    result = audited(catalog(part))
    assert counting.RAN == [0, 1, 2, 3, 4]
    assert audited(catalog(part)).audits[0].stored_trials == 5
    assert counting.RAN == []
    assert verify(result, catalog(part)) == ()
    audited(catalog(part, version="0.2"))
    assert counting.RAN == [0, 1, 2, 3, 4]
    for file, text in (("__init__.py", CODE + "# without noise\n"), ("noise.py", "NOISE = 0.0\n")):
        (site / file).write_text(text, encoding="utf-8")
        audited(catalog(part))
        assert counting.RAN == [0, 1, 2, 3, 4]
    audited(catalog(part, distribution="another"))
    assert counting.RAN == [0, 1, 2, 3, 4]
    found, *others = verify(result, catalog(part, version="0.2"))
    # the texts that name the mechanism whose bound it is have another version, too
    assert all("acme 0.2" in str(other.after) for other in others)
    assert bool(others) == (part == "mechanism")
    assert (found.what, found.differs) == (f"5 trials, {part}", False)
    assert found.before.startswith("made by acme 0.1, code ")
    assert "installed is acme 0.2, code " in found.after


@pytest.mark.family
@pytest.mark.parametrize("part", FAMILIES)
def test_who_promises_to_raise_the_revision_is_believed(audited: Any, site: Path, part: str) -> None:
    audited(catalog(part, revision_only=True))
    (site / "__init__.py").write_text(CODE + "# a comment\n", encoding="utf-8")
    audited(catalog(part, version="0.2", revision_only=True))
    assert counting.RAN == []
    audited(catalog(part, version="0.2", revision_only=True, trial_revision=2))
    assert counting.RAN == [0, 1, 2, 3, 4]


def test_code_that_is_edited_under_a_running_process_is_taken_for_nothing(audited, site, monkeypatch):
    first = audited(catalog("backend"))
    monkeypatch.setitem(globals(), "forget", lambda: None)
    assert audited(catalog("backend")).audits[0].stored_trials == 5
    (site / "__init__.py").write_text(CODE + "# edited\n", encoding="utf-8")
    events: list[Event] = []
    for _ in range(2):
        edited = audited(catalog("backend"), events)
        assert counting.RAN == [0, 1, 2, 3, 4]
        assert {t.key for t in first.audits[0].trials}.isdisjoint(t.key for t in edited.audits[0].trials)
    assert any("changed while this process ran" in event.message for event in events if isinstance(event, Noticed))


def test_keys_of_dpspecs_own_are_those_of_the_version_before(tmp_path: Path) -> None:
    known = catalog("backend", distribution="dpspec")
    (spec,) = counting.load(tmp_path, known=known)
    prepared = prepare(spec, known)
    assert trial_keys.code_in(prepared.makers) == {}
    inputs = prepared.trial_inputs()
    key = TrialKeys(inputs, prepared.facts, prepared.revisions, trial_keys.code_in(prepared.makers)).of((0,), 0)
    assert key == "2b88810b5ca4c429cc0433c747df5af2e7aeed6a858b97d1994c5d2af1d176ea"


@pytest.mark.parametrize("weights", [None, "0" * 64])
@pytest.mark.parametrize("code", [FrozenMap(), FrozenMap({"mechanism": {"code": "a"}})])
def test_a_key_is_the_digest_of_its_members(tmp_path: Path, weights: str | None, code: FrozenMap) -> None:
    known = catalog("backend", distribution="dpspec")
    (spec,) = counting.load(tmp_path, known=known)
    prepared = prepare(spec, known)
    inputs, facts = FrozenMap({"z": [1.0, "é"]}), dataclasses.replace(prepared.facts, initial_weights=weights)
    keys = TrialKeys(inputs, facts, prepared.revisions, code)
    for chunk in ((0,), (1, 2, 3), (4, 10**9)):
        for index in chunk:
            members = {"inputs": inputs, "data": facts.digest, "revisions": prepared.revisions, "chunk": chunk}
            optional = {"initial_weights": weights, "code": code}
            members |= {"index": index} | {name: value for name, value in optional.items() if value}
            assert keys.of(chunk, index) == frozen.digest(members)


def test_a_result_says_who_made_its_trials(audited: Any) -> None:
    audited(catalog("backend"))
    result = audited(catalog("backend"))
    (audit,) = result.audits
    by = audit.trials[0].recorded["by"]
    assert set(by) == {"mechanism", "data", "backend"}
    assert "gpu" not in audit.trials[0].recorded  # no device was used
    assert (by["mechanism"]["distribution"], "code" in by["mechanism"]) == ("dpspec", False)
    assert (by["backend"]["distribution"], by["backend"]["version"], by["backend"]["revision"]) == ("acme", "0.1", 1)
    made = by["backend"]["code"][:12]
    here = importlib.metadata.version("dpspec")
    said = origins.origin_summary(audit)
    assert said.startswith(f"5 of 5 trials from the store, made by dpspec {here}, torch ")
    assert f"backend of acme 0.1, code {made} on 20" in said
    for render in (terminal.render, markdown.render):
        page = " ".join(render(result, internal=False).split())
        assert "5 of 5 trials from the store" in page
        assert f"acme 0.1, code {made}" in page
    fresh = audited(catalog("backend", version="0.3"))
    assert "from the store" not in terminal.render(fresh, internal=False)


def test_other_code_of_trials_than_of_the_judge_is_reported(audited: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = trial_work.environment
    with monkeypatch.context() as patch:
        patch.setattr(trial_work, "environment", lambda _: FrozenMap({**original(None), "torch": "1.0"}))
        patch.setattr(stored_trials, "environment", lambda _: FrozenMap({**original(None), "torch": "1.0"}))
        audited(catalog("backend"))
    events: list[Event] = []
    result = audited(catalog("backend"), events)
    line = f"5 of its 5 trials were made with torch 1.0; {original(None)['torch']} is what judged them"
    assert line in [event.message for event in events if isinstance(event, Noticed)]
    assert line in " ".join(terminal.render(result, internal=False).split())


@pytest.mark.parametrize(
    "by",
    [
        {},
        {"backend": {"kind": "native", "revision": 1, "code": ["x"]}},
    ],
)
def test_what_a_record_says_of_its_makers_has_to_give_its_key(audited: Any, by: dict[str, Any]) -> None:
    result = audited(catalog("backend"))
    (audit,) = result.audits
    edited = tuple(
        dataclasses.replace(t, recorded=FrozenMap({**t.recorded, "by": by}), key="0" * 64) for t in audit.trials
    )
    found = verify(dataclasses.replace(result, audits=(dataclasses.replace(audit, trials=edited),)), catalog("backend"))
    assert any(one.differs and one.what.endswith(", key") for one in found)
    assert origins.origin_summary(dataclasses.replace(audit, trials=edited))


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "importable"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(importlib.metadata, "packages_distributions", owners_in_folders_of_tests)
    yield folder
    forget_code()


def owners_in_folders_of_tests() -> Mapping[str, list[str]]:
    """The owners of packages, without a scan of all installed distributions for each digest."""
    paths = [path for path in sys.path if Path(path).name != "site-packages"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "distributions", partial(importlib.metadata.distributions, path=paths))
        return packages_distributions()


def forget_code() -> None:
    for cached in (source_digest, trial_keys._shipped, trial_keys._owners):
        cached.cache_clear()
    sys.path_importer_cache.clear()


def write(folder: Path, name: str, text: str = "") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def installed(folder: Path, name: str, *files: str, version: str = "1.0") -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    write(info, "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    write(info, "RECORD", "".join(f"{file},,\n" for file in files))
    write(info, "entry_points.txt", f"[dpspec]\nplug = {files[0].partition('/')[0].removesuffix('.py')}\n")


def digest(reference: str = "acme_plug.backend:Trainer", distribution: str = "acme") -> str:
    forget_code()
    return source_digest(distribution, "plug", reference)


def package(importable: Path) -> None:
    for name in ("acme_plug/__init__.py", "acme_plug/backend.py", "acme_plug/deep/noise.py"):
        write(importable, name, "x = 1\n")
    write(importable, "acme_plug/table.json", "[1.0]")


def test_every_file_of_a_package_counts_except_those_that_python_and_editors_write(importable: Path) -> None:
    package(importable)
    before = digest()
    for name in ("__pycache__/backend.cpython-311.pyc", ".backend.py.swp"):
        write(importable, f"acme_plug/{name}", "x = 2\n")
        assert digest() == before
    for name in ("__init__.py", "backend.py", "deep/noise.py", "table.json", "new.py"):
        write(importable, f"acme_plug/{name}", "x = 2\n")
        after = digest()
        assert after != before, name
        before = after


def test_all_that_the_distribution_installed_counts_and_nothing_else(importable: Path) -> None:
    write(importable, "acme_one.py", "import acme_other, acme_aside\n")
    write(importable, "acme_other.py", "x = 1\n")
    write(importable, "acme_aside.py", "x = 1\n")
    installed(importable, "acme", "acme_one.py", "acme_other.py")
    before = digest("acme_one:Trainer")
    write(importable, "acme_aside.py", "x = 2\n")
    assert digest("acme_one:Trainer") == before
    for name in ("acme_other.py", "acme_one.py"):
        write(importable, name, "# edited\n")
        after = digest("acme_one:Trainer")
        assert after != before
        before = after


def test_the_module_of_the_entry_point_counts(importable: Path) -> None:
    package(importable)
    write(importable, "acme_entry.py", "x = 1\n")
    installed(importable, "acme", "acme_entry.py")
    write(importable, "acme-1.0.dist-info/RECORD")  # an editable install lists no files
    before = digest()
    write(importable, "acme_entry.py", "x = 2\n")
    assert digest() != before


def test_an_editable_install_counts_where_its_files_are(importable: Path, tmp_path: Path) -> None:
    source = tmp_path / "checkout" / "src"
    package(source)
    before_anything = sys.path[:]
    write(importable, "acme.pth", f"{source}\n")
    try:
        addsitedir(str(importable))
        before = digest()
        write(source, "acme_plug/backend.py", "x = 2\n")
        assert digest() != before
    finally:
        sys.path[:] = before_anything


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links here")
def test_links_are_followed_and_loops_end(importable: Path, tmp_path: Path) -> None:
    package(importable)
    write(tmp_path, "outside/more.py", "x = 1\n")
    (importable / "acme_plug" / "more").symlink_to(tmp_path / "outside")
    (importable / "acme_plug" / "again").symlink_to(importable / "acme_plug")
    before = digest()
    write(tmp_path, "outside/more.py", "x = 2\n")
    assert digest() != before


def test_what_is_nowhere_is_not_known(importable: Path) -> None:
    with pytest.raises(UnknownCodeError, match="found nowhere"):
        digest("acme_nowhere:Trainer")
    with pytest.raises(UnknownCodeError, match="in no file"):
        digest("_thread:Trainer")
