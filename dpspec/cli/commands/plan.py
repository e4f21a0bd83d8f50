"""``dpspec plan``: what a run would cost and what it could show, before anything is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpspec.cli.arguments import Overrides, SpecFiles
from dpspec.cli.terminal.output import emit, page_width
from dpspec.errors import ExitCode

if TYPE_CHECKING:
    from dpspec.contract import Plan, Spec
    from dpspec.reporters.layout import Page


def plan(
    specs: SpecFiles,
    overrides: Overrides = [],  # noqa: B006 - typer copies it
) -> int:
    """Print the number of trials that specs need, their cost and the epsilon they could show; nothing is trained."""
    from dpspec.cli.arguments import loaded_specs, stop_at_errors
    from dpspec.engine.preparing.prepare import prepare
    from dpspec.engine.running.run_options import foreseen
    from dpspec.registry.loader import load_catalog
    from dpspec.reporters.labels import count
    from dpspec.reporters.layout import Page

    catalog = load_catalog()
    page = Page(page_width())
    with loaded_specs(specs, catalog, overrides) as loaded:
        prepared = [prepare(spec, catalog) for spec in loaded.specs]
        for audit in prepared:
            stop_at_errors(audit.diagnostics)
        plans = [audit.plan() for audit in prepared]
        for spec, its_plan in zip(loaded.specs, plans, strict=True):
            _describe(page, spec, its_plan)
    if len(plans) > 1:
        trials = count(sum(p.trials for p in plans), "trial")
        page.heading(f"Together: {trials}, {foreseen(sum(p.seconds for p in plans))}")
    emit(page.text())
    return ExitCode.OK


def _describe(page: Page, spec: Spec, its_plan: Plan) -> None:
    from dpspec.engine.results import decimals
    from dpspec.engine.running.run_options import foreseen
    from dpspec.reporters import labels, phrases

    page.heading(spec.name)
    claims = labels.count(len(spec.claims), "claim")
    if not its_plan.trials:
        page.line(f"{claims}; nothing is trained, bounds come from theory alone", indent=2, hang=2)
    else:
        page.line(
            f"{claims}; {labels.count(its_plan.trials, 'trial')} in {labels.count(len(its_plan.chunks), 'chunk')}, "
            f"{foreseen(its_plan.seconds)} of one core, {decimals.size(its_plan.memory_bytes)} of memory",
            indent=2,
            hang=2,
        )
    for power in its_plan.power:
        at = f" at {labels.conditions(power.at)}" if power.at else ""
        remark = f"; {power.note}" if power.note else ""
        page.item(f"could show epsilon up to {decimals.lower(power.epsilon)}{at} ({power.method}{remark})")
    for check in its_plan.checks:
        page.item(phrases.foreseen(check))
    for remark in its_plan.notes:
        page.item(remark)
