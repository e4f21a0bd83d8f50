"""The command line in separate processes, with plugins found by their metadata alone."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import warm
from support.installed import expose

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which the faulty backends and a team's own loop are installed."""
    site = tmp_path / "site"
    expose(site, "dpspec-faulty", "faulty", "dpspec_faulty")
    expose(site, "dpspec-own-loop", "own-loop", "dpspec_own_loop")
    plugins = ROOT / "tests" / "plugins"
    path = [str(site), str(plugins / "dpspec_faulty"), str(plugins / "dpspec_own_loop"), str(ROOT / "tests")]
    known = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*path, *([known] if known else [])]),
        "COLUMNS": "80",
    }


@pytest.fixture
def dpspec(environment: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return warm.dpspec(*arguments, cwd=tmp_path, env=environment)

    return run
