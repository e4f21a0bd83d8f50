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
from typing import Any

import typer

from dpspec.cli import interrupt
from dpspec.cli.output import flush, note, silence, wants_color
from dpspec.errors import DpspecError, ExitCode, PluginError, SpecError, UsageError
from dpspec.text import clipped, closest, did_you_mean, plain_lines

TRACKER = "the dpspec issue tracker"


def leave_report(error: BaseException, arguments: Sequence[str]) -> tuple[str, ExitCode]:
    """Return a text for stderr, with the report if no file can be written."""
    from dpspec.registry.foreign_code import one_line
    from dpspec.registry.loader import raised_by
    from dpspec.stores.folder import shown
    from dpspec.text import harmless
    from dpspec.version import VERSION

    report = "\n".join(
        [
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
    )
    summary = one_line("".join(traceback.format_exception_only(error)).strip().partition("\n")[0])
    plugin = raised_by(error)
    code = ExitCode.PLUGIN if plugin else ExitCode.BUG
    message = f"error: this is a bug in {f'plugin {plugin}' if plugin else 'dpspec'}: {summary}"
    try:
        handle, place = tempfile.mkstemp(prefix="dpspec-bug-", suffix=".md")
        with os.fdopen(handle, "w", encoding=sys.getfilesystemencoding(), errors="backslashreplace") as out:
            out.write(report)
    except OSError:
        return f"{message}\n\n{report}", code
    readers = f"the authors of {plugin}" if plugin else TRACKER
    return f"{message}\nA report is in {Path(place)}: please review it and send it to {readers}.", code


#: Errors of permissions and of a full disk.
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def run_to_exit_code(command: Callable[[], object], arguments: Sequence[str]) -> int:
    """An unexpected exception is a bug (70)."""
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
        try:
            answer = command()
        except BaseException as error:
            if interrupt.heard():  # after Ctrl-C any exception is an interruption
                raise KeyboardInterrupt from error
            raise
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
        try:
            os.getcwd()
        except OSError:
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
        note(
            f"error: out of memory: {_said(error).splitlines()[0]}\n"
            "Finished trials are stored: run the same command again to resume. Fewer --workers, another --device or a "
            "smaller model need less."
        )
        return ExitCode.INCOMPLETE
    if answer == ExitCode.INTERRUPTED:
        return _interrupted()
    return answer if isinstance(answer, int) else ExitCode.OK


def _report_bug(error: BaseException, arguments: Sequence[str]) -> ExitCode:
    text, code = leave_report(error, arguments)
    note(text)
    return code


def tell(error: SpecError | PluginError) -> None:
    if not error.diagnostics:
        note(f"error: {_said(error)}")
        return
    from dpspec.language.diagnostics import render

    note(render(error.diagnostics, color=wants_color(sys.stderr)))


def _interrupted() -> int:
    note("\nInterrupted. Finished trials are stored: run the same command again to resume.")
    return ExitCode.INTERRUPTED


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError) or "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from dpspec.training.gradients.memory import ran_out

    return ran_out(error)


#: What pydantic, which reads the options, requires of a value.
_REQUIRED = {"greater_than_equal": "at least {ge:g}", "int_parsing": "an integer", "float_parsing": "a number"}


def _usage_text(error: typer.TyperException) -> str:
    cause: Any = error.__cause__
    wrong: dict[str, Any] = next(iter(cause.errors()), {}) if hasattr(cause, "errors") else {}
    required = _REQUIRED.get(wrong.get("type", ""), "").format(**wrong.get("ctx", {}))
    option = next(iter(getattr(getattr(error, "param", None), "opts", ())), "")
    if required and option:
        return f"{option} must be {required}, got {clipped(str(wrong.get('input')))}"
    name = getattr(error, "option_name", "")
    if not name:
        return error.format_message()
    near = closest(name, getattr(error, "possibilities", None) or ())
    return f"No such option: {clipped(name)}{did_you_mean(near)}"


def _show_usage(error: typer.TyperException) -> None:
    text = _usage_text(error)
    if text.startswith("Usage: "):  # a group without a command shows its help
        note(text)
        return
    note(f"error: {_said(UsageError(text))}")
    context = getattr(error, "ctx", None)
    if context is not None:
        note(f"{context.get_usage()}\nTry '{context.command_path} -h' for help.")


def _said(error: Exception) -> str:
    return plain_lines(str(error)) or type(error).__name__
