"""The page of the command line, read from the declarations of the commands."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from dpspec.cli.app import command_names, declare
from generator.markdown import cell, tidy


def page() -> str:
    """Every command with its arguments and options."""
    lines = [
        "# The command line\n",
        "`dpspec COMMAND --help` prints the same text. Results go to standard output, everything else to standard "
        "error. `NO_COLOR` disables colors, and `COLUMNS` sets the width. See also [exit codes](exit-codes.md).\n",
    ]
    found = [(name, *_command(callback)) for name, callback in _commands()]
    counts = Counter(row for _, _, _, rows in found for row in rows)
    shared = [row for row, count in counts.items() if count > 2]
    lines += ["## Shared parameters\n", *(f"- {shown}: {text}" for shown, text in shared)]
    for name, usage, summary, rows in found:
        lines += [f"\n## `{name}`\n", f"```text\n{name} {usage} [OPTIONS]\n```\n", f"{summary}\n"]
        lines += [f"- {shown}: {text}" for shown, text in rows if (shown, text) not in shared]
        known = ", ".join(shown for shown, text in rows if (shown, text) in shared)
        lines += [f"- shared: {known}"] if known else []
    return tidy("\n".join(lines))


def _commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each command as it is typed, with its function."""
    for name in command_names():
        declared = declare(name)
        prefix = f"dpspec {declared.info.name}" if declared.info.name else "dpspec"
        for command in declared.registered_commands:
            assert command.callback is not None
            yield f"{prefix} {command.name}", command.callback


def _command(callback: Callable[..., Any]) -> tuple[str, str, list[tuple[str, str]]]:
    """The arguments in the order of use, the docstring, and a row (name, text) per parameter."""
    hints = get_type_hints(callback, include_extras=True)
    usage, rows = [], []
    for parameter in inspect.signature(callback).parameters.values():
        kind, info = _info(hints[parameter.name])
        if isinstance(info, typer.models.ArgumentInfo):
            shown = info.metavar or parameter.name.upper()
            optional = parameter.default is not parameter.empty
            usage.append((f"[{shown}]" if optional else shown) + ("..." if get_origin(kind) is list else ""))
        else:
            shown = _option(parameter, kind, info)
        rows.append((f"`{shown}`", f"{cell(info.help or '')}{_default(parameter, info)}"))
    return " ".join(usage), inspect.cleandoc(callback.__doc__ or ""), rows


def _info(hint: Any) -> tuple[Any, Any]:
    assert get_origin(hint) is Annotated
    kind, info = get_args(hint)[:2]
    return kind, info


def _option(parameter: inspect.Parameter, kind: Any, info: Any) -> str:
    # typer stores the first name of an annotated option as its default.
    declared = [text for text in (info.default, *(info.param_decls or ())) if str(text).startswith("-")]
    names = ", ".join(declared) or f"--{parameter.name.replace('_', '-')}"
    return names if kind is bool else f"{names} {info.metavar or parameter.name.upper()}"


def _default(parameter: inspect.Parameter, info: Any) -> str:
    shown = info.show_default and parameter.default not in (parameter.empty, None, False, [], "")
    return f" Default: `{cell(str(parameter.default))}`." if shown else ""
