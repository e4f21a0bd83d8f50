"""Commands that are forked from a warm process end and say what those of a fresh interpreter do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm


@pytest.mark.ci
@pytest.mark.parametrize("arguments", [("--version",), ("show", "a b")])
def test_they_end_as_in_a_fresh_interpreter(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a b").write_text("dpspec: 1\nname: [x]\n", encoding="utf-8")
    environment = {**os.environ, "COLUMNS": "50", "NO_COLOR": "1"}
    command = [sys.executable, "-P", "-m", "dpspec", *arguments]
    fresh = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    forked = warm.dpspec(*arguments, cwd=tmp_path, env=environment)
    assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)
