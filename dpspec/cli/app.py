"""The program ``dpspec``: its commands, its entry point, and the exit code of each end.

An unexpected exception prints a report with versions, command and traceback, and no environment variables.
"""

import errno
import functools
import os
import platform
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, cast

import typer

try:
    from typer import TyperException
except ImportError:  # typer below 0.27, which Flower requires, raises the exceptions of click
    from click import ClickException as TyperException  # type: ignore[assignment]

from dpspec.cli import interrupt
from dpspec.cli.output import REFUSED, emit, flush, note, silence, tolerate_any_character
from dpspec.contract.commands import OWN_COMMANDS, Command
from dpspec.errors import DpspecError, ExitCode, PluginError, SpecError, UsageError
from dpspec.text import plain

TRACKER = "the dpspec issue tracker"


def _report_bug(error: BaseException, arguments: Sequence[str]) -> ExitCode:
    from dpspec.registry.loader import one_line, raised_by
    from dpspec.stores import shown
    from dpspec.version import VERSION

    plugin = raised_by(error)
    summary = one_line("".join(traceback.format_exception_only(error)).strip().partition("\n")[0])
    note(
        f"error: this is a bug in {f'plugin {plugin}' if plugin else 'dpspec'}: {summary}\n"
        f"Please send this report to {f'the authors of {plugin}' if plugin else TRACKER}:\n\n"
        f"dpspec {VERSION}, {platform.python_implementation()} {platform.python_version()}, {platform.platform()}\n"
        f"{shlex.join(['dpspec', *map(shown, arguments)])}\n{''.join(traceback.format_exception(error))}"
    )
    return ExitCode.PLUGIN if plugin else ExitCode.BUG


def run_to_exit_code(command: Callable[[], object], arguments: Sequence[str]) -> int:
    """An unexpected exception is a bug (70)."""
    try:
        code = _outcome(command, arguments)
    except KeyboardInterrupt:
        code = _interrupted(arguments)
    except (Exception, SystemExit) as error:  # the report of an error may fail, and a plugin may call sys.exit
        code = _report_bug(error, arguments)
    flush()
    return int(code)


#: The libraries that the distribution ``dpspec-core`` does not install.
_OF_TRAINING = ("torch", "sklearn", "safetensors")


