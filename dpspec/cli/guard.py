"""How a command ends: every way out has its own exit code, and a finding never shares one with a crash."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence

import typer

from dpspec.cli import interrupt
from dpspec.cli.bug import leave_report
from dpspec.cli.output import flush, note, silence, wants_color
from dpspec.errors import DpspecError, ExitCode, PluginError, SpecError, UsageError

#: What the system refuses for reasons of its own: rights, and room on a disk.
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def guarded(command: Callable[[], object], arguments: Sequence[str]) -> int:
    """Run a command to its exit code; only an exception that nobody foresaw is a bug (70)."""
    try:
        code = _outcome(command, arguments)
    except KeyboardInterrupt:
        code = _interrupted()
    except Exception as error:  # telling of an error may fail as well
        note(leave_report(error, arguments))
        code = ExitCode.BUG
    flush()
    return int(code)


def _outcome(command: Callable[[], object], arguments: Sequence[str]) -> int:
    try:
        answer = _heeded(command)
    except (SpecError, PluginError) as error:
        tell(error)
        return error.exit_code
    except DpspecError as error:
        note(f"error: {_shown(error)}")
        return error.exit_code
    except typer.TyperException as error:
        _show_usage(error)
        return ExitCode.USAGE
    except SystemExit as end:
        # typer leaves this way when a reader has gone. For a help text that is fine; what our commands write forgives
        # it by itself, so that anything else must not pass for a good end.
        gone = isinstance(end.__context__, OSError) and end.__context__.errno == errno.EPIPE
        if gone and {"--help", "-h"} & set(arguments):
            silence("stdout")
            return ExitCode.OK
        note(leave_report(end, arguments))
        return ExitCode.BUG
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        told = UsageError(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
        note(f"error: {_shown(told)}")
        return told.exit_code
    except Exception as error:
        if not _ran_out(error):
            raise
        return _starved(error)
    if answer == ExitCode.INTERRUPTED:
        return _interrupted()
    return answer if isinstance(answer, int) else ExitCode.OK


def _heeded(command: Callable[[], object]) -> object:
    """Run a command; whatever it raises once Ctrl-C was pressed is an interruption."""
    try:
        return command()
    except BaseException as error:
        if interrupt.heard():
            raise KeyboardInterrupt from error
        raise


def tell(error: SpecError | PluginError) -> None:
    """Print the diagnostics of an error on stderr, or its text where it has none."""
    if not error.diagnostics:
        note(f"error: {_shown(error)}")
        return
    from dpspec.spec.render import render

    note(render(error.diagnostics, color=wants_color(sys.stderr)))


def _interrupted() -> int:
    note("\nInterrupted. Trials that ended are stored: running the same command again resumes from there.")
    return ExitCode.INTERRUPTED


def _ran_out(error: Exception) -> bool:
    """Whether an error says that there is not enough memory, of this machine or of a GPU."""
    if isinstance(error, MemoryError):
        return True
    if "torch" not in sys.modules:
        return False
    from dpspec.training.memory import ran_out

    return ran_out(error)


def _starved(error: Exception) -> ExitCode:
    said = _shown(error).splitlines()[0]
    note(
        f"error: out of memory: {said}\n"
        "Trials that ended are stored: running the same command again resumes from there. Fewer --workers, another "
        "--device or a smaller model take less."
    )
    return ExitCode.INCOMPLETE


def _show_usage(error: typer.TyperException) -> None:
    """What is wrong with a command line, then how it is written; a group without a command shows its help."""
    text = error.format_message()
    if text.startswith("Usage: "):
        note(text)
        return
    note(f"error: {_shown(UsageError(text))}")
    context = getattr(error, "ctx", None)
    if context is not None:
        note(f"{context.get_usage()}\nTry '{context.command_path} -h' for help.")


def _shown(error: Exception) -> str:
    """An error's text with everything invisible written out, line by line."""
    from dpspec.reporters.escape import plain

    return "\n".join(plain(line) for line in str(error).splitlines()) or type(error).__name__
