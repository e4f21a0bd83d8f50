"""``dpspec record``: runs a script or a module as Python does, and records the private trainings in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dpspec.cli.arguments import GroupSizes, group_sizes
from dpspec.cli.handover import Handover
from dpspec.errors import ExitCode, UsageError
from dpspec_recording.commands import Accept, Adjacency, Assume, Delta, Epsilon, Public
from dpspec_recording.folder.free_number import numbered
from dpspec_recording.judge.run_claim import RunClaim
from dpspec_recording.notices import say
from dpspec_recording.scripts.program import Program
from dpspec_recording.scripts.session import Session, start

record = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_IN_ORDER = {"allow_interspersed_args": False}  # what follows the script is the script's


@record.command("record", context_settings=_IN_ORDER, short_help="Run a script, and record the trainings in it.")
def run(
    program: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT", help="The script, or with -m the module, and its own arguments."),
    ],
    is_module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as for `python -m`.")] = False,
    out: Annotated[
        Path,
        typer.Option(
            metavar="RUN",
            help="The folder of the recordings, new or empty: training N of the script is in RUN/N. {n} in its last "
            "part is the first free number.",
        ),
    ] = Path("run"),
    public_data: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="The variable of the script, such as public_loader or data.public, that holds public data: "
            "as public= of dpspec.record. Repeatable.",
        ),
    ] = [],  # noqa: B006
    client: Annotated[
        bool,
        typer.Option(
            "--client",
            help="The script is a client of a federation, or simulates clients: weights that it loads come from a "
            "server, and trainings on the same records are parts of one recording.",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="If the script ends with 0, check each recording; the exit code is then the check's."
        ),
    ] = False,
    delta: Delta = None,
    epsilon: Epsilon = None,
    group_size: GroupSizes = [],  # noqa: B006 - typer copies it
    adjacency: Adjacency = None,
    public: Public = [],  # noqa: B006
    assume: Assume = [],  # noqa: B006
    accept: Accept = [],  # noqa: B006
) -> None:
    """Run a Python script as `python SCRIPT` does, and record each private training in it.

    The script is not edited. Its standard output, exit code and weights are the same, and an error of the recorder does
    not end it: the recorder writes to standard error only, in lines that begin with "dpspec".

    Trainings with Opacus' PrivacyEngine are recognized. A script with a custom loop runs, and nothing is recorded.
    """
    claim = _claim(delta, epsilon, group_size, adjacency, public, assume, accept)
    if not check and claim:
        raise UsageError("a claim needs --check: dpspec record --check --epsilon E --delta D SCRIPT")
    several = int(os.environ.get("WORLD_SIZE") or 1) > 1
    if several and (check or "{n}" in out.name):
        option = "--check" if check else f"--out {out}"
        raise UsageError(f"{option} is for one process, and WORLD_SIZE is above 1: run dpspec check after all ended")
    target = Program(program[0], program[1:], is_module=is_module)
    folder = numbered(out.absolute())
    if not several and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{out} is not empty: give a new folder, such as --out runs/{{n}}, or remove it")
    _require_writable(folder, out)
    command = [sys.executable, "-m", "dpspec", "check"]
    environment = dict(os.environ)

    def proceed() -> int:
        session = start(folder, whole=True, client=client, public=tuple(public_data))
        if check:
            session.after_end = lambda: _check(session, target, [*command], claim, environment)
        try:
            target.run()
        finally:
            session.error = target.error
        return 0

    raise Handover(proceed)


def _require_writable(folder: Path, out: Path) -> None:
    """Refuse a folder that cannot be made before the script runs, since its training would not be recorded."""
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        reason = "permission denied" if parent.is_dir() else f"{parent} is not a folder"
        raise UsageError(f"cannot record into {out}: {reason}; --out names another folder")


def _claim(
    delta: float | None,
    epsilon: float | None,
    group_size: Sequence[str],
    adjacency: str | None,
    public: Sequence[str],
    assume: Sequence[str],
    accept: Sequence[str],
) -> list[str]:
    """The options of `dpspec check`.

    Raises:
        UsageError: `dpspec check` would refuse an option.
    """
    RunClaim(  # an option that the check would refuse is refused before the training
        delta=RunClaim.delta if delta is None else delta,
        epsilon=epsilon,
        group_sizes=(*group_sizes(group_size), 1),
        adjacency=adjacency or "zero-out",
        public=tuple(public),
        assume=tuple(assume),
        accept=tuple(accept),
    ).require_valid()
    options = [] if delta is None else [f"--delta={delta!r}"]
    options += [] if epsilon is None else [f"--epsilon={epsilon!r}"]
    options += [] if adjacency is None else [f"--adjacency={adjacency}"]
    named = {"group-size": group_size, "public": public, "assume": assume, "accept": accept}
    return [*options, *(f"--{name}={value}" for name, values in named.items() for value in values)]


def _check(
    session: Session, target: Program, command: Sequence[str], claim: Sequence[str], environment: dict[str, str]
) -> None:
    """Check each recording, and end the process with the largest exit code unless all are 0."""
    if target.exit_code != 0:
        return
    codes = []
    _flush()  # the output of the script comes before the output of the check, also in a pipe
    for folder in session.folders:
        if len(session.folders) > 1:
            say(f"dpspec record: check of {os.path.relpath(folder)}")
        codes.append(subprocess.run([*command, str(folder), *claim], env=environment, check=False).returncode)
    if not codes or session.failures:
        codes.append(ExitCode.NOTHING_TO_RUN)
    if worst := max(codes):
        _flush()
        os._exit(worst)  # the interpreter is ending, and no exception changes its exit code any more


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
