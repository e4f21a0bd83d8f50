"""``dpspec cache``: the trials that are kept between runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.options import DEFAULT_STORE, StorePlace
from dpspec.cli.output import emit, page_width
from dpspec.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpspec.engine.store import Entry

app = typer.Typer(help="List, check and remove the trials that are kept between runs.", no_args_is_help=True)


@app.command("ls", short_help="List stored trials by the spec that asked for them.")
def list_trials(
    store: StorePlace = DEFAULT_STORE,
    keys: Annotated[bool, typer.Option("--keys", help="One line per trial, with its key.")] = False,
) -> int:
    """List stored trials: by the spec that first asked for them, with kind, number, size and date."""
    from dpspec.cli.table import table
    from dpspec.engine.numbers import size
    from dpspec.engine.store import Store

    place = Store(store)
    kept = list(place.entries())
    if keys:
        for entry in kept:
            emit(f"{entry.key}  {size(entry.size):>10}  {entry.made or '?':25}  {entry.kind or '?'}  {_named(entry)}")
    elif kept:
        emit(table([("kind", "spec", "trials", "size", "made"), *_by_spec(kept)], page_width(), indent=0))
    emit(f"{_trials(len(kept))}, {size(sum(entry.size for entry in kept))} in {place.location}")
    return ExitCode.OK


@app.command("rm", short_help="Remove stored trials.")
def remove_trials(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SPEC|KEY", help="Names of specs as `dpspec cache ls` shows them, or keys, or their first digits."
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Remove every stored trial, what was set aside, and what unfinished ones need."),
    ] = False,
    store: StorePlace = DEFAULT_STORE,
) -> int:
    """Remove stored trials; they are trained again when a run needs them."""
    from dpspec.engine.numbers import size
    from dpspec.engine.store import Store

    if bool(names) == everything:
        raise UsageError("give specs or keys to remove, or --all")
    kept = Store(store)
    stored = list(kept.entries())
    chosen = stored if everything else [entry for name in names or () for entry in _meant(name, stored)]
    freed = {entry.key: entry.size for entry in chosen}
    for key in freed:
        kept.remove(key)
    swept = kept.sweep() if everything else 0
    emit(f"removed {_trials(len(freed))}, {size(sum(freed.values()) + swept)} freed")
    return ExitCode.OK


@app.command("verify", short_help="Compare every stored trial with its digests.")
def verify_trials(store: StorePlace = DEFAULT_STORE) -> int:
    """Read every stored trial and compare it with its digests; what does not match is set aside."""
    from dpspec.engine.store import Store

    kept, damaged, count = Store(store), 0, 0
    for key in list(kept.keys()):
        told: list[str] = []
        count += 1
        kept.get(key, told.append)
        if told:
            damaged += 1
            emit(f"{key}  {told[0]}")
    if damaged:
        are = "is" if damaged == 1 else "are"
        emit(f"{damaged} of {_trials(count)} in {kept.location} {are} not as written: set aside")
        return ExitCode.UNEXPECTED
    emit(f"{_trials(count)} in {kept.location}: every one as it was written")
    return ExitCode.OK


def _by_spec(kept: Sequence[Entry]) -> list[tuple[str, ...]]:
    from dpspec.engine.numbers import size

    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in kept:
        groups.setdefault((_named(entry), entry.kind or "?"), []).append(entry)
    return [
        (kind, name, str(len(group)), size(sum(entry.size for entry in group)), max(e.made for e in group)[:10] or "?")
        for (name, kind), group in sorted(groups.items())
    ]


def _named(entry: Entry) -> str:
    return entry.spec or "(of no known spec)"


def _meant(name: str, stored: Sequence[Entry]) -> list[Entry]:
    of_spec = [entry for entry in stored if entry.spec == name]
    found = of_spec or [entry for entry in stored if entry.key.startswith(name)]
    if not of_spec and len(found) != 1:
        what = "no stored trial and no spec of one" if not found else f"the start of {len(found)} keys"
        raise UsageError(f"{name!r} is {what}")
    return found


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"
