"""``dpspec epsilon``: the certified privacy of a training schedule, without a spec."""

from __future__ import annotations

import json
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpspec.cli.arguments import GroupSizes, group_sizes
from dpspec.cli.output import emit, note
from dpspec.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from dpspec.accounting import Interval
    from dpspec.engine.schedule_privacy import GroupPrivacy, RightGuesses, Schedule


#: Columns of the output.
_WIDTH = 80

_LEGEND = (
    "Certified: a group of records is added or removed, all iterates are visible.",
    "worse: the direction with the larger epsilon. mu: the smallest for all deltas.",
    "advantage: maximum true- minus false-positive rate of a membership attack.",
    "identified: its maximum true-positive rate at a false-positive rate of 1%.",
)


#: Arguments of :func:`dpspec.epsilon` in its errors, as options.
_IN_OPTIONS = {
    "batch_size and records": "--batch-size and --records",
    "batch_size": "--batch-size",
    "group_size": "--group-size",
    ": records define": ": --records defines",
    "or laplace": "or --laplace",
    "with rate": "with --rate",
    "of rate": "of --rate",
    "give steps": "give --steps",
}


def _fraction(text: str) -> float:
    """A number, or the quotient of two."""
    numerator, slash, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator) if slash else float(numerator)
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"{text!r} is neither a number nor a quotient such as 256/60000") from None


def epsilon(
    steps: Annotated[int | None, typer.Option(metavar="N", help="Number of steps.")] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            "--noise",
            "--noise-multiplier",
            metavar="S",
            help="Standard deviation of the Gaussian noise on the sum, in clip norms.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="Q",
            parser=_fraction,
            help="Sampling rate of Poisson batches: batch size / records, such as 256/60000; 1 for all records.",
        ),
    ] = None,
    delta: Annotated[float, typer.Option(metavar="D", help="The delta, above 0 and below 1.")] = 1e-5,
    group_size: GroupSizes = [],  # noqa: B006 - typer copies it
    sampling: Annotated[
        Literal["poisson", "fixed"], typer.Option(help="Batches of random or of fixed size.")
    ] = "poisson",
    batch_size: Annotated[
        int | None, typer.Option(metavar="B", help="Batch size, of Poisson batches on average, in place of --rate.")
    ] = None,
    records: Annotated[int | None, typer.Option(metavar="N", help="Number of records, with --batch-size.")] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            metavar="E", help="Passes over the records, ceil(records / batch size) steps each, in place of --steps."
        ),
    ] = None,
    laplace: Annotated[
        float | None, typer.Option(metavar="B", help="Scale of Laplace noise in L1 clip norms, in place of --noise.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(metavar="E", help="Find the smallest Gaussian noise with at most this epsilon."),
    ] = None,
    targets: Annotated[
        int | None,
        typer.Option(metavar="M", help="Bound the number of right guesses about M people: who takes part."),
    ] = None,
    baseline: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="With --targets: guesses about the content of records, each right with probability P without the "
            "release.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with unrounded intervals.")] = False,
) -> int:
    """Certified epsilon of a training schedule, for records and groups, without a spec and without training.

    Bounds are for add-remove adjacency and an adversary who sees every iterate. Intervals contain the exact value, and
    the printed ends are rounded outward.
    """
    from dpspec.engine import schedule_privacy

    if target is not None and (noise is not None or laplace is not None):
        raise UsageError("--target finds the noise: remove --noise and --laplace")
    if (steps is None) == (epochs is None):
        raise UsageError("--steps or --epochs must be set, and not both")
    if baseline is not None and targets is None:
        raise UsageError("--baseline needs --targets: give the number of people")
    if targets is not None and len(group_sizes(group_size)) > 1:
        raise UsageError("--targets needs one --group-size, the number of records of each person")
    if target is noise is laplace is None:
        raise UsageError("--noise, --laplace or --target is required: give one")

    def schedule(std: float | None) -> Schedule:
        return schedule_privacy.make_schedule(
            steps=steps,
            noise_multiplier=std,
            rate=rate,
            sampling=sampling,
            batch_size=batch_size,
            records=records,
            laplace=laplace,
            epochs=epochs,
        )

    try:
        groups = []
        for size in group_sizes(group_size) or (1,):
            std = noise if target is None else schedule_privacy.noise_for(target, schedule, size, delta)
            groups.append(schedule_privacy.group_privacy(schedule(std), size, delta))
        guesses = None
        if targets is not None:
            (group,) = groups
            executed = schedule(group.noise if laplace is None else None)
            guesses = schedule_privacy.right_guesses(executed, group.group_size, targets, baseline)
    except ValueError as error:
        name, _, rule = str(error).partition(" ")
        option = "noise" if name == "noise_multiplier" else name.replace("_", "-")
        for argument, in_options in _IN_OPTIONS.items():
            rule = rule.replace(argument, in_options)
        raise UsageError(f"--{option} {rule}") from None
    settings = schedule(groups[0].noise if laplace is None else None)
    if as_json:
        emit(_as_json(settings, groups, delta, target, guesses))
    else:
        emit(_table(settings, groups, delta, target))
        if guesses is not None:
            emit(_guesses(guesses))
    if target is not None and any(group.noise == schedule_privacy.LEAST_CALIBRATED for group in groups):
        note(f"The search ends at noise {schedule_privacy.LEAST_CALIBRATED}: less noise may reach the target, too.")
    if records is not None:
        _caution(delta, records)
    return ExitCode.OK


