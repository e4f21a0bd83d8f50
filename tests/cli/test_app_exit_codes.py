"""Every outcome has an exit code; only unexpected exceptions are bugs, and a bug leaves a report."""

import errno
import os
import re
import signal
import subprocess
import sys

import pytest
import typer

from dpspec.cli import interrupt
from dpspec.cli.app import main, run_to_exit_code
from dpspec.contract import Diagnostic
from dpspec.errors import NothingToRunError, PluginError, ResultError, SpecError, UsageError


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
    assert run_to_exit_code(lambda: 130, ["run"]) == 130
    assert "to resume" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("the reason"), SystemExit(0), BrokenPipeError(32, "x")])
def test_anything_else_is_a_bug_with_a_report(error, capsys, monkeypatch):
    monkeypatch.setenv("A_SECRET", "hunter2-in-the-environment")
    assert run_to_exit_code(raising(error), ["run", "a b.yaml", "--store", "ftp://me:hunter2@host/x"]) == 70
    text = capsys.readouterr().err
    assert "dpspec run 'a b.yaml' --store 'ftp://me:***@host/x'\n" in text
    assert re.search(r"^dpspec \d.*, \w+ 3\.", text, re.MULTILINE)
    assert "Traceback (most recent call last)" in text
    assert "hunter2" not in text


def test_a_reader_that_goes_away_changes_nothing_about_the_outcome():
    code = (
        "import sys\nfrom dpspec.cli.app import run_to_exit_code\n"
        "from dpspec.cli.output import emit\n"
        "def command():\n    sys.stdin.readline()\n    [emit('x' * 10000) for _ in range(100)]\n    return 1\n"
        "sys.exit(run_to_exit_code(command, []))"
    )
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", code], **pipes)
    process.stdout.close()
    process.stdin.write(b"go\n")
    process.stdin.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 1
    assert error == b""


def test_characters_that_stdout_cannot_hold_are_written_out():
    code = "from dpspec.cli.output import *\ntolerate_any_character()\nemit('\\u6f22 \\udc80')"
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=True,
        timeout=120,
    )
    assert process.stdout == b"\\u6f22 \\udc80\n"


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_what_the_system_refuses_is_no_bug(code, capsys):
    assert run_to_exit_code(raising(OSError(code, "the reason", "a\x1b.json")), []) == 2
    assert capsys.readouterr().err == "error: a\\x1b.json: the reason\n"


def test_a_wrong_command_line_is_told_like_any_other_error(capsys):
    assert main(["run", "--nope"]) == 2
    first, usage, hint = capsys.readouterr().err.splitlines()
    assert first.startswith("error: No such option")
    assert "--nope" in first
    assert usage.startswith("Usage: dpspec run [OPTIONS]")
    assert hint == "Try 'dpspec run -h' for help."


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--workers=0", "Invalid value for '--workers': "),
        ("--max-minutes=x", "Invalid value for '--max-minutes': "),
        ("--worker=2", "No such option"),
    ],
)
def test_a_wrong_option_is_named_with_its_rule(capsys, option, message):
    """typer words the rule, and a likely option: its versions differ."""
    assert main(["run", "spec.yaml", option]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert {"--workers": "1", "--max-minutes": "valid", "--worker": "--workers"}[option.split("=")[0]] in error


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_result_that_cannot_be_written_is_an_error():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dpspec", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write to stdout: ")


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
@pytest.mark.parametrize(("arguments", "code", "closed"), [("--version", 0, ">&- 2>&-"), ("run --nope", 2, "2>&-")])
def test_a_closed_stream_changes_nothing_about_the_outcome(arguments, code, closed):
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


@pytest.fixture
def listening():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    interrupt.listen()
    yield
    interrupt.forget()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("sent", "says"), [(signal.SIGINT, "Interrupted"), (signal.SIGTERM, "Terminated")])
def test_what_a_signal_turned_into_is_an_interruption(listening, capsys, sent, says):
    def importing() -> None:
        try:
            signal.raise_signal(sent)
        except KeyboardInterrupt:
            raise ImportError("numpy could not be imported") from None

    assert run_to_exit_code(importing, ["run", "spec.yaml"]) == 128 + sent
    assert f"{says}. Finished trials are stored: run the same command again to resume" in capsys.readouterr().err
    assert run_to_exit_code(importing, ["epsilon", "--steps", "1"]) == 128 + sent
    assert capsys.readouterr().err == f"\n{says}.\n"  # no other command stores trials


def test_what_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupt.listen()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        interrupt.leave()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_at_the_end_the_system_decides(listening):
    interrupt.leave()
    assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


PRESS = """
import signal, sys
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal({number})
sys.meta_path.insert(0, Press())
sys.argv = ["dpspec", "validate", "no-such-file.yaml"]
from dpspec.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(("module", "sent"), [("dpspec.cli.app", signal.SIGINT), ("typer", signal.SIGTERM)])
def test_no_import_is_too_early(module, sent, tmp_path):
    script = PRESS.format(module=module, number=int(sent))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert "Traceback" not in done.stderr
    assert "Interrupted" in done.stderr or f"Stopped by {sent.name} before the run began." in done.stderr
    assert done.returncode == 128 + sent


def test_a_shell_gets_its_completion(dpspec, monkeypatch):
    """The end of typer's completion was reported as a bug in dpspec."""
    monkeypatch.setenv("_DPSPEC_COMPLETE", "source_bash")
    ended = dpspec()
    assert (ended.code, ended.err) == (0, "")
    assert "complete -o default -F _dpspec_completion dpspec" in ended.out
