from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from dpspec.contract.catalog import Catalog
from dpspec.errors import PluginError, SpecError, UsageError
from dpspec.language import load
from dpspec.language.load import Loaded, find_specs, from_document, is_spec, load_specs

Load = Callable[..., Loaded]


def digest(loaded: Loaded) -> str:
    (spec,) = loaded.specs
    return spec.digest


class TestDigest:
    def test_does_not_depend_on_spelling_composition_defaults_names_and_texts(self, load: Load, valid: str) -> None:
        before = digest(load(valid))
        head, body = valid.split("mechanism:\n")
        lines, rest = body.split("\n\n", 1)
        again = f"{rest}\n# a comment\n{head}mechanism:\n" + "\n".join(reversed(lines.split("\n"))) + "\n"
        named = valid.replace("name: valid", "name: other\nrequires: [pytest]").replace("nothing wrong", "another text")
        for text in (
            again,
            valid.replace("1e-5", "0.00001").replace("epsilon: 3", "epsilon: 3.0"),
            named,
            valid + "matrix: {mechanism.noise_multiplier: [1.0]}\n",
            valid.replace("kind: toy", "kind: toy, size: 10").replace("seed: 7", "seed: 7\n  runs: 1"),
        ):
            assert digest(load(text)) == before
        assert digest(load("extends: base.yaml\n", base=valid)) == before
        assert digest(load(valid.replace("steps: 100", "steps: 7"), "mechanism.steps=100")) == before

    @pytest.mark.parametrize("change", ["mechanism.steps=99", "claims.one.epsilon=3.5", "audit.seed=8", "data.size=11"])
    def test_sees_everything_else(self, load: Load, valid: str, change: str) -> None:
        assert digest(load(valid, change)) != digest(load(valid))

    def test_is_the_same_tomorrow(self, load: Load, valid: str) -> None:
        assert digest(load(valid)) == "3145b064a917d36a7047ec63c4acef7b761f79707183302036bab8ead085a644"


class TestFromDocument:
    def test_rebuilds_an_equal_spec(self, load: Load, valid: str, catalog: Catalog) -> None:
        phases = valid.replace("steps: 100", "phases: [{steps: 1}, {steps: 2, noise_multiplier: 2}]")
        for spec in (*load(valid + "matrix: {data.size: [3, 4]}\n").specs, *load(phases).specs):
            document = json.loads(json.dumps(spec.to_json()))
            again = from_document(document, catalog, spec.directory, name=spec.name, cell=spec.cell)
            assert again == spec
            assert hash(again) == hash(spec)

    def test_raises_what_is_wrong(self, load: Load, valid: str, catalog: Catalog) -> None:
        document = load(valid).specs[0].to_json()
        with pytest.raises(SpecError, match="steps must be at least 1"):
            from_document({**document, "mechanism": {**document["mechanism"], "steps": 0}}, catalog)
        with pytest.raises(PluginError, match="'gone'"):
            from_document({**document, "mechanism": {**document["mechanism"], "kind": "gone"}}, catalog)

    def test_foreign_values(self, load: Load, valid: str, catalog: Catalog) -> None:
        document = load(valid).specs[0].to_json()
        deep: list[Any] = []
        for _ in range(1000):
            deep = [deep]
        for value in (math.nan, math.inf, deep, {1: 2}, object()):
            with pytest.raises(SpecError):
                from_document({**document, "data": {"kind": "toy", "size": value}}, catalog)


def test_directories_are_those_of_the_files(load: Load, valid: str, catalog: Catalog, tmp_path: Path) -> None:
    load(valid)
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "child.yaml").write_text("extends: ../spec.yaml\n")
    (spec,) = load_specs([folder / "child.yaml"], catalog).specs
    assert spec.directory == str(folder)
    assert spec.origin[("name",)].file == str(tmp_path / "spec.yaml")


