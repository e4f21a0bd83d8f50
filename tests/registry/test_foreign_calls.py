"""The distribution of a plugin is named for errors of its code, in this process and in others."""

from __future__ import annotations

import pickle
from types import ModuleType, SimpleNamespace

import pytest

from dpspec.cli.terminal.exit_codes import run_to_exit_code
from dpspec.registry import loader
from dpspec.registry.foreign_calls import mark, raised_by


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of an installed plugin."""
    module = ModuleType("their_audit")
    exec("import sys\ndef fail():\n    1 / 0\ndef leave():\n    sys.exit(0)\n", module.__dict__)
    manager = SimpleNamespace(list_name_plugin=lambda: [("dpspec-theirs:x", module)])
    monkeypatch.setattr(loader, "load_registry", lambda: SimpleNamespace(manager=manager))
    return module


def test_the_name_survives_another_process(theirs: ModuleType) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        theirs.fail()
    assert raised_by(pickle.loads(pickle.dumps(caught.value))) == ""
    mark(caught.value)
    assert raised_by(pickle.loads(pickle.dumps(caught.value))) == "dpspec-theirs"


def test_errors_of_dpspec_name_no_plugin(theirs: ModuleType) -> None:
    with pytest.raises(KeyError) as caught:
        {}["x"]
    mark(caught.value)
    assert raised_by(caught.value) == ""


def test_a_plugin_that_leaves_the_program_is_no_success(theirs: ModuleType, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_to_exit_code(theirs.leave, []) == 4
    assert "this is a bug in plugin dpspec-theirs: SystemExit" in capsys.readouterr().err
