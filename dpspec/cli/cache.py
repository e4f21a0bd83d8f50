"""``dpspec cache``: the trials that are kept between runs."""

from __future__ import annotations

from typing import Annotated

import typer

from dpspec.cli.options import DEFAULT_STORE, StoreFolder
from dpspec.cli.output import emit
from dpspec.errors import ExitCode, UsageError

app = typer.Typer(help="List and remove the trials that are kept between runs.", no_args_is_help=True)


@app.command("ls")
def list_trials(store: StoreFolder = DEFAULT_STORE) -> int:
    """List stored trials with their sizes."""
    from dpspec.engine.numbers import size
    from dpspec.engine.store import Store

    kept = Store(store)
    total, count = 0, 0
    for key in sorted(kept.keys()):
        bytes_ = kept.size(key)
        emit(f"{key}  {size(bytes_):>10}")
        total, count = total + bytes_, count + 1
    emit(f"{count} trial{'' if count == 1 else 's'}, {size(total)} in {store}")
    return ExitCode.OK


@app.command("rm")
def remove_trials(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Keys as `dpspec cache ls` shows them, or their first digits."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove every stored trial, and what unfinished ones need to go on.")
    ] = False,
    store: StoreFolder = DEFAULT_STORE,
) -> int:
    """Remove stored trials; they are trained again when a run needs them."""
    from dpspec.engine.numbers import size
    from dpspec.engine.store import Store

    if bool(keys) == everything:
        raise UsageError("give keys to remove, or --all")
    kept = Store(store)
    stored = list(kept.keys())
    chosen = stored if everything else [_only(prefix, stored) for prefix in dict.fromkeys(keys or ())]
    freed = 0
    for key in dict.fromkeys(chosen):
        freed += kept.size(key)
        kept.remove(key)
    freed += kept.sweep() if everything else 0
    count = len(set(chosen))
    emit(f"removed {count} trial{'' if count == 1 else 's'}, {size(freed)} freed")
    return ExitCode.OK


def _only(prefix: str, stored: list[str]) -> str:
    found = [key for key in stored if key.startswith(prefix)]
    if len(found) != 1:
        raise UsageError(f"{prefix!r} is {'no stored trial' if not found else f'the start of {len(found)} keys'}")
    return found[0]
