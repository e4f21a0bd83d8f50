"""The one door to terminals and logs: nothing that either obeys goes through, whatever command says it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import specs
from support.specs import BOUNDS

from dpspec.cli.app import main
from dpspec.cli.output import write_file
from dpspec.errors import UsageError
from dpspec.text import harmless, json_text, plain

NASTY = "\x1b]0;owned\x07\x1b[31mred\x9b2J\u202e ##vso[task.x]y ##teamcity[z] ##[error]"
SOFT = "##vso[task.x]y ##teamcity[z] ##[error]\n::stop-commands::t\n  ::error::x"  # which specs may hold
LINE = "\n::stop-commands::t\n  ::error::x"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]|##\w*\[|(?m:^\s*::)")


@pytest.mark.parametrize("text", [NASTY, LINE, NASTY + LINE, "\r\n::x", "\u2028::x", "\ud800", "\t::x"])
def test_nothing_is_left_that_is_obeyed(text: str) -> None:
    assert OBEYED.search(harmless(text)) is None
    assert OBEYED.search(plain(text)) is None
    assert OBEYED.search(harmless(text, styled=True).replace("\x1b[31m", "")) is None
    assert harmless(harmless(text)) == harmless(text)


@pytest.mark.parametrize("text", ["plain\n  text: 1 :: 2\n## heading\n", "naïve ε ≤ 1\n", "a\tb\n", "", "x\u00a0y"])
def test_what_nobody_obeys_stays(text: str) -> None:
    assert harmless(text) == text


@pytest.mark.parametrize("text", [NASTY, "\U0001f600", "\U000e0001", "\ud800", "a\u2028b", "##vso[x]"])
def test_json_says_the_same_without_it(text: str) -> None:
    written = json_text(json.dumps({text: [text]}, ensure_ascii=False))
    assert OBEYED.search(written) is None
    assert json.loads(written) == {text: [text]}


def test_every_output_of_a_spec_that_means_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(f"{BOUNDS}description: {json.dumps(SOFT)}\n", encoding="utf-8")
    formats = ("json", "text", "markdown", "html", "statement", "statement-json", "registry", "junit", "sarif", "csv")
    assert main(["run", "a.yaml", "--bounds-only", "--report", "json=r.json"]) == 0
    for arguments in (
        ["validate", "a.yaml"],
        ["show", "a.yaml", "--origin"],
        ["plan", "a.yaml"],
        ["verify", "r.json"],
        ["diff", "r.json", "r.json"],
        *(["report", "r.json", "--format", name] for name in (*formats, "github")),
    ):
        main(arguments)
        said = capsys.readouterr()
        text = re.sub(r"(?m)^::(notice|error|warning) title=", "", said.out) if arguments[-1] == "github" else said.out
        assert OBEYED.search(text + said.err) is None, arguments
    main(["show", "a.yaml"])
    Path("again.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    main(["report", "r.json", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["audits"][0]["document"]["description"] == SOFT
    assert main(["run", "again.yaml", "--bounds-only", "--report", "json=-"]) == 0
    assert json.loads(capsys.readouterr().out)["audits"][0]["document"]["description"] == SOFT


def test_a_record_of_a_store_says_nothing_to_the_terminal(tmp_path: Path, capsys) -> None:
    from dpspec.contract import FrozenMap, Trial
    from dpspec.engine.storage.trial_store import Store

    store = Store(tmp_path / "store")
    told = FrozenMap({"spec": NASTY + LINE, "kind": NASTY, "made": NASTY})
    store.put("ab" * 32, Trial(index=0, evidence=FrozenMap({})), told)
    for arguments in (["ls"], ["verify"]):
        assert main(["cache", *arguments, "--store", str(tmp_path / "store")]) == 0
        said = capsys.readouterr()
        assert OBEYED.search(said.out + said.err) is None


def test_results_have_a_descriptor_of_their_own(tmp_path: Path) -> None:
    """What is printed once plugins run goes to stderr, by whichever way to stdout."""
    script = tmp_path / "printing.py"
    script.write_text(
        "import os, sys\n"
        "from dpspec.cli.output import emit, results_apart\n"
        "from dpspec.registry.foreign_code import foreign_code\n"
        "with results_apart():\n"
        "    def foreign():\n"
        "        print('one'); os.write(1, b'two'); os.system('echo three')\n"
        "        sys.__stdout__.write('four'); sys.__stdout__.flush()\n"
        "    with foreign_code():\n"
        "        foreign()\n"
        "    print('five')\n"
        "    emit('result')\n"
        "print('after')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "result\nafter\n"
    assert all(word in done.stderr for word in ("one", "two", "three", "four", "five"))


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
