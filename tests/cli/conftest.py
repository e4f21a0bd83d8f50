"""Fixtures for the command line: calls in this process, and in a separate one."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import counting as support

from dpspec.cli.app import main
from dpspec.registry import loader


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def dpspec(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return run


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., Ended]:
    def run(*arguments: object, python: str = "", **environment: str) -> Ended:
        command = [sys.executable, "-c", python] if python else [sys.executable, "-m", "dpspec"]
        done = subprocess.run(
            [*command, *(str(argument) for argument in arguments)],
            capture_output=True,
            encoding="utf-8",
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "80", **environment},
            check=False,
            timeout=120,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    ours = loader.load_catalog()
    catalog = dataclasses.replace(support.catalog(), reporters=ours.reporters, executors=ours.executors)
    monkeypatch.setattr(loader, "load_catalog", lambda: catalog)
    monkeypatch.setattr(support, "RAN", [])
    monkeypatch.setattr(support, "HOOKS", [])
    path = tmp_path / "coin.yaml"
    path.write_text(support.EXAMPLE, encoding="utf-8")
    return path
