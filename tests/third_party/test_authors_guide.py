"""The author's guide is followed word for word, by somebody who has dpspec in a fresh environment and nothing else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm

PAGE = Path(__file__).parents[2] / "docs" / "plugins" / "first-plugin.md"
_BLOCK = re.compile(r"((?:^<!-- .*? -->\n)*)^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, int]]:
    """Every command of the page, in order, with the exit code that it must end with."""
    found = []
    for notes, text in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        lines = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        last = int(re.search(r"<!-- exit: (\d+) -->", notes).group(1)) if "<!-- exit" in notes else 0  # type: ignore[union-attr]
        found += [(line, last if line is lines[-1] else 0) for line in lines]
    return found


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A virtual environment that sees what is installed here, pip too, and installs into itself, without an index.

    ``python`` and ``pip`` are interpreters of it; ``dpspec`` is a warm process that sees what is installed in it.
    """
    pytest.importorskip("pip")
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "seen.pth").write_text("\n".join(p for p in sys.path if p and Path(p).name != "tests") + "\n")
    script = tmp_path / "entry" / "main.py"
    script.parent.mkdir()
    entered = f"import site, sys\nsite.addsitedir({str(site)!r})\nsys.argv[0] = 'dpspec'\n"
    script.write_text(f"{entered}from dpspec.__main__ import main\nsys.exit(main())\n")
    programs = {
        "dpspec": f'#!/bin/sh\nexec "{warm.programs(tmp_path / "warm")}/python" "{script}" "$@"\n',
        "pip": f"#!{home}/bin/python\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n",
    }
    for name, text in programs.items():
        program = home / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
    path = os.pathsep.join([str(home / "bin"), os.environ["PATH"]])
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    gone = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {key: value for key, value in os.environ.items() if key not in gone}
    return {**kept, **offline, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


@pytest.mark.ci
@pytest.mark.skipif(sys.platform == "win32", reason="the page is for a POSIX shell")
def test_the_guide_works_word_for_word(environment: dict[str, str], tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    said = []
    for command, code in commands():
        done = subprocess.run(
            command, shell=True, cwd=here, env=environment, capture_output=True, text=True, timeout=300
        )
        said.append((command, done.stdout + done.stderr))
        assert done.returncode == code, f"{command!r} ended with {done.returncode}:\n{said[-1][1]}"
    runs = [text for command, text in said if command.startswith("dpspec run")]
    _, mistaken, restored = runs
    assert "CONTRADICTED  family" in mistaken
    assert "PROVED        one" in mistaken
    assert "REFUTED       too-good" in restored
    assert [text for _, text in said if "23 kept, 4 not tried" in text]


def test_the_guide_quotes_messages_that_tests_expect() -> None:
    tests = Path(__file__).parents[1]
    places = [*(tests / "testing").glob("*.py"), tests / "registry" / "test_loader.py"]
    words = "".join(path.read_text(encoding="utf-8") for path in places)
    page = PAGE.read_text(encoding="utf-8")
    for said in (
        "is not decreasing: 0.5 at",
        "all randomness must come from context.seed",
        "its source is empty",
        "unknown hook 'dpspec_mechanism",
        "plugin API 2 is not supported; this dpspec supports 1",
    ):
        assert said in words
        assert said in page
