"""``dpspec run``, from specs to verdicts."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli import interrupt
from dpspec.cli.arguments import (
    DEFAULT_STORE,
    AllowChangedClaims,
    Internal,
    Overrides,
    Plugins,
    Reports,
    SpecFiles,
    StoreKey,
    StorePlace,
    Trust,
    Verbose,
    load_project,
    loaded_specs,
    show_diagnostics,
)
from dpspec.cli.output import (
    ShownError,
    emit,
    failures_in_reports,
    note,
    parse_reports,
    show_on_terminal,
    write_reports,
)
from dpspec.contract.events import Event, TrialsPlanned
from dpspec.errors import DpspecError, ExitCode, SpecError, UsageError
from dpspec.text import plain

if TYPE_CHECKING:
    from dpspec.contract import Diagnostic, Spec
    from dpspec.contract.catalog import Catalog
    from dpspec.contract.results import Result, Unjudged
    from dpspec.language.load import Loaded
    from dpspec.results.diff import Change


def run(
    specs: SpecFiles,
    overrides: Overrides = [],  # noqa: B006 - typer copies it
    plugins: Plugins = [],  # noqa: B006
    store: StorePlace = DEFAULT_STORE,
    store_key: StoreKey = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")] = "auto",
    max_minutes: Annotated[
        float | None,
        typer.Option(min=0, metavar="M", help="Stop training after M minutes; a re-run resumes."),
    ] = None,
    max_trials: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Train at most N trials; a re-run resumes."),
    ] = None,
    executor: Annotated[
        str, typer.Option(metavar="NAME", help="Where trials run: local, ray, ... (see `dpspec plugins`).")
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Parallel tasks; by default limited by cores, GPUs and memory."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="CPU threads of each trial; one for short trials."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--ray-address", metavar="ADDRESS", help="The Ray cluster: auto, or HOST:PORT."),
    ] = None,
    remedy_seconds: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="S", help="Search values that prove failed claims for S CPU seconds; 8 if omitted."
        ),
    ] = None,
    bounds_only: Annotated[
        bool, typer.Option("--bounds-only", help="Do not train: judge the claims by theory only.")
    ] = False,
    reports: Reports = [],  # noqa: B006
    trust: Trust = [],  # noqa: B006
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="RESULT", help="Fail only on regressions from this earlier result."),
    ] = None,
    allow_changed_claims: AllowChangedClaims = False,
    internal: Internal = False,
    verbose: Verbose = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the last line, and no progress.")] = False,
) -> int:
    """Audit specs: bounds from theory, training, attacks, and a verdict for every claim."""
    from dpspec.cli.progress import Progress
    from dpspec.engine.remedies import Search
    from dpspec.engine.running import runner
    from dpspec.engine.running.train import DEVICE, RunOptions
    from dpspec.engine.storage.trial_store import Store, read_key
    from dpspec.registry.loader import load_catalog, notify
    from dpspec.reporters.read_results import read_result
    from dpspec.reporters.summary import tally
    from dpspec.results.diff import regressions
    from dpspec.results.regressions import named_regressions

    deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    try:
        catalog = load_project(specs, plugins, trust, signs=True)
    except DpspecError:  # of a file of the project
        with failures_in_reports(parse_reports(reports, load_catalog(), specs)):
            raise
    report_files = parse_reports(reports, catalog, specs)
    with failures_in_reports(report_files):
        earlier = None if baseline is None else read_result(baseline)
        if not DEVICE.fullmatch(device):
            raise UsageError(f"--device must be auto, cpu, cuda or cuda:N, got {device!r}")
        if executor not in catalog.executors:
            raise UsageError(f"--executor must be one of {', '.join(sorted(catalog.executors))}, got {executor!r}")
        if verbose and quiet:
            raise UsageError("--verbose and --quiet exclude each other: remove one")
        if address is not None and executor == "local":
            raise UsageError("--ray-address requires --executor ray")
        if allow_changed_claims and baseline is None:
            raise UsageError("--allow-changed-claims requires --baseline RESULT")
        trial_store = Store(store, read_key(store_key))

        def require_writable_store(event: Event) -> None:
            refusal = trial_store.refusal() if isinstance(event, TrialsPlanned) and event.total > event.stored else None
            if refusal is not None:
                raise UsageError(f"cannot keep trials in {trial_store.location}: {refusal}")

        options = RunOptions(
            executor=executor,
            workers=workers,
            threads=threads,
            address=address,
            device=device,
            deadline=deadline,
            max_trials=max_trials,
            stop_requests=interrupt.stop_requests,
        )
        with (
            loaded_specs(specs, catalog, overrides, internal=internal, partly=True) as loaded,
            Progress(sys.stderr, quiet=quiet) as progress,
        ):
            valid, unjudged = _judgeable(loaded, catalog)
            failed: dict[str, Unjudged] = {}

            def report_failure(file: str, error: SpecError) -> None:
                show_diagnostics(error.diagnostics, loaded.sources, internal=internal)
                failed[file] = _unjudged(file, error.diagnostics[0])

            result = runner.run(
                valid,
                catalog,
                store=trial_store,
                options=options,
                listeners=(require_writable_store, progress, notify),
                train=not bounds_only,
                on_failure=report_failure,
                remedies=Search(catalog, remedy_seconds),
            )
    # The options that numbers depend on.
    command = ["dpspec", "run", *map(str, specs), *(part for override in overrides for part in ("--set", override))]
    command += [part for path in plugins for part in ("--plugin", str(path))]
    command += ["--device", device] if device != "auto" else []
    command += ["--threads", str(threads)] if threads is not None else []
    command += ["--bounds-only"] if bounds_only else []
    environment = type(result.environment)({**result.environment, "command": command})
    result = dataclasses.replace(result, environment=environment, unjudged=(*unjudged, *failed.values()))
    worse: tuple[Change, ...] = ()
    if earlier is not None and result.complete and not result.unjudged:
        worse = regressions(earlier, result, allow_changed_claims=allow_changed_claims)
        result = dataclasses.replace(result, regressions=named_regressions(earlier, result, worse))
    if any(report.to_stdout for report in report_files):
        note(tally(result))
    else:
        if not quiet:
            show_on_terminal(result, internal=internal, brief=not verbose)
        emit(tally(result))
    write_reports(report_files, result, internal=internal)
    if verbose and any(audit.trials for audit in result.audits):
        note(f"Trials are stored in {trial_store.location}; the same command does not train them again.")
    if result.exit_code is ExitCode.INCOMPLETE:
        note("Incomplete: trials are missing. Run the same command again to resume.")
    elif earlier is not None and result.regressions is not None:
        _show_changes(earlier, result, worse, reasons=quiet)
    return result.exit_code


def _unjudged(file: str, error: Diagnostic) -> Unjudged:
    from dpspec.contract.results import Unjudged
    from dpspec.language.load import plugins_only

    line = error.span.line if error.span is not None and error.span.file == file else 1
    return Unjudged(file=file, line=line, message=error.message, plugin=plugins_only([error]))


def _judgeable(loaded: Loaded, catalog: Catalog) -> tuple[Sequence[Spec], tuple[Unjudged, ...]]:
    """The specs without errors, and those with errors, whose diagnostics go to stderr.

    A single spec is not checked here: its errors end the command.
    """
    from dpspec.engine.preparing.prepare import check as check_spec
    from dpspec.engine.running.failures import file_or_name

    broken: dict[str, list[Unjudged]] = {}
    for path, error in loaded.broken:
        broken.setdefault(str(path), []).append(_unjudged(str(path), error))
    if len(loaded.specs) + len(broken) < 2:
        return loaded.specs, ()
    files = [file_or_name(spec) for spec in loaded.specs]
    errors: dict[Diagnostic, None] = {}
    for spec, file in zip(loaded.specs, files, strict=True):
        of_spec = [diagnostic for diagnostic in check_spec(spec, catalog) if diagnostic.severity == "error"]
        errors |= dict.fromkeys(of_spec)
        if of_spec:
            broken.setdefault(file, [_unjudged(file, error) for error in dict.fromkeys(of_spec)])
    if errors:
        show_diagnostics(list(errors), loaded.sources)
    # A file with an error has no audit at all: claims over a matrix need each of its cells.
    valid = [spec for spec, file in zip(loaded.specs, files, strict=True) if file not in broken]
    if not valid:
        raise ShownError(ExitCode.INVALID_SPEC, (*loaded.diagnostics, *errors))
    return valid, tuple(chain.from_iterable(broken.values()))


def _show_changes(earlier: Result, result: Result, worse: Sequence[Change], *, reasons: bool) -> None:
    """Other changes of an audit that got worse may be the cause. A raised confidence does not fail the run."""
    from dpspec.reporters.data_files import change_line
    from dpspec.results.diff import CONFIDENCE, diff

    audits = {change.audit for change in worse}
    other_changes = [
        change
        for change in diff(earlier, result)
        if change not in worse and (change.audit in audits or (change.what == CONFIDENCE and not change.of_claim))
    ]
    for change in (*worse, *other_changes):
        note(change_line(change))
    claims = {(change.audit, change.claim) for change in worse}
    judged = ((audit.name, verdict) for audit in result.audits for verdict in audit.verdicts)
    for name, verdict in judged:
        if reasons and (name, verdict.claim) in claims and not verdict.expected:
            note(plain(f"{name} / {verdict.claim}: {verdict.reason}"))
    if any(change.of_claim for change in worse):
        note("Claims differ from the earlier result; --allow-changed-claims accepts that.")
    if any(not change.of_claim for change in worse):
        note("Worse than the earlier result.")
    if not worse:
        note("No regression from the earlier result.")
