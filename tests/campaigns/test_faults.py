"""A few interrupted runs and recordings; by hand: ``python tests/campaigns/faults.py``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm

pytestmark = [pytest.mark.ci, pytest.mark.skipif(sys.platform != "linux", reason="needs another process's clock")]

SLOW = [
    *(f"kill --kinds {kind} --times 2" for kind in ("modelmix", "per-instance", "preprocessing", "rero")),
    *("damaged --times 2", "sigterm-workers --times 2", "ray-head"),
]


@pytest.mark.parametrize(
    "arguments",
    [
        "kill --kinds group recorder --times 1",
        "ctrl-c sigterm full damaged --kinds group --times 1",
        *(pytest.param(arguments, marks=pytest.mark.slow) for arguments in SLOW),
    ],
)
def test_an_interrupted_run_ends_as_an_undisturbed_one(arguments: str, tmp_path: Path) -> None:
    command = ["python", str(Path(__file__).parent / "faults.py"), *arguments.split(), "--steps", "300"]
    path = os.pathsep.join([warm.programs(tmp_path / "programs"), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    if "not tried" in done.stdout:
        pytest.skip(done.stdout)
    assert "; 0 wrong" in done.stdout
