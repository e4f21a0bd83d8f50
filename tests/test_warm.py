"""Commands that are forked from a warm process end and say what those of a fresh interpreter do."""

from __future__ import annotations

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


@pytest.mark.ci
@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
def test_a_shell_finds_programs_that_end_as_fresh_ones_do(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n", encoding="utf-8")
    (tmp_path / "a script.py").write_text(
        "import os, signal, sys\nimport beside\n"
        "def f(x: int): ...\nprint(f.__annotations__)\n"
        "print(__name__, __file__, sys.argv, beside.WORD, sys.stdin.read(), os.getcwd())\n"
        "print(os.environ['WORD'], flush=True)\n"
        "print('err', file=sys.stderr)\n"
        "os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1:] == ['killed'] else sys.exit(7)\n",
        encoding="utf-8",
    )
    commands = ["echo in | python 'a script.py' 1 '2 3'", "python 'a script.py' killed </dev/null"]
    commands += ["python -c 'print(6 * 7)'", "dpspec --version; dpspec run nowhere.yaml | cat; dpspec show a b"]
    environment = {**os.environ, "COLUMNS": "50", "NO_COLOR": "1", "WORD": "w"}
    ended = []
    for folder in (warm.programs(tmp_path / "programs"), str(Path(sys.executable).parent)):
        environment["PATH"] = os.pathsep.join([folder, os.environ["PATH"]])
        for command in commands:
            done = subprocess.run(
                ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
            )
            ended.append((done.returncode, done.stdout, done.stderr.replace("Killed\n", "")))
    assert ended[:4] == ended[4:]
    assert [code for code, _, _ in ended[:4]] == [7, 137, 0, 3]
