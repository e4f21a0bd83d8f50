"""Trainers on two processes: sound trainings are proved, and what the recorder cannot join is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

TESTS = Path(__file__).parents[1]


def output_of(script: str, folder: Path, fault: str = "") -> str:
    """What both processes print."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    path = TESTS / "support" / "two_processes" / f"{script}.py"
    command = [sys.executable, "-W", "ignore", *([] if script == "lightning_fit" else launcher), str(path)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command += [str(folder / "run"), fault]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


@pytest.mark.parametrize("script", ["huggingface", "accelerated", "lightning_fit"])
def test_a_training_on_two_processes_is_proved(script: str, tmp_path: Path) -> None:
    pytest.importorskip(
        {"huggingface": "transformers", "accelerated": "accelerate"}.get(script, "lightning"), exc_type=ImportError
    )
    assert "passed 3.59" in output_of(script, tmp_path)  # 20 steps at rate 0.1 with noise 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("alone", "torch.distributed runs 2 processes, and optimizer is opacus.DPOptimizer, which sums over one"),
        ("budget", "stop_at_epsilon is for one process"),
    ],
)
def test_what_cannot_be_joined_is_refused(fault: str, message: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    assert message in output_of("huggingface", tmp_path, fault)
