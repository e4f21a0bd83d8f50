"""Third-party distributions. Their own tests run where they are installed, not from here."""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import warm

HERE = Path(__file__).parent

collect_ignore = ["dpspec-canary", "dpspec-laplace-histogram"]

Execute = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Execute]:
    """Install a project by pip into a folder of its own; run modules of Python there, away from the checkout."""

    @functools.cache
    def install(project: str) -> Execute:
        pytest.importorskip("pip")
        here, site = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("site")
        shutil.copytree(HERE / project, here / "project")
        path = os.pathsep.join([str(site), *(p for p in sys.path if p and Path(p).name != "tests")])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "80"}

        def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
            if module in ("dpspec", "pytest"):
                return getattr(warm, module)(*arguments, cwd=here, env=environment)
            command = [sys.executable, "-m", module, *arguments]
            return subprocess.run(command, env=environment, cwd=here, capture_output=True, text=True, timeout=600)

        options = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
        done = run("pip", "install", *options, "--target", str(site), "./project")
        assert done.returncode == 0, done.stdout + done.stderr
        return run

    return install