def _outcome(command: Callable[[], object], arguments: Sequence[str]) -> int:
    try:
        try:
            answer = command()
        except BaseException as error:
            if interrupt.heard():  # after Ctrl-C any exception is an interruption
                raise KeyboardInterrupt from error
            raise
    except DpspecError as error:
        if isinstance(error, SpecError | PluginError) and error.diagnostics:
            from dpspec.cli.arguments import show_diagnostics

            show_diagnostics(error.diagnostics, {})
        else:
            note(f"error: {_said(error)}")
        return error.exit_code
    except TyperException as error:
        _show_usage(error)
        return ExitCode.USAGE
    except SystemExit as end:
        # typer raises this if the reader of a help text has closed the pipe. Other commands handle that themselves.
        if "_DPSPEC_COMPLETE" in os.environ or {"--show-completion", "--install-completion"} & set(arguments):
            return end.code if isinstance(end.code, int) else ExitCode.OK  # typer ends completion by this
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
        if error.errno not in REFUSED:
            raise
        refusal = UsageError(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
        note(f"error: {_said(refusal)}")
        return refusal.exit_code
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in _OF_TRAINING:
            note(f"error: this command needs {error.name}: install dpspec in place of dpspec-core")
            return ExitCode.USAGE
        plugin = _plugin_of_another_version(error)
        if not plugin:
            raise
        from dpspec.version import VERSION

        note(
            f"error: plugin {plugin} was written for another version of dpspec than {VERSION} ({_said(error)}): "
            "install a version of the plugin that supports this one"
        )
        return ExitCode.PLUGIN
    except Exception as error:
        out_of_memory = isinstance(error, MemoryError)
        if not out_of_memory and "torch" in sys.modules:
            from dpspec.training.gradients.memory import ran_out

            out_of_memory = ran_out(error)
        if not out_of_memory:
            raise
        note(
            f"error: out of memory: {_said(error).splitlines()[0]}\n"
            "Finished trials are stored: run the same command again to resume. Fewer --workers, another --device or a "
            "smaller model need less."
        )
        return ExitCode.INCOMPLETE
    if answer == ExitCode.INTERRUPTED:
        return _interrupted(arguments)
    return answer if isinstance(answer, int) else ExitCode.OK


def _plugin_of_another_version(error: ImportError | AttributeError) -> str:
    """The plugin whose code asked dpspec for a module or a name that this version does not have; empty if none did."""
    if isinstance(error, ImportError):
        module = error.name or ""
    else:
        module = error.obj.__name__ if isinstance(error.obj, ModuleType) else ""
    if module.partition(".")[0] != "dpspec":
        return ""
    from dpspec.registry.loader import raised_by

    return raised_by(error)


def _interrupted(arguments: Sequence[str]) -> int:
    terminated = interrupt.heard() is signal.SIGTERM
    interrupt.forget()
    cause = "Terminated" if terminated else "Interrupted"
    advice = " Finished trials are stored: run the same command again to resume." if "run" in arguments[:1] else ""
    note(f"\n{cause}.{advice}")
    return ExitCode.TERMINATED if terminated else ExitCode.INTERRUPTED


def _show_usage(error: TyperException) -> None:
    text = error.format_message().replace(": Value error, ", ": ")  # pydantic's words for a choice
    if text.startswith("Usage: "):  # a group without a command shows its help
        note(text)
        return
    note(f"error: {_said(UsageError(text))}")
    context = getattr(error, "ctx", None)
    if context is not None:
        note(f"{context.get_usage()}\nTry '{context.command_path} -h' for help.")


def _said(error: Exception) -> str:
    return "\n".join(map(plain, str(error).splitlines())) or type(error).__name__


app = typer.Typer(
    name="dpspec",
    help="Is the privacy that is claimed for a training pipeline true? Audits from a declarative spec.",
    epilog=(
        "Exit codes: 0 every claim is as expected, 1 some are not, 2 usage, 3 spec invalid, 4 plugin missing or "
        "broken, 5 nothing to run, 6 incomplete (a re-run resumes), 7 some values could not be recomputed (verify), 70 "
        "a bug in dpspec, 130 interrupted, 143 terminated."
    ),
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

#: Commands of plugins that come with dpspec, for the message if such a plugin is missing.
_IN_PLUGINS = {"record": "recording", "check": "recording", "rules": "recording"}

_OWN = {command.name: command for command in OWN_COMMANDS}


def command_names() -> tuple[str, ...]:
    """The names of all commands; commands of plugins come last."""
    from dpspec.registry.loader import load_catalog

    return (*_OWN, *load_catalog().commands)


def declare(name: str) -> typer.Typer:
    """The declaration of a command or of a group of commands. Its module is imported.

    Raises:
        KeyError: No command has the name.
        PluginError: It is a command of a plugin of dpspec that is missing or broken.
    """
    if command := _OWN.get(name):
        module, _, attribute = command.function.partition(":")
        code = getattr(import_module(module), attribute)
    else:
        command = _offered(name)
        code = _code_of(command)
    if isinstance(code, typer.Typer):
        return code
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    single.command(name, short_help=command.summary)(code)
    return single


def _offered(name: str) -> Command:
    """The descriptor of a plugin's command."""
    from dpspec.registry.loader import load_catalog

    catalog = load_catalog()
    if name in catalog.commands:
        command: Command = catalog.commands[name].provider
        return command
    if name not in _IN_PLUGINS:
        raise KeyError(name)
    reasons = [broken.reason for broken in catalog.broken if broken.plugin == _IN_PLUGINS[name]]
    state = f"broken: {reasons[0]}" if reasons else "not installed"
    raise PluginError(f"`dpspec {name}` is a command of dpspec's plugin {_IN_PLUGINS[name]!r}, which is {state}")


def _code_of(command: Command) -> Any:
    """The code of a plugin's command; a function that raises the error if it cannot be imported, for the help text."""
    from dpspec.registry.loader import resolve

    try:
        return resolve(command.function)
    except PluginError as error:
        failure = error

    def fail() -> None:
        raise failure

    return fail


@functools.cache
def _build(name: str) -> Any:
    return typer.main.get_command(declare(name))


class _Commands(Mapping[str, Any]):
    """The commands by name, each built at its first use: building all commands takes as long as importing typer."""

    def __getitem__(self, name: str) -> Any:
        return _build(name)  # KeyError for an unknown name

    def __iter__(self) -> Iterator[str]:
        return iter(command_names())

    def __len__(self) -> int:
        return len(command_names())


def _version(requested: bool) -> None:
    if requested:
        from dpspec.version import VERSION

        emit(f"dpspec {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Is the privacy that is claimed for a training pipeline true? Audits from a declarative spec."""


_ROOT = typer.main.get_command(app)
cast("typer.core.TyperGroup", _ROOT).commands = cast("dict[str, Any]", _Commands())


def main(arguments: Sequence[str] | None = None) -> int:
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    tolerate_any_character()
    return run_to_exit_code(lambda: _ROOT(args=command_line, prog_name="dpspec", standalone_mode=False), command_line)
