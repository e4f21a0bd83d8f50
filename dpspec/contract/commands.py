"""Commands of the program ``dpspec``, which plugins extend with the hook ``dpspec_commands``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OWN_COMMANDS", "Command"]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of the program ``dpspec``. A plugin cannot replace a command of dpspec.

    Attributes:
        name: Lower-case letters, digits and hyphens, as in ``dpspec NAME``.
        summary: The line in ``dpspec --help``.
        function: Names a function whose annotated parameters typer reads, or a ``typer.Typer`` with further commands.
            An integer that it returns is the exit code.
    """

    name: str
    summary: str
    function: str


#: dpspec's own commands, in the order of the help text.
OWN_COMMANDS = tuple(
    Command(name=name, summary=summary, function=f"dpspec.cli.{module}:{name}")
    for name, module, summary in (
        ("validate", "specs", "Show every problem of specs."),
        ("show", "specs", "Print specs with every default filled in."),
        ("plan", "specs", "Estimate the cost and the power of a run."),
        ("run", "run", "Audit specs: a verdict for every claim."),
        ("report", "results", "Show a result again, in any format."),
        ("verify", "results", "Recompute a result from its own evidence."),
        ("diff", "results", "Show what changed between two results."),
        ("calibrate", "specs", "Find the minimum noise, maximum steps, ... for claims."),
        ("ledger", "ledger", "Add up all releases on one dataset against a budget."),
        ("epsilon", "epsilon", "Compute the certified epsilon of a schedule, without a spec."),
        ("explain", "explain", "Explain a diagnostic code, a key, a kind or a verdict."),
        ("plugins", "plugins", "List the providers of installed plugins."),
        ("schema", "specs", "Print the JSON Schema of specs or results."),
        ("new", "new", "Write a spec, a plugin, or a part of a project to start from."),
    )
)
