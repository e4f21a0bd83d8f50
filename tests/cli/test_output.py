"""The one door to terminals and logs: nothing that either obeys goes through, whatever command says it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.specs import BOUNDS

from dpspec.cli.app import main
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


def test_a_file_whose_name_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("::stop-commands::t.yaml", "##vso[task.x]y.yaml", "\x1b[2J.yaml"):
        Path(name).write_text("dpspec: 1\nname: [\n", encoding="utf-8")
        assert main(["validate", name]) == 3
        said = capsys.readouterr()
        assert OBEYED.search(said.out + said.err) is None
    for arguments in (
        ["explain", NASTY],
        ["report", NASTY],
        ["validate", NASTY],
        ["cache", "rm", NASTY],
        [NASTY],
        [LINE],
    ):
        main(arguments)
        said = capsys.readouterr()
        assert OBEYED.search(said.out + said.err) is None, arguments


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
