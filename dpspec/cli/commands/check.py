"""``dpspec check``: a recorded training and a claim about it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.arguments import Internal
from dpspec.cli.output import emit
from dpspec.errors import UsageError


class Adjacency(StrEnum):
    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add-remove"


def check(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that dpspec.record wrote.")],
    delta: Annotated[float, typer.Option(metavar="D", help="The delta of the claim, above 0 and below 1.")] = 1e-5,
    epsilon: Annotated[
        float | None,
        typer.Option(metavar="E", help="The claimed epsilon; without a claim the command never ends with 0."),
    ] = None,
    group_size: Annotated[
        list[int],
        typer.Option(
            "--group-size",
            metavar="K",
            help="The number of records of a group; the first is that of the claim. Repeatable; 1 by default.",
        ),
    ] = [],  # noqa: B006 - typer copies it
    adjacency: Annotated[
        Adjacency,
        typer.Option(
            "--adjacency",
            help="zero-out: a null record replaces a record, and the number of records is public. add-remove: the "
            "number is private.",
        ),
    ] = Adjacency.ZERO_OUT,
    data_independent_hyperparameters: Annotated[
        bool,
        typer.Option(
            "--data-independent-hyperparameters",
            "--public-constants",
            help="Declare that no hyperparameter depends on the records: --public with every name.",
        ),
    ] = False,
    public: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Declare that a hyperparameter does not depend on the records: learning_rate, weight_decay, "
            "clip_norm, divisor, ... Repeatable.",
        ),
    ] = [],  # noqa: B006
    assume: Annotated[
        list[str],
        typer.Option(
            metavar="NAME", help="Assume an open channel or assumption of the recording. A proof names it. Repeatable."
        ),
    ] = [],  # noqa: B006
    reports: Annotated[
        list[str],
        typer.Option(
            "--report",
            metavar="FORMAT=PATH",
            help="Also write a report (html, json, markdown, ...; see `dpspec plugins`), '-' for stdout; repeatable.",
        ),
    ] = [],  # noqa: B006
    internal: Internal = False,
    every: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", "--all", help="Print the whole report: findings, every check, assumptions, limits."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON: --report json=-.")] = False,
) -> int:
    """Compare a recorded training with a claim: the executed schedule, its epsilon, its accountant's figure.

    Scored canaries (dpspec.plant) are evidence: they may refute the claim, or contradict the recording.

    Ends with 0 if the claim is proved for the executed schedule and the run conforms, with 1 if not, with 5 if there is
    no claim and the run conforms, or no step was recorded, and with 3 if the folder has no recorded run, or was
    changed. `dpspec run` of a spec that names the folder gives the same verdict.
    """
    if not 0.0 < delta < 1.0:
        raise UsageError(f"--delta must be above 0 and below 1, got {delta!r}")
    if epsilon is not None and not 0.0 <= epsilon < float("inf"):
        raise UsageError(f"--epsilon must be finite and not negative, got {epsilon!r}")
    if any(not 1 <= size <= 10_000 for size in group_size):
        raise UsageError("--group-size must be from 1 to 10000")
    from dpspec.cli.report_files import parse_reports, show_on_terminal, write_reports
    from dpspec.engine.recorded.check import RunClaim, check_run, exit_code_of
    from dpspec.registry.loader import load_catalog
    from dpspec.reporters.summary import tally

    catalog = load_catalog()
    report_files = parse_reports([*reports, *(["json=-"] if as_json else [])], catalog)
    sizes = tuple(dict.fromkeys([*group_size, 1] if group_size else [1]))
    claim = RunClaim(
        delta=delta,
        epsilon=epsilon,
        group_sizes=sizes,
        adjacency=adjacency.value,
        data_independent_hyperparameters=data_independent_hyperparameters,
        assume=tuple(dict.fromkeys(assume)),
        public=tuple(dict.fromkeys(public)),
    )
    result = check_run(run, claim, catalog)
    write_reports(report_files, result, internal=internal)
    if not any(report.to_stdout for report in report_files):
        show_on_terminal(result, internal=internal, brief=not every)
        emit(tally(result))
    return exit_code_of(result)