def _caution(delta: float, records: int) -> None:
    from dpspec.contract.rules import LARGE_DELTA, LARGE_DELTA_FIX, LARGE_DELTA_WHY, large_delta

    if caution := large_delta(delta, records):
        note("\n".join(wrap(f"caution {LARGE_DELTA}: {caution} {LARGE_DELTA_WHY} {LARGE_DELTA_FIX}", _WIDTH)))


def _batches(schedule: Schedule) -> str:
    if schedule.rate is None:
        return f"batches of {schedule.batch_size} of {schedule.records} records"
    return "all records" if schedule.rate == 1.0 else f"Poisson batches at rate {schedule.rate:g}"


def _table(schedule: Schedule, groups: list[GroupPrivacy], delta: float, target: float | None) -> str:
    from dpspec import decimals

    kind = "Laplace" if schedule.laplace else "Gaussian"
    noise = f"{kind} noise" if target is not None else f"{kind} noise {decimals.exact(schedule.noise)}"
    steps = f"{schedule.steps} step" + ("s" if schedule.steps > 1 else "")
    goal = f", epsilon <= {decimals.exact(target)}" if target is not None else ""
    head = f"{noise}, {_batches(schedule)}, {steps}, delta = {decimals.exact(delta)}{goal}"
    calibrated = ["noise"] if target is not None else []
    columns = ["records", *calibrated, "epsilon", "worse", "mu", "advantage", "identified"]
    rows = [columns]
    for group in groups:
        shown = [decimals.exact(group.noise)] if target is not None else []
        shares = (f"{decimals.upper(100.0 * share.upper, digits=3)}%" for share in (group.advantage, group.identified))
        rows.append([str(group.group_size), *shown, _ends(group.epsilon), group.direction, _ends(group.mu), *shares])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*wrap(head, _WIDTH), "", *lines, "", *_LEGEND])


def _ends(interval: Interval) -> str:
    from dpspec import decimals

    return f"{decimals.lower(interval.lower + 0.0)} to {decimals.upper(interval.upper)}"


def _guesses(guesses: RightGuesses) -> str:
    from dpspec import decimals
    from dpspec.engine.schedule_privacy import LEVELS

    records = "one record" if guesses.group_size == 1 else f"up to {guesses.group_size} records"
    people, take_part = f"{guesses.targets} people with {records} each", "take part or not by fair coins"
    if guesses.targets == 1:
        people, take_part = f"1 person with {records}", "takes part or not by a fair coin"
    if guesses.membership:
        question = f"Of {people}, who {take_part}, "
        question += "an attacker who guesses for all is right about at most"
    else:
        question = f"Of {people}, which an attacker guesses with probability "
        question += f"{decimals.exact(guesses.baseline)} without the release, the attacker guesses right at most"
    share, alone = guesses.targets * guesses.mean_share, guesses.targets * guesses.baseline
    rows = [("", "with the release", "without it")]
    rows.append(("on average", decimals.upper(share, digits=3), decimals.nearest(alone)))
    for level, most, by_guessing in zip(LEVELS, guesses.most, guesses.by_guessing, strict=True):
        rows.append((f"except with probability {100.0 * level:g}%", str(most), str(by_guessing)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    assumption = "The records of the people are independent; the probability counts all that is known."
    if guesses.membership:
        assumption = "The attacker knows all records, not who takes part."
    return "\n".join(["", *wrap(question, _WIDTH), "", *lines, "", *wrap(assumption, _WIDTH)])


def _as_json(
    schedule: Schedule,
    groups: list[GroupPrivacy],
    delta: float,
    target: float | None,
    guesses: RightGuesses | None,
) -> str:
    from dpspec.engine.schedule_privacy import LEVELS
    from dpspec.json_records import write

    def ends(interval: Interval) -> tuple[float, float]:
        return interval.lower + 0.0, interval.upper  # without a negative zero

    content = {
        "mechanism": "laplace" if schedule.laplace else "gaussian",
        "steps": schedule.steps,
        "sampling": "fixed" if schedule.rate is None else "poisson",
        "rate": schedule.rate,
        "batch_size": schedule.batch_size,
        "records": schedule.records,
        "delta": delta,
        "target": target,
        "adjacency": "add-remove",
        "groups": [
            {
                "group_size": group.group_size,
                "noise": group.noise,
                "epsilon": ends(group.epsilon),
                "direction": group.direction,
                "epsilon_remove": ends(group.remove),
                "epsilon_add": ends(group.add),
                "mu": ends(group.mu),
                "advantage": ends(group.advantage),
                "true_positives_at_1_percent": ends(group.identified),
            }
            for group in groups
        ],
        "right_guesses": guesses
        and {
            "targets": guesses.targets,
            "of": "membership" if guesses.membership else "content",
            "baseline": guesses.baseline,
            "mean_share": guesses.mean_share,
            "at_most": [
                {"except_with_probability": level, "right": most, "without_release": alone}
                for level, most, alone in zip(LEVELS, guesses.most, guesses.by_guessing, strict=True)
            ],
        },
    }
    return json.dumps(write({name: value for name, value in content.items() if value is not None}), indent=2)
