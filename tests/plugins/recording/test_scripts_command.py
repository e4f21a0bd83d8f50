"""The options of ``dpspec record``, and the check of what it recorded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpspec.cli.app import main

PRIVATE = """
import sys, torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(200, 5)
model = torch.nn.Linear(5, 2)
model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
    module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    data_loader=DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=20),
    noise_multiplier=2.0, max_grad_norm=1.0)
for a, b in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(a), b).backward()
    optimizer.step()
print("trained")
"""


def run(folder, *arguments, script=PRIVATE, **environment):
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-W", "ignore", "-m", "dpspec", "record", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )


@pytest.mark.ci
@pytest.mark.parametrize(("claimed", "code"), [("6", 0), ("0.01", 1)])
def test_a_script_is_recorded_and_checked_in_one_command(tmp_path, claimed, code):
    found = run(tmp_path, "--check", "--epsilon", claimed, "train.py")
    assert found.returncode == code, found.stderr
    assert found.stdout.startswith("trained\n")
    assert ("PROVED" in found.stdout) == (code == 0)
    assert "1 training is recorded: dpspec check run/1" in found.stderr


@pytest.mark.ci
def test_the_check_s_code_follows_only_a_script_that_ended_well(tmp_path):
    found = run(tmp_path, "--check", "--epsilon", "9", "train.py", script=f"{PRIVATE}sys.exit(3)")
    assert (found.returncode, found.stdout) == (3, "trained\n")


@pytest.mark.ci
def test_a_script_without_a_private_training_keeps_its_code_unless_it_is_checked(tmp_path):
    found = run(tmp_path, "train.py", script="print('x')")
    assert (found.returncode, found.stdout) == (0, "x\n")
    assert "nothing was recorded: the script did not import torch" in found.stderr
    assert "run.summed(total), run.noised(noise) and run.stepped()" in found.stderr
    assert not (tmp_path / "run").exists()
    assert run(tmp_path, "--check", "train.py", script="print('x')").returncode == 5


def test_no_library_of_numbers_is_loaded_before_the_script_sets_its_variables(tmp_path):
    libraries = "'numpy', 'torch', 'scipy', 'opacus'"
    found = run(tmp_path, "train.py", script=f"import sys; print(sorted({{{libraries}}} & set(sys.modules)))")
    assert found.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "3", "train.py"], "a claim needs --check"),
        (["--check", "--epsilon=-1", "train.py"], "--epsilon must be finite and not negative"),
        (["--check", "--delta", "1", "train.py"], "--delta must be above 0 and below 1"),
        (["--check", "--group-size", "0", "train.py"], "group"),
        (["--check", "--adjacency", "replace-one", "train.py"], "--adjacency must be zero-out or add-remove"),
        (["--check", "--accept", "guessable-sed", "train.py"], "did you mean 'guessable-seed'"),
        (["--check", "--public", "learning-rate", "train.py"], "did you mean 'learning_rate'"),
        (["--out", "full", "train.py"], "full is not empty: give a new folder"),
        (["--out", "train.py/run", "train.py"], "train.py is not a folder; --out names another folder"),
        (["--out", "closed/run", "train.py"], "cannot record into closed/run: permission denied"),
        (["absent.py"], "cannot read the script absent.py"),
        ([], "SCRIPT"),
    ],
)
def test_a_wrong_use_is_refused_before_the_script_runs(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise AssertionError")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "closed").mkdir()
    permits = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "closed" and permits(path, mode))
    assert main(["record", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_one_check_of_several_processes_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "train.py").touch()
    assert main(["record", "--check", "train.py"]) == 2
    assert "--check is for one process" in capsys.readouterr().err
    assert main(["record", "--out", "runs/{n}", "train.py"]) == 2


@pytest.mark.ci
def test_an_import_records_from_there_on_into_the_folder_that_the_environment_names(tmp_path):
    (tmp_path / "train.py").write_text(f"import dpspec.auto\n{PRIVATE}")
    environment = {**os.environ, "DPSPEC_RECORD": "kept/here"}
    for number in (1, 2):
        subprocess.run([sys.executable, "-W", "ignore", "train.py"], cwd=tmp_path, check=True, env=environment)
        assert (tmp_path / "kept" / "here" / str(number) / "public.log").exists()
    found = run(tmp_path, "train.py", script=f"import dpspec.auto\n{PRIVATE}")  # the command's session is the only one
    assert "1 training is recorded: dpspec check run/1" in found.stderr
