"""Where reports go: never through a link, never two to one file, and known before the first trial."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import specs

from dpspec.cli.app import main
from dpspec.cli.output import write_file
from dpspec.errors import UsageError

SPEC = specs.BOUNDS

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs links")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(SPEC)
    return tmp_path


@pytest.mark.parametrize("length", [20, 200, 249, 255])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_is_replaced_whatever_its_name(length: int, dangling: bool) -> None:
    link = Path("x" * length)
    if not dangling:
        Path("theirs").write_text("theirs")
    link.symlink_to("theirs")
    write_file(link, "ours")
    assert not link.is_symlink()
    assert link.read_text() == "ours\n"
    assert not Path("theirs").exists() or Path("theirs").read_text() == "theirs"


def test_where_no_file_fits_beside_a_link_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    def refuse(**_: object) -> None:
        raise OSError(36, "File name too long")

    Path("theirs").write_text("theirs")
    Path("link").symlink_to("theirs")
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(UsageError, match="too long"):
        write_file(Path("link"), "ours")
    assert Path("theirs").read_text() == "theirs"
    write_file(Path("theirs"), "ours")  # a file of our own is written in its place
    assert Path("theirs").read_text() == "ours\n"


@pytest.mark.parametrize(
    "reports",
    [
        ["json=x", "html=./x"],
        ["json=x", "html=y/../x"],
        ["json=x", "html=link"],
        [f"json={'x' * 300}"],
        [f"json=y/{'x' * 5000}"],
        ["json=loop/x"],
        ["json=y"],
        ["json=nowhere/x"],
        ["json=x\0y"],
    ],
)
def test_what_cannot_be_written_is_told_before_anything_is_computed(reports: list[str], capsys) -> None:
    Path("y").mkdir()
    Path("link").symlink_to("x")
    Path("loop").symlink_to("loop")
    arguments = [part for report in reports for part in ("--report", report)]
    assert main(["run", "a.yaml", *arguments]) == 2
    assert "claim" not in capsys.readouterr().out
    assert not Path("x").exists()


@pytest.mark.parametrize("path", ["a.yaml", "./a.yaml", "y/../b.yaml", "rows.csv", "key", "hard"])
def test_no_report_replaces_what_the_run_reads(path: str, capsys) -> None:
    """A spec, the one that it extends, a table that it names, the secret of the store, and these by other names."""
    Path("y").mkdir()
    Path("b.yaml").write_text("claims: []\n")
    Path("rows.csv").write_text("x,label\n1,0\n2,1\n")
    Path("key").write_bytes(bytes(32))
    spec = SPEC.replace("{kind: declared, records: 100}", "{kind: csv, path: rows.csv, label: label, classes: 2}")
    Path("a.yaml").write_text("extends: b.yaml\n" + spec)
    os.link("a.yaml", "hard")
    before = Path(path).read_bytes()
    assert main(["run", "a.yaml", "--store-key", "key", "--report", "json=r.json", "--report", f"json={path}"]) == 2
    assert f"a report to {path} would replace an input of the run" in capsys.readouterr().err
    assert Path(path).read_bytes() == before
    assert not Path("r.json").exists()


def test_a_link_to_a_spec_is_replaced_and_the_spec_stays() -> None:
    Path("link").symlink_to("a.yaml")
    assert main(["run", "a.yaml", "--report", "json=link", "--report", "html=y.html"]) == 0
    assert Path("a.yaml").read_text() == SPEC
    assert not Path("link").is_symlink()
    assert main(["run", "a.yaml", "--report", "json=link", "--report", "html=y.html"]) == 0  # an earlier report of ours
    for _ in range(2):
        assert main(["run", "a.yaml", "--report", "json=ordinary"]) == 0  # called as the audit is


def test_a_spec_whose_name_is_no_text_is_reported_in_every_format(capsys) -> None:
    name = os.fsdecode(b"b\xff.yaml")
    Path(name).write_text(SPEC)
    formats = ("json", "text", "markdown", "html", "registry", "junit", "sarif", "csv", "github")
    reports = [part for f in formats for part in ("--report", f"{f}=r.{f}")]
    assert main(["run", name, *reports]) == 0
    assert "b%FF.yaml" in Path("r.sarif").read_text() or '"results": []' in Path("r.sarif").read_text()


@pytest.mark.parametrize("store", ["zip://x.zip", "ftp://localhost:1/x", "dangling", "a.yaml", "zip://", ""])
def test_a_store_that_is_none_is_told_at_once(store: str, capsys) -> None:
    Path("dangling").symlink_to("nowhere")
    assert main(["run", "a.yaml", "--store", store]) == 2
    said = capsys.readouterr()
    assert "store" in said.err or "keep trials" in said.err
    assert "claim" not in said.out


@pytest.mark.parametrize("pieces", [65, 500, 5000])
def test_paths_that_lead_nowhere_are_refused(pieces: int, capsys) -> None:
    path = ".".join(["a"] * pieces)
    assert main(["validate", "a.yaml", "--set", f"{path}=1"]) == 3
    Path("m.yaml").write_text(SPEC + f"matrix: {{{path}: [1, 2]}}\n")
    assert main(["validate", "m.yaml"]) == 3
    assert main(["validate", "a.yaml", "--set", f"{'.'.join(['a'] * 64)}={'[' * 60}{']' * 60}"]) == 3


def test_a_store_that_is_not_there_was_not_compared(capsys) -> None:
    assert main(["cache", "verify", "--store", "nowhere"]) == 2
    assert "no store" in capsys.readouterr().err


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read everything")
def test_a_store_that_may_not_be_read_was_not_compared(capsys) -> None:
    Path("store/trials/ab").mkdir(parents=True)
    Path("store/trials").chmod(0)
    try:
        assert main(["cache", "verify", "--store", "store"]) == 2
    finally:
        Path("store/trials").chmod(0o700)


def test_a_working_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && {sys.executable} -P -m dpspec validate ../a.yaml"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode in (2, 3)
    assert "bug" not in done.stderr
