"""``dpspec plan``: what a run would cost and what it could show, before anything is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.options import Overrides, SpecFiles
from dpspec.cli.output import emit, page_width
from dpspec.contract import Plan
from dpspec.errors import ExitCode

if TYPE_CHECKING:
    from dpspec.contract import Spec
    from dpspec.engine.forecast import Forecast
    from dpspec.reporters.layout import Page


#: What a spec without an audit block needs.
NOTHING = Plan(chunks=(), seconds=0.0, memory_bytes=0)


def plan(
    specs: SpecFiles,
    overrides: Overrides = [],  # noqa: B006 - typer copies it
    measure: Annotated[
        bool, typer.Option("--measure", help="Make short trials of each spec here, and foretell time and memory.")
    ] = False,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Where to measure: auto, cpu, cuda or cuda:N.")
    ] = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Foretell for N tasks at once.", show_default=False)
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(min=0, metavar="X", help="What an hour of one worker costs, with --measure.", show_default=False),
    ] = None,
) -> int:
    """Say how many trials specs need, what they cost and what they could show; nothing is trained, or little."""
    from dpspec.cli.specs import loaded_specs, stop_at_errors
    from dpspec.engine.numbers import duration
    from dpspec.engine.prepare import check
    from dpspec.engine.prepare import plan as make_plan
    from dpspec.registry.loader import load_catalog
    from dpspec.reporters.layout import Page
    from dpspec.reporters.words import count

    catalog = load_catalog()
    page = Page(page_width())
    with loaded_specs(specs, catalog, overrides) as loaded:
        for spec in loaded:
            stop_at_errors(check(spec, catalog))
        plans = [make_plan(spec, catalog) if spec.audit else NOTHING for spec in loaded]
        for spec, its_plan in zip(loaded, plans, strict=True):
            _describe(page, spec, its_plan)
    if len(plans) > 1:
        trials = count(sum(p.trials for p in plans), "trial")
        page.heading(f"Together: {trials}, about {duration(sum(p.seconds for p in plans))}")
    if measure and any(p.chunks for p in plans):
        from dpspec.engine.forecast import forecast
        from dpspec.engine.means import Means

        _foretell(page, forecast(loaded, plans, catalog, Means(device=device, workers=workers)), price)
    emit(page.text())
    return ExitCode.OK


def _foretell(page: Page, told: Forecast, price: float | None) -> None:
    from dpspec.engine.numbers import duration, nearest, size
    from dpspec.reporters.words import count

    page.heading(f"Measured here: about {duration(told.wall_seconds)}, {told.at_once} at once")
    for name, found in told.measured.items():
        first, second = found.steps
        how = f"trials of {first} and {second} steps" if second > first else "a whole trial"
        page.item(
            f"{name}: {duration(found.chunk_seconds)} for its first chunk of trials on {found.device}, from {how}; "
            f"{duration(found.other_seconds)} for bounds and conclusions"
        )
    page.item(f"all of it: {count(told.trials, 'trial')}, {duration(told.seconds)} of one worker")
    device = f", {size(told.device_bytes)} of its GPU" if told.device_bytes else ""
    page.item(f"each worker takes {size(told.memory_bytes)} of memory{device}")
    if price is not None:
        page.item(f"at {nearest(price)} an hour of a worker: {nearest(told.seconds / 3600.0 * price)}")


def _describe(page: Page, spec: Spec, its_plan: Plan) -> None:
    from dpspec.engine import numbers
    from dpspec.reporters import checks, words

    page.heading(spec.name)
    claims = words.count(len(spec.claims), "claim")
    if not its_plan.trials:
        page.line(f"{claims}; nothing is trained, bounds come from theory alone", indent=2, hang=2)
    else:
        page.line(
            f"{claims}; {words.count(its_plan.trials, 'trial')} in {words.count(len(its_plan.chunks), 'chunk')}, "
            f"about {numbers.duration(its_plan.seconds)}, {numbers.size(its_plan.memory_bytes)} of memory",
            indent=2,
            hang=2,
        )
    for power in its_plan.power:
        at = f" at {words.conditions(power.at)}" if power.at else ""
        remark = f"; {power.note}" if power.note else ""
        page.item(f"could show epsilon up to {numbers.lower(power.epsilon)}{at} ({power.method}{remark})")
    for check in its_plan.checks:
        page.item(checks.foreseen(check))
    for remark in its_plan.notes:
        page.item(remark)
