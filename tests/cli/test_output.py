"""All output to terminals and logs is escaped, for every command."""

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


def test_line_ends_of_other_systems_become_newlines() -> None:
    assert harmless("a,b\r\n1,2\r\n") == "a,b\n1,2\n"
    assert harmless("a\rb") == "a\\rb"


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
        ["show", "a.yaml"],
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


SPEC = specs.BOUNDS

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs links")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(SPEC)
    return tmp_path


@pytest.mark.parametrize(("length", "dangling"), [(20, False), (249, True), (255, False)])
def test_a_link_is_replaced_whatever_its_name(length: int, dangling: bool) -> None:
    link = Path("x" * length)
    if not dangling:
        Path("theirs").write_text("theirs")
    link.symlink_to("theirs")
    write_file(link, "ours")
    assert not link.is_symlink()
    assert link.read_text() == "ours\n"
    assert not Path("theirs").exists() or Path("theirs").read_text() == "theirs"


def test_a_report_behind_a_loop_of_links_is_refused_before_anything_is_computed(capsys) -> None:
    Path("loop").symlink_to("loop")
    assert main(["run", "a.yaml", "--report", "json=loop/x"]) == 2
    assert "claim" not in capsys.readouterr().out


def test_a_spec_whose_name_is_no_text_is_reported_in_every_format(capsys) -> None:
    name = os.fsdecode(b"b\xff.yaml")
    Path(name).write_text(SPEC)
    formats = ("json", "text", "markdown", "html", "registry", "junit", "sarif", "csv", "github")
    reports = [part for f in formats for part in ("--report", f"{f}=r.{f}")]
    assert main(["run", name, *reports]) == 0
    assert "b%FF.yaml" in Path("r.sarif").read_text() or '"results": []' in Path("r.sarif").read_text()


def test_a_report_of_an_earlier_command_is_named(tmp_path: Path, capsys) -> None:
    spec, earlier, absent = tmp_path / "bad.yaml", tmp_path / "result.json", tmp_path / "report.html"
    spec.write_text("dpspec: 1\nname: bad\n")
    earlier.write_text("{}")
    assert main(["run", str(spec), "--report", f"json={earlier}", "--report", f"html={absent}"]) == 3
    error = capsys.readouterr().err
    assert f"{earlier} (json) is of an earlier command: this one has no result\n" in error
    assert str(absent) not in error


@pytest.mark.parametrize(
    "store", ["zip://x.zip", "ftp://localhost:1/x", "dangling", "a.yaml", "zip://", "", "nonsense://x"]
)
def test_a_store_that_is_none_is_told_at_once(store: str, capsys) -> None:
    Path("dangling").symlink_to("nowhere")
    assert main(["run", "a.yaml", "--store", store]) == 2
    said = capsys.readouterr()
    assert "store" in said.err or "keep trials" in said.err
    assert "claim" not in said.out


@pytest.mark.parametrize("pieces", [65, 5000])
def test_paths_that_lead_nowhere_are_refused(pieces: int, capsys) -> None:
    path = ".".join(["a"] * pieces)
    assert main(["validate", "a.yaml", "--set", f"{path}=1"]) == 3
    Path("m.yaml").write_text(SPEC + f"matrix: {{{path}: [1, 2]}}\n")
    assert main(["validate", "m.yaml"]) == 3
    assert main(["validate", "a.yaml", "--set", f"{'.'.join(['a'] * 64)}={'[' * 60}{']' * 60}"]) == 3


@pytest.mark.ci
def test_a_working_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && {sys.executable} -P -m dpspec validate ../a.yaml"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode in (2, 3)
    assert "bug" not in done.stderr