def test_several_files(load: Load, valid: str, catalog: Catalog) -> None:
    load(valid, other=valid.replace("steps: 100", "steps: x"))
    loaded = load_specs([Path("spec.yaml"), Path("other.yaml"), Path("absent.yaml")], catalog)
    assert [spec.name for spec in loaded.specs] == ["valid"]
    assert [(d.span.file, d.code) for d in loaded.diagnostics if d.span] == [
        ("other.yaml", "wrong-type"),
        ("absent.yaml", "unreadable"),
    ]
    assert set(loaded.sources) == {"spec.yaml", "other.yaml"}


def write(path: Path, text: str = "dpspec: 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_every_spec_below_is_found_in_order_and_the_rest_is_told(tmp_path: Path) -> None:
    b, a = write(tmp_path / "b.yaml"), write(tmp_path / "a" / "z.yml")
    parent = write(tmp_path / "a" / "parent.yaml", "name: parent\nlist:\n  - dpspec: 1\n")
    write(tmp_path / "expected.txt")
    for hidden in (".dpspec/store/x.yaml", ".git/x.yaml", "a/.x.yaml", "venv/lib/x.yaml"):
        write(tmp_path / hidden)
    write(tmp_path / "venv" / "pyvenv.cfg", "")
    assert find_specs([tmp_path]) == ((a, b), (parent,))


def test_files_are_taken_as_given_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "s" / "a.yaml")
    write(tmp_path / "s" / "b.yaml")
    given = [Path("s/b.yaml"), Path("s"), Path("s/../s/a.yaml"), Path("absent.yaml"), Path("s/b.yaml")]
    assert find_specs(given)[0] == (Path("s/b.yaml"), Path("s/a.yaml"), Path("absent.yaml"))
    other = write(tmp_path / "none.yaml", "a: 1\n")
    assert find_specs([other])[0] == (other,)  # who names a file means it


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("# a comment\n\ndpspec: 1\n", True),
        ("name: a\n'dpspec' : 1\n", True),
        ('"dpspec": 1\n', True),
        ("\ufeffdpspec: 1\n", True),
        ("{dpspec: 1, name: a}\n", True),
        ("name: a\ndpspec: {broken\n", True),  # what is wrong with a spec is told, not passed over
        ("dpspecs: 1\n", False),
        ("deep:\n  dpspec: 1\n", False),
        ("'dpspec\": 1\n", False),
        ("", False),
    ],
)
def test_a_spec_is_told_by_its_key(tmp_path: Path, text: str, spec: bool) -> None:
    assert is_spec(write(tmp_path / "a.yaml", text)) is spec


def test_what_cannot_be_read_is_no_spec(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "nowhere.yaml").symlink_to(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert not any(is_spec(path) for path in tmp_path.iterdir())
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    spec = write(tmp_path / "a.yaml")
    assert find_specs([tmp_path])[0] == (spec,)


def test_what_we_may_not_read_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, closed = write(tmp_path / "a.yaml"), write(tmp_path / "closed.yaml")

    def refused(path: Path, mode: str) -> IO[bytes]:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return path.open("rb")

    monkeypatch.setattr(load, "open", refused, raising=False)
    assert find_specs([tmp_path])[0] == (spec, closed)


def test_a_folder_without_a_spec_is_refused_and_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    with pytest.raises(UsageError, match="it has no YAML files; for a recording, use `dpspec check`"):
        find_specs([tmp_path])
    write(tmp_path / "a.yaml", "name: a\n")
    write(tmp_path / "b.yaml", "name: b\n")
    with pytest.raises(UsageError, match="none of its 2 YAML files has a top-level key 'dpspec'"):
        load_specs([tmp_path], Catalog())


SCRIPT = """
import sys
from pathlib import Path
from dpspec.contract.catalog import Catalog
from dpspec.language.load import load_specs
from dpspec.language.diagnostics import render
loaded = load_specs([Path(sys.argv[1])], Catalog())
print(render(loaded.diagnostics, sources=loaded.sources))
heavy = {"torch", "scipy", "numpy", "sklearn", "rich", "typer", "packaging"} & set(sys.modules)
assert not heavy, heavy
"""


def test_loading_a_spec_imports_nothing_heavy(tmp_path: Path, valid: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(valid)
    ran = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True)
    assert "unknown-kind" in ran.stdout
