"""``dpspec check``: what a recorded training did, against what is claimed for it."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.terminal.output import emit, page_width, wants_color
from dpspec.errors import UsageError


class Adjacency(StrEnum):
    """Who is compared with whom."""

    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add-remove"


def check(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder that dpspec.record wrote.", show_default=False)
    ],
    delta: Annotated[float, typer.Option(metavar="D", help="At which delta, above 0 and below 1.")] = 1e-5,
    epsilon: Annotated[
        float | None,
        typer.Option(
            metavar="E",
            help="What is claimed; without it nothing is proved, and the command never ends with 0.",
            show_default=False,
        ),
    ] = None,
    group_size: Annotated[
        list[int],
        typer.Option(
            "--group-size",
            metavar="K",
            help="For groups of so many records; the claim is about the first. Repeatable; 1 by default.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 - typer copies it
    adjacency: Annotated[
        Adjacency,
        typer.Option(
            "--adjacency",
            help="zero-out: records are put to nothing, their number is public. add-remove: it is not.",
        ),
    ] = Adjacency.ZERO_OUT,
    public_constants: Annotated[
        bool,
        typer.Option(
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
            show_default=False,
        ),
    ] = [],  # noqa: B006
    assume: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Assume a channel, or an assumption, that the recording leaves open. A proof names it. Repeatable.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    every: Annotated[bool, typer.Option("--all", help="Show every check, not only those that are rejected.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> int:
    """Hold a recorded training against what is claimed: what ran, what it costs, what its accountant says.

    Where canaries were planted (dpspec.plant) and scored, their lower bound stands beside that: it may refute the
    claim, or contradict the recording.

    Ends with 0 where the claim is proved of the schedule that ran and what ran conforms to it, with 1 where not, with
    5 where nothing was claimed and what ran conforms, or no step was recorded, and with 3 where the folder is none of a
    recorded run, or was changed.
    """
    if not 0.0 < delta < 1.0:
        raise UsageError(f"--delta must be above 0 and below 1, got {delta!r}")
    if epsilon is not None and not 0.0 <= epsilon < float("inf"):
        raise UsageError(f"--epsilon must be finite and not negative, got {epsilon!r}")
    if any(not 1 <= size <= 10_000 for size in group_size):
        raise UsageError("--group-size must be from 1 to 10000")
    from dpspec.cli.run_check_page import run_json, run_page
    from dpspec.engine.recorded.checked_run import Question, check_run

    sizes = tuple(dict.fromkeys([*group_size, 1] if group_size else [1]))
    asked = Question(
        delta=delta,
        epsilon=epsilon,
        group_sizes=sizes,
        adjacency=adjacency.value,
        public_constants=public_constants,
        assume=tuple(dict.fromkeys(assume)),
        public=tuple(dict.fromkeys(public)),
    )
    checked = check_run(run, asked)
    if as_json:
        emit(json.dumps(run_json(checked), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        emit(run_page(checked, page_width(), color=wants_color(sys.stdout), every=every))
    return checked.exit_code
