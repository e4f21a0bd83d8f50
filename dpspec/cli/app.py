"""The program ``dpspec``: its commands and its entry point."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from dpspec.cli.commands import cache, check, explain, new, planning, plugins, results, run, specs
from dpspec.cli.exit_codes import run_to_exit_code
from dpspec.cli.output import emit, results_apart, tolerate_any_character

app = typer.Typer(
    name="dpspec",
    help="Is the privacy that is claimed for a training pipeline true? Audits from a declarative spec.",
    epilog=(
        "Exit codes: 0 every claim is as expected, 1 some are not, 2 usage, 3 spec invalid, 4 plugin missing or "
        "broken, 5 nothing to run, 6 incomplete (a re-run resumes), 7 some values could not be recomputed (verify), 70 "
        "a bug in dpspec, 130 interrupted."
    ),
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("init", short_help="Write a first spec and the schema for editors.")(new.init)
app.command("validate", short_help="Show every problem of specs.")(specs.validate)
app.command("show", short_help="Print specs with every default filled in.")(specs.show)
app.command("plan", short_help="Estimate the cost and the power of a run.")(planning.plan)
app.command("run", short_help="Audit specs: a verdict for every claim.")(run.run)
app.command("report", short_help="Show a result again, in any format.")(results.report)
app.command("verify", short_help="Recompute a result from its own evidence.")(results.verify)
app.command("diff", short_help="Show what changed between two results.")(results.diff)
app.command("calibrate", short_help="Find the minimum noise, maximum steps, ... for claims.")(planning.calibrate)
app.command("check", short_help="Compare a recorded training with a claim.")(check.check)
app.command("explain", short_help="Explain a diagnostic code, a key, a kind or a verdict.")(explain.explain)
app.command("plugins", short_help="List the providers of installed plugins.")(plugins.plugins)
app.command("schema", short_help="Print the JSON Schema of specs or results.")(specs.schema)
app.add_typer(new.app, name="new")
app.add_typer(cache.app, name="cache")


def _version(wanted: bool) -> None:
    if wanted:
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


@functools.cache
def _commands() -> Callable[..., object]:
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    tolerate_any_character()
    with results_apart():
        return run_to_exit_code(lambda: _commands()(args=given, prog_name="dpspec", standalone_mode=False), given)
