"""``dpspec check``, a recorded training and a claim about it, and ``dpspec rules``."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from dpspec.cli.arguments import GroupSizes, Internal, Reports, Verbose, group_sizes, load_project, show_diagnostics
from dpspec.cli.output import (
    ShownError,
    emit,
    failures_in_reports,
    page_width,
    parse_reports,
    show_on_terminal,
    write_reports,
)
from dpspec.errors import SpecError, UsageError

if TYPE_CHECKING:
    from dpspec.contract import Result

Delta: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="D",
        help="The delta of the claim, above 0 and below 1; by default 1e-5, or without a claim about RUN the largest "
        "power of ten below 1 over the number of records, if that is smaller.",
    ),
]

Epsilon: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="E", help="The claimed epsilon; without a claim the command never ends with 0."),
]

Adjacency: TypeAlias = Annotated[
    Literal["zero-out", "add-remove", "replace-one"] | None,
    typer.Option(
        "--adjacency",
        help="zero-out (default of RUN): a null record replaces a record, and the number of records is public. "
        "add-remove (default of --history): the number is private. replace-one: for --history only.",
    ),
]

Public: TypeAlias = Annotated[
    list[str],
    typer.Option(
        metavar="NAME",
        help="Declare that a hyperparameter does not depend on the records: learning_rate, weight_decay, "
        "clip_norm, divisor, ... Repeatable.",
    ),
]

Assume: TypeAlias = Annotated[
    list[str],
    typer.Option(
        metavar="NAME",
        help="Accept NAME as true although the recording cannot show it; the verdict lists it. Repeatable.",
    ),
]

Accept: TypeAlias = Annotated[
    list[str],
    typer.Option(
        metavar="RULE", help="Accept the caution of a rule, or not-replayed; the report names it. Repeatable."
    ),
]


def check(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="The folder that dpspec.record wrote.", show_default=False)
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead of RUN: the history that an accountant declares, as JSON of Opacus (accountant.state_dict()) "
            "or of dp-accounting (event.to_named_tuple()).",
        ),
    ] = None,
    delta: Delta = None,
    epsilon: Epsilon = None,
    group_size: GroupSizes = [],  # noqa: B006 - typer copies it
    adjacency: Adjacency = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The model to be released (.safetensors, or .pt of torch.save): its tensors must be those at the "
            "recording's end.",
        ),
    ] = None,
    public: Public = [],  # noqa: B006
    assume: Assume = [],  # noqa: B006
    accept: Accept = [],  # noqa: B006
    select: Annotated[
        list[str], typer.Option(metavar="RULE", help="Evaluate only these rules (see `dpspec rules`). Repeatable.")
    ] = [],  # noqa: B006
    ignore: Annotated[list[str], typer.Option(metavar="RULE", help="Do not evaluate a rule. Repeatable.")] = [],  # noqa: B006
    declare: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A YAML file with facts for statements that no recording shows: owner, contact, system, description, "
            "deployment and data.collection, as in a spec.",
        ),
    ] = None,
    reports: Reports = [],  # noqa: B006
    internal: Internal = False,
    verbose: Verbose = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only one line.")] = False,
) -> int:
    """Compare a recorded training with a claim: the executed schedule, its epsilon, its accountant's figure.

    Scored canaries (dpspec.plant) are evidence: they may refute the claim, or contradict the recording.

    Ends with 0 if the claim is proved for the executed schedule and the run conforms, with 1 if not, with 5 if there is
    no claim and the run conforms, or no step was recorded, and with 3 if the folder has no recorded run, or was
    changed. `dpspec run` of a spec that names the folder gives the same verdict.

    --history judges the releases that an accountant declares, with the same exit codes. It observes no training.
    """
    from dpspec.language.declared_facts import read_declared_facts
    from dpspec_recording.judge.check import check_run, usual_delta
    from dpspec_recording.judge.run_claim import RunClaim

    if verbose and quiet:
        raise UsageError("--verbose and --quiet exclude each other: remove one")
    sizes = tuple(dict.fromkeys([*group_sizes(group_size), 1]))
    if history is not None:
        names = {
            "RUN": run,
            "--model": model,
            "--declare": declare,
            "--public": public,
            "--assume": assume,
            "--accept": accept,
        }
        surplus = [name for name, value in {**names, "--select": select, "--ignore": ignore}.items() if value]
        if surplus:
            raise UsageError(f"{surplus[0]} does not apply to --history: remove it")
        relation = adjacency or "add-remove"
        display = Display(internal=internal, verbose=verbose, quiet=quiet)
        return _check_history(history, epsilon, 1e-5 if delta is None else delta, sizes, relation, reports, display)
    if run is None:
        raise UsageError("RUN is missing: give the folder that dpspec.record wrote, or --history FILE")
    relation = adjacency or "zero-out"
    if delta is None:
        delta = usual_delta(run, relation) if epsilon is None else 1e-5
    claim = RunClaim(
        delta=delta,
        epsilon=epsilon,
        group_sizes=sizes,
        adjacency=relation,
        assume=tuple(dict.fromkeys(assume)),
        public=tuple(dict.fromkeys(public)),
        accept=tuple(dict.fromkeys(accept)),
        select=tuple(dict.fromkeys(select)),
        ignore=tuple(dict.fromkeys(ignore)),
    )
    claim.require_valid()
    catalog = load_project()
    report_files = parse_reports(reports, catalog)
    with failures_in_reports(report_files):
        try:
            result = check_run(run, claim, catalog, model, declare)
        except SpecError as error:
            if declare is None:
                raise
            show_diagnostics(error.diagnostics, {str(declare): read_declared_facts(declare).text})
            raise ShownError(error.exit_code, error.diagnostics) from None
    if not any(report.to_stdout for report in report_files):
        Display(internal=internal, verbose=verbose, quiet=quiet).print_result(result)
    write_reports(report_files, result, internal=internal)
    return result.exit_code


@dataclass(frozen=True, kw_only=True)
class Display:
    """The options of the output on the terminal."""

    internal: bool
    verbose: bool
    quiet: bool

    def print_result(self, result: Result) -> None:
        from dpspec.reporters.summary import tally

        if self.quiet:
            emit(tally(result))
        else:
            show_on_terminal(result, internal=self.internal, brief=not self.verbose)


def _check_history(
    history: Path,
    epsilon: float | None,
    delta: float,
    sizes: Sequence[int],
    adjacency: str,
    reports: Sequence[str],
    display: Display,
) -> int:
    from dpspec.engine.declared_history import check_history, differences, headline, read_history

    catalog = load_project()
    report_files = parse_reports(reports, catalog, [history])
    with failures_in_reports(report_files):
        declared = read_history(history, adjacency)
        result = check_history(
            declared, epsilon=epsilon, delta=delta, group_size=sizes, adjacency=adjacency, catalog=catalog
        )
    if not any(report.to_stdout for report in report_files):
        for sentence in () if display.quiet else (headline(declared), *differences(declared, result, delta)):
            emit(textwrap.fill(sentence, page_width(), break_long_words=False))
        display.print_result(result)
    write_reports(report_files, result, internal=display.internal)
    return result.exit_code


def rules() -> None:
    """List the rules on recorded trainings: their observations, reasons and fixes."""
    from dpspec_recording.judge.run_claim import installed_rules

    for rule in installed_rules().values():
        lines = [rule.name]
        for text in (f"notices: {rule.summary}", f"why: {rule.why}", f"fix: {rule.fix}"):
            lines += textwrap.wrap(text, page_width(), initial_indent="  ", subsequent_indent="    ")
        emit("\n".join(lines))
