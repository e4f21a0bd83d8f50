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
    from dpspec.stores.shelf import shown

    lines = [
        "# dpspec: unexpected error",
        "",
        f"- dpspec: {__version__}",
        f"- python: {platform.python_implementation()} {platform.python_version()}",
        f"- platform: {platform.platform()}",
        f"- command: `{shlex.join(['dpspec', *map(shown, arguments)])}`",
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
    plugin = _plugin(error)
    told = f"error: this is a bug in {f'plugin {plugin}' if plugin else 'dpspec'}: {summary}"
    try:
        place = _write(report)
    except OSError:
        return f"{told}\n\n{report}"
    readers = f"the authors of {plugin}" if plugin else TRACKER
    return f"{told}\nA report is in {place}: please look it over and send it to {readers}."


def _plugin(error: BaseException) -> str:
    """The distribution of the plugin whose code an error came out of; empty where that is dpspec's own."""
    from dpspec.registry.loader import load_registry

    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [str(name).partition(".")[0] for name in modules]
    if "dpspec" not in packages:
        return ""
    offering: dict[str, str] = {}
    for name, plugin in load_registry().manager.list_name_plugin():
        module = getattr(plugin, "__name__", type(plugin).__module__)
        offering[module.partition(".")[0]] = name.partition(":")[0]
    deepest = next((offering[package] for package in reversed(packages) if package in offering), "dpspec")
    return "" if deepest == "dpspec" else deepest


def _write(report: str) -> Path:
    handle, name = tempfile.mkstemp(prefix="dpspec-bug-", suffix=".md")
    with os.fdopen(handle, "w", encoding=sys.getfilesystemencoding(), errors="backslashreplace") as out:
        out.write(report)
    return Path(name)
