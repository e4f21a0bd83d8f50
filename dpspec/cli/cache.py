"""``dpspec cache``: the stored trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.arguments import DEFAULT_STORE, StoreKey, StorePlace
from dpspec.cli.output import emit, page_width, require_known
from dpspec.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from dpspec.engine.storage.trial_store import Entry

app = typer.Typer(help="List, check and remove stored trials.", no_args_is_help=True)


@app.command("ls", short_help="List stored trials by spec.")
def list_trials(store: StorePlace = DEFAULT_STORE) -> int:
    """List stored trials by the spec that first used them, with kind, number, size and date."""
    from dpspec.engine.results.decimals import size
    from dpspec.engine.storage.trial_store import Store
    from dpspec.reporters.labels import count
    from dpspec.reporters.layout import text_table

    trial_store = Store(store)
    entries = list(trial_store.entries())
    if entries:
        groups: dict[tuple[str, str], list[Entry]] = {}
        for entry in entries:
            groups.setdefault((_named(entry), entry.kind or "?"), []).append(entry)
        rows = [("kind", "spec", "trials", "size", "made")]
        for (name, kind), group in sorted(groups.items()):
            made = max(entry.made for entry in group)[:10] or "?"
            rows.append((kind, name, str(len(group)), size(sum(entry.size for entry in group)), made))
        emit("\n".join(text_table(rows, page_width(), folded=1)))
    emit(f"{count(len(entries), 'trial')}, {size(sum(entry.size for entry in entries))} in {trial_store.location}")
    return ExitCode.OK


@app.command("rm", short_help="Remove stored trials.")
def remove_trials(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="SPEC", help="Names of specs as `dpspec cache ls` shows them.")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Remove every stored trial, damaged records and the state of unfinished trials. Files without a "
            "record stay for a day, because another process may be writing them.",
        ),
    ] = False,
    store: StorePlace = DEFAULT_STORE,
) -> int:
    """Remove stored trials; they are trained again when a run needs them."""
    from dpspec.engine.results.decimals import size
    from dpspec.engine.storage.trial_store import Store
    from dpspec.reporters.labels import count

    if bool(names) == everything:
        raise UsageError("`dpspec cache rm` needs names of specs, or else --all")
    trial_store = Store(store)
    stored = list(trial_store.entries())
    for name in names or ():
        require_known("spec", name, sorted({_named(entry) for entry in stored}), "stored")
    freed = {entry.key: entry.size for entry in stored if everything or _named(entry) in (names or ())}
    for key in freed:
        trial_store.remove(key)
    swept = trial_store.sweep() if everything else 0
    emit(f"removed {count(len(freed), 'trial')}, {size(sum(freed.values()) + swept)} freed")
    return ExitCode.OK


@app.command("verify", short_help="Compare every stored trial with its digests.")
def verify_trials(store: StorePlace = DEFAULT_STORE, store_key: StoreKey = None) -> int:
    """Read every stored trial and compare it with its digests; damaged ones are moved aside."""
    from dpspec.engine.storage.trial_store import Store, read_key
    from dpspec.reporters.labels import count

    trial_store, damaged, number = Store(store, read_key(store_key)), 0, 0
    if not trial_store.exists():
        raise UsageError(f"no store at {trial_store.location}: nothing was compared")
    for key in list(trial_store.keys()):
        damages: list[str] = []
        number += 1
        trial_store.get(key, damages.append)
        if damages:
            damaged += 1
            emit(damages[0])
    if damaged:
        emit(f"{damaged} of {count(number, 'trial')} in {trial_store.location} damaged: a run trains them again")
        return ExitCode.UNEXPECTED
    emit(f"{count(number, 'trial')} in {trial_store.location}: all as written")
    return ExitCode.OK


def _named(entry: Entry) -> str:
    return entry.spec or "(of no known spec)"
