"""Commands on specs: ``validate``, ``show``, ``plan`` (cost and power), ``calibrate`` and ``schema``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.arguments import Overrides, Plugins, SpecFiles, load_project, loaded_specs, report_skipped_files
from dpspec.cli.output import emit, note, page_width, wants_color, write_file
from dpspec.contract import Diagnostic, Plan
from dpspec.contract.catalog import Catalog
from dpspec.errors import ExitCode, SpecError, UsageError, has_errors
from dpspec.text import json_text, spaced

if TYPE_CHECKING:
    from dpspec.engine.calibration import Calibration, Point
    from dpspec.reporters.layout import Page


def validate(
    specs: SpecFiles,
    overrides: Overrides = [],  # noqa: B006 - typer copies it
    plugins: Plugins = [],  # noqa: B006
    internal: Annotated[
        bool, typer.Option("--internal", help="Show the values of data files that errors are about.")
    ] = False,
) -> int:
    """Check specs and show every problem at its place, without training or reading rows."""
    from dpspec.engine.preparing.prepare import check
    from dpspec.language.load import load_specs

    catalog = load_project(specs, plugins)
    loaded = load_specs(specs, catalog, overrides)
    report_skipped_files(loaded)
    problems: list[Diagnostic] = [*loaded.diagnostics]
    for spec in loaded.specs:
        problems.extend(check(spec, catalog))
    diagnostics = tuple(dict.fromkeys(problems))
    if diagnostics:
        from dpspec.language.diagnostics import render

        emit(render(diagnostics, color=wants_color(sys.stdout), sources=loaded.sources, internal=internal))
    if has_errors(diagnostics):
        return ExitCode.PLUGIN if loaded.missing_plugins else ExitCode.INVALID_SPEC
    audits, files = len(loaded.specs), len(loaded.files)
    cells = f" ({audits} audits with their matrix cells)" if audits != files else ""
    emit(f"{files} spec{'' if files == 1 else 's'} valid{cells}")
    return ExitCode.OK


def show(
    specs: SpecFiles,
    overrides: Overrides = [],  # noqa: B006 - typer copies it
    plugins: Plugins = [],  # noqa: B006
) -> int:
    """Print specs resolved, as YAML: one document for each cell of a matrix."""
    from dpspec.language.yaml_source import to_yaml

    with loaded_specs(specs, load_project(specs, plugins), overrides) as loaded:
        documents = [to_yaml(spec.to_json()) for spec in loaded.specs]
        emit("---\n".join(documents))
    return ExitCode.OK


def schema(
    result: Annotated[bool, typer.Option("--result", help="The schema of results instead of specs.")] = False,
    plugins: Plugins = [],  # noqa: B006 - typer copies it
) -> int:
    """Print the JSON Schema of specs with all installed plugins, for editors."""
    from dpspec.results.codec import result_schema

    emit(json.dumps(result_schema(), indent=2) if result else spec_schema(load_project(plugins=plugins)))
    return ExitCode.OK


def spec_schema(catalog: Catalog) -> str:
    from dpspec.language.blocks import bundle

    return json_text(json.dumps(bundle(catalog), indent=2)) + "\n"


#: Seconds of bounds from which the plan of one spec names them.
_LONG_BOUNDS = 5.0


def plan(
    specs: SpecFiles,
    overrides: Overrides = [],  # noqa: B006 - typer copies it
    plugins: Plugins = [],  # noqa: B006
) -> int:
    """Print the number of trials that specs need, their cost and the epsilon that they could show, without training."""
    from dpspec import decimals
    from dpspec.engine.preparing.prepare import prepare
    from dpspec.engine.running.runner import measure_bounds
    from dpspec.engine.running.train import format_time_range
    from dpspec.executors.processes import PROCESS_BYTES
    from dpspec.reporters import words
    from dpspec.reporters.layout import Page

    catalog = load_project(specs, plugins)
    page = Page(page_width())
    with loaded_specs(specs, catalog, overrides) as loaded:
        prepared = [prepare(spec, catalog) for spec in loaded.specs]
        for audit in prepared:
            if has_errors(audit.diagnostics):
                raise SpecError(audit.diagnostics)
        plans = [audit.plan() for audit in prepared]
        bound_seconds, measured = measure_bounds(prepared, catalog)
        for spec, its_plan, audit in zip(loaded.specs, plans, prepared, strict=True):
            page.heading(spec.name)
            work = "no training, bounds from theory only"
            if its_plan.trials:
                work = (
                    f"{words.count(its_plan.trials, 'trial')} in {words.count(len(its_plan.chunks), 'chunk')}, "
                    f"{format_time_range(its_plan.seconds)} of one core, "
                    f"{decimals.size(its_plan.memory_bytes + PROCESS_BYTES)} of memory per worker"
                )
            page.line(f"{words.count(len(spec.claims), 'claim')}; {work}", indent=2, hang=2)
            if its_plan.trials and (shortage := audit.memory_shortage()):
                page.line(f"Not enough memory here: {shortage}", indent=2, hang=2)
            for title, texts in _plan_groups(its_plan):
                if texts:
                    page.line(f"{title}:", indent=2)
                for text in texts:
                    page.item(text)
    bounds = f"bounds take about {decimals.duration(bound_seconds)} of one core"
    if len(plans) > 1:
        trials = words.count(sum(p.trials for p in plans), "trial")
        page.heading(f"Together: {trials}, {format_time_range(sum(p.seconds for p in plans) + bound_seconds)}")
        page.item(f"{bounds} ({measured} of {len(plans)} measured)")
    elif bound_seconds > _LONG_BOUNDS:
        page.item(bounds)
    emit(page.text())
    return ExitCode.OK


def _plan_groups(planned: Plan) -> Iterator[tuple[str, list[str]]]:
    """The titles and the lines of the groups of a plan."""
    from dpspec import decimals
    from dpspec.reporters import words

    shown = []
    for power in planned.power:
        position = f" at {words.conditions(power.at)}" if power.at else ""
        remark = f"; {power.note}" if power.note else ""
        shown.append(f"epsilon up to {decimals.lower(power.epsilon)}{position} ({power.method}{remark})")
    yield "The attack can show at best", shown
    for observed, title in (
        ("measured", "Tests of the released models, with their detection limits"),
        ("reported", "Tests of the reports of the backend"),
    ):
        yield title, [words.foreseen(check) for check in planned.checks if check.observed == observed]
    yield "Notes", list(planned.notes)


def calibrate(
    specs: SpecFiles,
    vary: Annotated[
        str,
        typer.Option(metavar="KEY", help="The number to vary, e.g. mechanism.noise_multiplier."),
    ],
    claims: Annotated[
        list[str],
        typer.Option(
            "--claim",
            metavar="ID",
            help="A claim to prove; repeatable. By default every claim with the expectation proved.",
        ),
    ] = [],  # noqa: B006 - typer copies it
    overrides: Overrides = [],  # noqa: B006
    plugins: Plugins = [],  # noqa: B006
    precision: Annotated[
        float, typer.Option(metavar="P", help="The maximum relative distance to the nearest failing value.")
    ] = 1e-3,
    internal: Annotated[
        bool, typer.Option("--internal", help="Allow data-dependent bounds to decide the value.")
    ] = False,
    reports: Annotated[
        list[str], typer.Option("--report", metavar="json=PATH", help="Also write JSON; '-' for stdout.")
    ] = [],  # noqa: B006
) -> int:
    """Find the minimum noise, the maximum steps, rate or group size, ... for which claims are proved.

    The command trains no model. It judges the value that it finds and the nearest failing one. Ends with 1 if no value
    proves the claims, or if the search stopped at an invalid value with valid ones beyond it.
    """
    from dpspec.cli.progress import Progress
    from dpspec.engine.calibration import calibrate_specs
    from dpspec.json_records import write
    from dpspec.reporters.layout import Page

    if not 0.0 < precision < 1.0:
        raise UsageError(f"--precision must be above 0 and below 1, got {precision!r}")
    targets = [report.removeprefix("json=") for report in reports]
    if any(not report.startswith("json=") or report == "json=" for report in reports):
        raise UsageError("--report must be json=PATH: calibrate writes no other format")
    catalog = load_project(specs, plugins)
    with loaded_specs(specs, catalog, overrides) as loaded, Progress(sys.stderr) as progress:
        calibrations = calibrate_specs(
            loaded.specs,
            catalog,
            vary=vary,
            claims=claims,
            relative=precision,
            internal=internal,
            emit=progress,
        )
    code = ExitCode.OK if all(c.complete for c in calibrations) else ExitCode.UNEXPECTED
    content = json.dumps(write([calibration.as_json() for calibration in calibrations]), indent=2)
    for path in targets:
        if path != "-":
            write_file(Path(path), content)
            note(f"wrote {path} (json)")
    if "-" in targets:
        emit(content)
        return code
    page = Page(page_width())
    for calibration in calibrations:
        _describe(page, calibration, overrides)
    page.blank()
    page.line("This applies to the declared mechanism. `dpspec run` tests the executed run.")
    emit(page.text())
    return code


def _describe(page: Page, calibration: Calibration, overrides: list[str]) -> None:
    key, ids, proved, unproved = calibration.key, calibration.claims, calibration.proved, calibration.unproved

    def set_to(value: float) -> str:
        return f"{key.place} = {key.spelling(value)}"

    def line(text: str) -> None:
        page.line(text, indent=2, hang=2)

    page.heading(calibration.name)
    those = ids[0] if len(ids) == 1 else "both claims" if len(ids) == 2 else f"all {len(ids)} claims"
    if proved is None:
        line(f"No tried value of {key.place} proves {those}.")
    else:
        end = "minimum" if calibration.more_helps else "maximum"
        line(f"{set_to(proved.value)} is the {end} found that proves {those}:")
        _verdicts(page, proved, proved=True)
    if unproved is not None:
        tried = set_to(unproved.value)
        line(f"At the last tried value, {tried}:" if proved is None else f"{tried} does not:")
        _verdicts(page, unproved, proved=False)
    if calibration.limit:
        line(f"No value beyond was tried: {calibration.limit}.")
    if calibration.valid_beyond is not None:
        valid = f"{set_to(calibration.valid_beyond)} is valid"
        line(f"The search ended there, but {valid}: set it, or another valid value, and calibrate again.")
    elif proved is None:
        line("Change other numbers of the spec, such as the noise, or the claims.")
    for value in calibration.contradictions:
        direction = "More" if calibration.more_helps else "Less"
        remark = "There may be other values at which the claims begin or cease to be proved."
        line(f"{direction} does not always help: see {key.spelling(value)}. {remark}")
    if proved is not None:
        line("To use it:")
        other_overrides = [o for o in overrides if o.partition("=")[0].strip() != key.place]
        settings = [*other_overrides, *calibration.cell, f"{key.place}={key.spelling(proved.value)}"]
        page.command(["dpspec", "run", calibration.source, *(part for s in settings for part in ("--set", s))])


def _verdicts(page: Page, point: Point, *, proved: bool) -> None:
    from dpspec import decimals

    if point.problem:
        page.item(f"{point.problem}", indent=4)
    for verdict in point.verdicts:
        if (verdict.verdict == "proved") != proved:
            continue
        if proved and verdict.upper is not None:
            bound = f"{spaced(verdict.quantity)} <= {decimals.upper(verdict.upper, against=verdict.claimed)} is proved"
        elif verdict.verdict == "open" and verdict.provable is not None:
            provable = decimals.upper(verdict.provable, against=verdict.claimed)
            bound = f"only {spaced(verdict.quantity)} <= {provable} is proved"
        else:
            bound = verdict.reason
        page.item(f"{verdict.claim} ({verdict.text}): {bound}", indent=4)
