"""Modules by the names that plugins knew them by in version 0.1."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from dpspec.contract.deprecated import MOVED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_name_gives_the_new_module_itself(old: str) -> None:
    new = importlib.import_module(MOVED[old])
    assert importlib.import_module(old) is new
    assert new.__spec__ is not None
    assert new.__spec__.name == new.__name__ == MOVED[old]
    package, _, name = old.rpartition(".")
    assert getattr(importlib.import_module(package), name) is new


def test_what_became_a_folder_still_gives_its_functions() -> None:
    from dpspec.stats import conformance
    from dpspec.stats.conformance import checks, run_checks

    assert conformance.checks is checks is run_checks.checks
    with pytest.raises(ImportError, match="no_such_name"):
        from dpspec.stats.conformance import no_such_name  # type: ignore[attr-defined]  # noqa: F401


def test_in_a_process_that_knows_no_new_name_yet() -> None:
    code = "from dpspec.stats import nulls; import dpspec.stats.manyrun as many; print(nulls.__name__, many.__name__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["dpspec.stats.attacks.evidence_tests", "dpspec.stats.attacks.many_run"]


def test_other_names_are_still_missing() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("dpspec.stats.no_such_module")
