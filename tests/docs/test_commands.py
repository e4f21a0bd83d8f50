"""Every command that the README and the docs show is run, in order, in one folder per page.

In a ``console`` block a line that begins with ``$`` is a command. A comment before a block says what else holds:
``<!-- exit: 1 -->`` the exit code expected of its last command, ``<!-- not run: why -->`` that it is only shown, and
``<!-- file: a.yaml -->`` before a ``yaml`` or ``python`` block that it is the content of that file. Lines of output
that are shown need not be printed exactly (numbers differ between machines), except those after ``<!-- exact -->``.

A shell runs them. ``dpspec`` and ``python`` are processes that have imported torch already; ``tests/cli`` starts fresh
interpreters, and ``.ci/run`` the installed program.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import warm

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: Whose commands take more than a few seconds: CI runs them.
LONG = {
    "docs/explanation/verdicts.md",
    *(f"docs/how-to/{name}.md" for name in ("audit-synthetic-data", "audit-users", "audit-your-own-loop")),
    *(f"docs/how-to/{name}.md" for name in ("audit-federated-rounds", "check-an-accountant")),
    *(f"docs/how-to/{name}.md" for name in ("bring-your-own-scores", "calibrate", "canaries-in-a-script")),
    *(f"docs/how-to/{name}.md" for name in ("choose-an-attack", "gate-in-ci", "groups", "ledger", "notebook")),
    *(f"docs/how-to/{name}.md" for name in ("per-record", "preprocessing", "record-a-script", "recorded-constants")),
    *(f"docs/how-to/{name}.md" for name in ("reconstruction", "schedules", "tuning", "use-your-own-data")),
}

#: Its only command judges the specs that ``tests/e2e/test_published.py`` judges.
REPEATED = "docs/explanation/published-claims.md"

_BLOCK = re.compile(r"((?:^<!-- .*? -->\n)*)^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOTE = re.compile(r"<!-- (exit|file|not run|exact)(?:: (.*?))? -->")


@dataclass(frozen=True)
class Block:
    notes: dict[str, str]
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    for comments, language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        yield Block(notes=dict(_NOTE.findall(comments)), language=language, text=text)


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kept-by-pages"
    (folder / "store").mkdir(parents=True, exist_ok=True)
    return folder


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def marks(page: Path) -> list[pytest.MarkDecorator]:
    return [pytest.mark.ci] * (named(page) in LONG) + [pytest.mark.slow] * (named(page) == REPEATED)


@pytest.mark.family
@pytest.mark.parametrize("page", [pytest.param(page, marks=marks(page)) for page in PAGES], ids=named)
def test_every_command_that_a_page_shows_works(page: Path, tmp_path: Path, kept: Path) -> None:
    if not any("$ " in b.text and b.language == "console" for b in blocks(page)):
        return
    shutil.copytree(ROOT / "specs", tmp_path / "specs")
    (tmp_path / ".dpspec").mkdir()
    (tmp_path / ".dpspec" / "store").symlink_to(kept / "store", target_is_directory=True)
    path = [warm.programs(tmp_path / ".programs"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(path), "COLUMNS": "80", "NO_COLOR": "1"}
    for block in blocks(page):
        if "file" in block.notes:
            file = tmp_path / block.notes["file"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        if block.language != "console" or "not run" in block.notes:
            continue
        commands = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
        output, code = "", 0
        for command in commands:
            done = subprocess.run(
                command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
            )
            output, code = output + done.stdout + done.stderr, done.returncode
        assert code == int(block.notes.get("exit", "0")), f"{commands[-1]!r} ended with {code}:\n{output}"
        if "exact" in block.notes:
            for line in (x for x in block.text.splitlines() if x.strip() and not x.startswith("$ ")):
                assert line in output, f"{line!r} is not in:\n{output}"
