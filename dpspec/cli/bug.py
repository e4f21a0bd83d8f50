"""A bug leaves a report that can be sent as it is: what ran, where and the traceback; no environment variables."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

TRACKER = "the dpspec issue tracker"


def bug_report(error: BaseException, arguments: Sequence[str]) -> str:
    """The text of a bug report, in Markdown."""
    from dpspec import __version__

    lines = [
        "# dpspec: unexpected error",
        "",
        f"- dpspec: {__version__}",
        f"- python: {platform.python_implementation()} {platform.python_version()}",
        f"- platform: {platform.platform()}",
        f"- command: `{shlex.join(['dpspec', *arguments])}`",
        "",
        "```",
        "".join(traceback.format_exception(error)).rstrip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def leave_report(error: BaseException, arguments: Sequence[str]) -> str:
    """Write the bug report to a file and return the short text for stderr.

    Where no file can be written the text holds the whole report.
    """
    report = bug_report(error, arguments)
    summary = "".join(traceback.format_exception_only(error)).strip().split("\n")[0]
    told = f"error: this is a bug in dpspec: {summary}"
    try:
        place = _write(report)
    except OSError:
        return f"{told}\n\n{report}"
    return f"{told}\nA report is in {place}: please look it over and send it to {TRACKER}."


def _write(report: str) -> Path:
    handle, name = tempfile.mkstemp(prefix="dpspec-bug-", suffix=".md")
    with os.fdopen(handle, "w", encoding=sys.getfilesystemencoding(), errors="backslashreplace") as out:
        out.write(report)
    return Path(name)
