"""Every way out has its own exit code; only what nobody foresaw is a bug, and a bug leaves a report."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from dpspec.cli.app import main, run_to_exit_code
from dpspec.contract import Diagnostic
from dpspec.errors import (
    IncompleteError,
    NothingToRunError,
    PluginError,
    ResultError,
    SpecError,
    UsageError,
)


def raising(error: BaseException):
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (ResultError("x"), 2),
        (typer.BadParameter("x"), 2),
        (SpecError([Diagnostic(code="unknown-key", message="x")]), 3),
        (PluginError("x"), 4),
        (PluginError("x", [Diagnostic(code="unknown-kind", message="x")]), 4),
        (NothingToRunError("x"), 5),
        (IncompleteError("x"), 6),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_error_has_its_code_and_says_something_on_stderr(error, code, capsys):
    assert run_to_exit_code(raising(error), []) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip()
    assert "Traceback" not in err


def out_of_memory() -> list[Exception]:
    import torch

    return [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried"),
    ]


@pytest.mark.parametrize("error", out_of_memory(), ids=lambda e: type(e).__name__)
def test_memory_that_runs_out_is_no_bug(error, capsys):
    assert run_to_exit_code(raising(error), []) == 6
    err = capsys.readouterr().err
    assert err.startswith("error: out of memory: ")
    assert "un the same command again to resume" in err
    assert str(error)[:30] in err


def test_typers_own_interrupt_code_is_an_interrupt(capsys):
    assert run_to_exit_code(lambda: 130, []) == 130
    assert "to resume" in capsys.readouterr().err


@pytest.fixture
def reports_in(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("error", [RuntimeError("the reason"), SystemExit(0), BrokenPipeError(32, "x")])
def test_anything_else_is_a_bug_with_a_report(error, reports_in, capsys, monkeypatch):
    monkeypatch.setenv("A_SECRET", "hunter2-in-the-environment")
    assert run_to_exit_code(raising(error), ["run", "a b.yaml", "--store", "ftp://me:hunter2@host/x"]) == 70
    (report,) = reports_in.glob("dpspec-bug-*.md")
    text = report.read_text("utf-8")
    assert "command: `dpspec run 'a b.yaml' --store 'ftp://me:***@host/x'`" in text
    assert re.search(r"- python: \w+ 3\.", text)
    assert re.search(r"- dpspec: \d", text)
    assert "- platform: " in text
    assert "Traceback (most recent call last)" in text
    assert "hunter2" not in text
    err = capsys.readouterr().err
    assert str(report) in err
    assert "Traceback" not in err


def test_a_bug_report_that_cannot_be_written_is_shown(monkeypatch, capsys):
    monkeypatch.setattr("tempfile.mkstemp", raising_os_error)
    assert run_to_exit_code(raising(RuntimeError("the reason")), ["plan"]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def raising_os_error(*args: object, **options: object):
    raise OSError(errno.EACCES, "no")


def run_python(code: str, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_a_reader_that_goes_away_changes_nothing_about_the_outcome():
    code = (
        "import sys\nfrom dpspec.cli.app import run_to_exit_code\n"
        "from dpspec.cli.output import emit\n"
        "def command():\n    sys.stdin.readline()\n    [emit('x' * 10000) for _ in range(100)]\n    return 1\n"
        "sys.exit(run_to_exit_code(command, []))"
    )
    process = run_python(code, stdin=subprocess.PIPE)
    process.stdout.close()
    process.stdin.write(b"go\n")
    process.stdin.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 1
    assert error == b""


def test_characters_that_stdout_cannot_hold_are_written_out():
    code = "from dpspec.cli.output import *\ntolerate_any_character()\nemit('\\u6f22 \\udc80')"
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=True,
        timeout=30,
    )
    assert process.stdout == b"\\u6f22 \\udc80\n"


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_what_the_system_refuses_is_no_bug(code, capsys):
    assert run_to_exit_code(raising(OSError(code, "the reason", "a\x1b.json")), []) == 2
    assert capsys.readouterr().err == "error: a\\x1b.json: the reason\n"


def test_a_wrong_command_line_is_told_like_any_other_error(capsys):
    assert main(["run", "--nope"]) == 2
    first, usage, hint = capsys.readouterr().err.splitlines()
    assert first.startswith("error: No such option: --nope")
    assert usage.startswith("Usage: dpspec run [OPTIONS]")
    assert hint == "Try 'dpspec run -h' for help."


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--workers=0", "--workers must be at least 1, got 0"),
        ("--workers=two", "--workers must be an integer, got two"),
        ("--max-minutes=x", "--max-minutes must be a number, got x"),
        ("--worker=2", "No such option: --worker; did you mean '--workers'?"),
        ("--fast", "No such option: --fast"),
    ],
)
def test_options_are_named_with_their_rule(capsys, option, message):
    assert main(["run", "spec.yaml", option]) == 2
    assert capsys.readouterr().err.splitlines()[0] == f"error: {message}"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_result_that_cannot_be_written_is_an_error():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dpspec", "explain", "open"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write to stdout: ")


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize(("arguments", "code"), [("explain open", 0), ("explain nothing-at-all", 2), ("--help", 0)])
def test_a_closed_stream_changes_nothing_about_the_outcome(closed, arguments, code):
    command = f"{sys.executable} -m dpspec {arguments} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "error",
    [
        SpecError([Diagnostic(code="bad-value", message="too large", path=("a", 1))]),
        PluginError("gone", [Diagnostic(code="unknown-kind", message="x")]),
        UsageError("x"),
    ],
)
def test_errors_of_other_processes_arrive_as_what_they_are(error):
    import pickle

    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (type(again), str(again)) == (type(error), str(error))
    assert getattr(again, "diagnostics", ()) == getattr(error, "diagnostics", ())
