"""Commands that are forked from a warm process end and say what those of a fresh interpreter do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm


@pytest.mark.ci
@pytest.mark.parametrize(
    "arguments", [("--version",), ("validate", "nowhere.yaml"), ("run", "--nope"), ("show", "a b")]
)
def test_they_end_as_in_a_fresh_interpreter(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a b").write_text("dpspec: 1\nname: [x]\n", encoding="utf-8")
    environment = {**os.environ, "COLUMNS": "50", "NO_COLOR": "1"}
    command = [sys.executable, "-P", "-m", "dpspec", *arguments]
    fresh = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    forked = warm.dpspec(*arguments, cwd=tmp_path, env=environment)
    assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_a_plugin_on_the_path_of_modules_is_that_of_one_command(tmp_path: Path) -> None:
    info = tmp_path / "site" / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[dpspec]\nmine = no_such_module\n", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    assert "no_such_module" in warm.dpspec("plugins", cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}).stdout
    assert "no_such_module" not in warm.dpspec("plugins", cwd=tmp_path).stdout


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    warm.dpspec("--version", cwd=tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        warm.dpspec("plugins", cwd=tmp_path, timeout=0.0001)
