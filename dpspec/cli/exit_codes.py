"""Map the end of a command to an exit code, and write a report of a bug.

The report has versions, command and traceback, and no environment variables.
"""

from __future__ import annotations

import errno
import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from dpspec.cli import interrupt
from dpspec.cli.output import flush, note, silence, wants_color
from dpspec.errors import DpspecError, ExitCode, PluginError, SpecError, UsageError
from dpspec.text import plain_lines

TRACKER = "the dpspec issue tracker"


def bug_report(error: BaseException, arguments: Sequence[str]) -> str:
    """Return a bug report in Markdown."""
    from dpspec.stores.storage import shown
    from dpspec.text import harmless
    from dpspec.version import VERSION

    lines = [
        "# dpspec: unexpected error",
        "",
        f"- dpspec: {VERSION}",
        f"- python: {platform.python_implementation()} {platform.python_version()}",
        f"- platform: {platform.platform()}",
        f"- command: `{shlex.join(['dpspec', *map(shown, arguments)])}`",
        "",
        "```",
        harmless("".join(traceback.format_exception(error)).rstrip()),
        "```",
        "",
    ]
    return "\n".join(lines)


def leave_report(error: BaseException, arguments: Sequence[str]) -> tuple[str, ExitCode]:
    """Write a bug report to a file; return a text for stderr and the exit code.

    If no file can be written, the text contains the report.
    """
    from dpspec.registry.foreign_code import one_line
    from dpspec.registry.loader import raised_by

    report = bug_report(error, arguments)
    summary = one_line("".join(traceback.format_exception_only(error)).strip().partition("\n")[0])
    plugin = raised_by(error)
    code = ExitCode.PLUGIN if plugin else ExitCode.BUG
    message = f"error: this is a bug in {f'plugin {plugin}' if plugin else 'dpspec'}: {summary}"
    try:
        place = _write(report)
    except OSError:
        return f"{message}\n\n{report}", code
    readers = f"the authors of {plugin}" if plugin else TRACKER
    return f"{message}\nA report is in {place}: please review it and send it to {readers}.", code


def _write(report: str) -> Path:
    handle, name = tempfile.mkstemp(prefix="dpspec-bug-", suffix=".md")
    with os.fdopen(handle, "w", encoding=sys.getfilesystemencoding(), errors="backslashreplace") as out:
        out.write(report)
    return Path(name)


#: Errors of permissions and of a full disk.
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def run_to_exit_code(command: Callable[[], object], arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; an unexpected exception is a bug (70)."""
    try:
        code = _outcome(command, arguments)
    except KeyboardInterrupt:
        code = _interrupted()
    except (Exception, SystemExit) as error:  # the report of an error may fail, and a plugin may call sys.exit
        code = _report_bug(error, arguments)
    flush()
    return int(code)


def _outcome(command: Callable[[], object], arguments: Sequence[str]) -> int:
    try:
        answer = _run_interruptible(command)
    except (SpecError, PluginError) as error:
        tell(error)
        return error.exit_code
    except DpspecError as error:
        note(f"error: {_said(error)}")
        return error.exit_code
    except typer.TyperException as error:
        _show_usage(error)
        return ExitCode.USAGE
    except SystemExit as end:
        # typer raises this if the reader of a help text has closed the pipe. Other commands handle that themselves.
        gone = isinstance(end.__context__, OSError) and end.__context__.errno == errno.EPIPE
        if gone and {"--help", "-h"} & set(arguments):
            silence("stdout")
            return ExitCode.OK
        return _report_bug(end, arguments)
    except OSError as error:
        if _is_adrift():
            note("error: the working directory is gone: change to one that exists")
            return ExitCode.USAGE
        if error.errno not in _REFUSED:
            raise
        refusal = UsageError(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
        note(f"error: {_said(refusal)}")
        return refusal.exit_code
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        return _report_out_of_memory(error)
    if answer == ExitCode.INTERRUPTED:
        return _interrupted()
    return answer if isinstance(answer, int) else ExitCode.OK


def _run_interruptible(command: Callable[[], object]) -> object:
    """Run a command; after Ctrl-C any exception is an interruption."""
    try:
        return command()
    except BaseException as error:
        if interrupt.heard():
            raise KeyboardInterrupt from error
        raise


def _report_bug(error: BaseException, arguments: Sequence[str]) -> ExitCode:
    """Print a bug report."""
    text, code = leave_report(error, arguments)
    note(text)
    return code


def tell(error: SpecError | PluginError) -> None:
    """Print the diagnostics of an error on stderr, or its text without diagnostics."""
    if not error.diagnostics:
        note(f"error: {_said(error)}")
        return
    from dpspec.language.diagnostics import render

    note(render(error.diagnostics, color=wants_color(sys.stderr)))


def _interrupted() -> int:
    note("\nInterrupted. Finished trials are stored: run the same command again to resume.")
    return ExitCode.INTERRUPTED


def _is_adrift() -> bool:
    """Whether the working directory was deleted."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _is_out_of_memory(error: Exception) -> bool:
    """Whether the machine or a GPU lacks memory."""
    if isinstance(error, MemoryError):
        return True
    if "torch" not in sys.modules:
        return False
    from dpspec.training.gradients.memory import ran_out

    return ran_out(error)


def _report_out_of_memory(error: Exception) -> ExitCode:
    said = _said(error).splitlines()[0]
    note(
        f"error: out of memory: {said}\n"
        "Finished trials are stored: run the same command again to resume. Fewer --workers, another --device or a "
        "smaller model need less."
    )
    return ExitCode.INCOMPLETE


def _show_usage(error: typer.TyperException) -> None:
    """The error of a command line and its usage; a group without a command shows its help."""
    text = error.format_message()
    if text.startswith("Usage: "):
        note(text)
        return
    note(f"error: {_said(UsageError(text))}")
    context = getattr(error, "ctx", None)
    if context is not None:
        note(f"{context.get_usage()}\nTry '{context.command_path} -h' for help.")


def _said(error: Exception) -> str:
    """An error's text, escaped; its type if it has no text."""
    return plain_lines(str(error)) or type(error).__name__
