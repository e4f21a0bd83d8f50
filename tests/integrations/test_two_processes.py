"""Trainers on two processes: sound trainings are proved, and faults are found or refused."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

TESTS = Path(__file__).parents[1]

SOUND = "passed 3.59"  # 20 steps at rate 0.1 with noise 1

#: Faults of ``tests/support/two_processes/training.py``, with words of the report or the error.
FAULTS = {
    "": SOUND,
    "alone": "torch.distributed runs 2 processes, and optimizer is opacus.DPOptimizer, which sums over one",
    "budget": "stop_at_epsilon is for one process",
    "draws of each rank": "Give make_private a model in a wrapper for several processes, so that its loader divides",
    "shuffled": "the loader's batches are shuffled",
    "noise of each rank": "steps whose noise is not added by one rank",
    "same noise": "Draw new noise for every coordinate",
}


@pytest.mark.parametrize(
    ("script", "library"),
    [("huggingface", "transformers"), ("accelerated", "accelerate"), ("lightning_fit", "lightning")],
)
def test_a_training_on_two_processes_is_proved_and_its_faults_are_found(script, library, tmp_path):
    pytest.importorskip(library, exc_type=ImportError)
    expected = dict(FAULTS)
    if script == "accelerated":
        del expected["budget"]  # of the callbacks
    if script == "lightning_fit":  # its callback gets no engine, so the steps are charged without amplification
        expected["shuffled"] = "passed 6.57"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    path = TESTS / "support" / "two_processes" / f"{script}.py"
    command = [sys.executable, "-W", "ignore", *([] if script == "lightning_fit" else launcher), str(path)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command += [str(tmp_path), *expected]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    lines = {fault: re.findall(f"^{fault}: (.*)$", done.stdout, re.MULTILINE) for fault in expected}
    assert [fault for fault, words in expected.items() if words not in " ".join(lines[fault])] == [], lines
    assert [fault for fault in expected if lines[fault] and "passed" in lines[fault][0]] == [
        fault for fault, words in expected.items() if "passed" in words
    ]
