"""The distribution of a plugin is named for errors of its code, in this process and in others."""

from __future__ import annotations

import copy
import dataclasses
from types import ModuleType

import pytest

from dpspec.cli.terminal.exit_codes import run_to_exit_code
from dpspec.contract import Model
from dpspec.contract.catalog import Offered
from dpspec.registry import loader
from dpspec.registry.loader import mark, raised_by


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of an installed plugin."""
    module = ModuleType("their_audit")
    exec("import sys\ndef fail():\n    1 / 0\ndef leave():\n    sys.exit(0)\n", module.__dict__)
    model = Model(kind="x", summary="x", schema={}, factory="their_audit:fail")
    offered = Offered(provider=model, plugin="x", distribution="dpspec-theirs", version="1.0")
    catalog = dataclasses.replace(loader.load_catalog(), models={"x": offered})
    monkeypatch.setattr(loader, "load_catalog", lambda: catalog)
    return module


def test_the_name_survives_another_process(theirs: ModuleType) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        theirs.fail()
    assert raised_by(copy.copy(caught.value)) == ""  # a copy has no traceback, like an error of another process
    mark(caught.value)
    assert raised_by(copy.copy(caught.value)) == "dpspec-theirs"


def test_errors_of_dpspec_name_no_plugin(theirs: ModuleType) -> None:
    with pytest.raises(KeyError) as caught:
        {}["x"]
    mark(caught.value)
    assert raised_by(caught.value) == ""


def test_a_plugin_that_leaves_the_program_is_no_success(theirs: ModuleType, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_to_exit_code(theirs.leave, []) == 4
    assert "this is a bug in plugin dpspec-theirs: SystemExit" in capsys.readouterr().err
