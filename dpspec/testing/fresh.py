"""Runs statements in a fresh interpreter, to see what they import: this one has imported everything long ago."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence

_MARK = "modules found:"


def imported_by(statements: str, modules: Sequence[str]) -> list[str]:
    """Which of ``modules`` the statements import; fails when they raise, or print to stdout."""
    script = "\n".join(
        [
            "import sys",
            f"sys.path[:] = {sys.path!r}",
            textwrap.dedent(statements),
            f"print({_MARK!r}, *[m for m in {list(modules)!r} if m in sys.modules])",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise AssertionError(f"failed in a fresh interpreter:\n{done.stderr}")
    before, _, found = done.stdout.rpartition(_MARK)
    if before:
        raise AssertionError(f"prints to stdout, which belongs to results: {before[:200]!r}")
    return found.split()
