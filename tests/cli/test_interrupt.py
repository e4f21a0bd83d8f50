"""Ctrl-C ends a command the same way whatever it falls into: an import, its conversion into another error, the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from dpspec.cli import interrupt
from dpspec.cli.app import run_to_exit_code


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch):
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt.listen()
    yield
    sys.unraisablehook = sys.__unraisablehook__
    monkeypatch.setattr(interrupt, "_heard", False)
    signal.signal(signal.SIGINT, before)


def test_what_ctrl_c_turned_into_is_an_interruption(listening, capsys):
    def importing() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("numpy could not be imported") from None

    assert run_to_exit_code(importing, []) == 130
    assert "un the same command again to resume" in capsys.readouterr().err


def test_what_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupt.listen()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        interrupt.leave()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_the_clean_up_of_an_object_it_comes_a_moment_later(listening, capsys):
    class Cleaned:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def working() -> None:
        del cleaned[:]
        time.sleep(5.0)
        raise AssertionError("it went on")

    cleaned = [Cleaned()]
    assert run_to_exit_code(working, []) == 130
    assert "Exception ignored" not in capsys.readouterr().err


def test_at_the_end_the_system_decides(listening):
    interrupt.leave()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


PRESS = """
import signal, sys
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Press())
sys.argv = ["dpspec", "validate", "no-such-file.yaml"]
from dpspec.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["dpspec.cli.app", "typer", "dpspec.language.load", "yaml"])
def test_no_import_is_too_early(module, tmp_path):
    script = PRESS.format(module=module)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert "Traceback" not in done.stderr
    assert done.returncode == 130
