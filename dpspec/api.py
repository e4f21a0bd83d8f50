"""For notebooks and scripts: audit spec files, and read what an audit left behind, in one call each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from dpspec.errors import PluginError, SpecError, UsageError

if TYPE_CHECKING:
    from dpspec.engine.results.result import Result

File = str | PathLike[str]


def run(
    specs: File | Iterable[File],
    *,
    overrides: Sequence[str] = (),
    store: File = ".dpspec/store",
    device: str = "auto",
    train: bool = True,
    executor: str | None = None,
    workers: int | None = None,
    address: str | None = None,
) -> Result:
    """Audit spec files, or all specs of a folder, all claims as one family: the result that ``dpspec run`` shows.

    specs: one file or folder, or several.
    overrides: ``path=value`` texts, as for ``--set``; each holds for every spec.
    store: the folder or the URL where trials are kept, so that nothing is trained twice.
    device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
    executor: where trials run: None for this process, or ``local``, ``ray``, ... (see ``dpspec plugins``); ``workers``
        of them at once, on the cluster at ``address``.
    train: whether trials may be made; without, bounds are computed and claims judged by them alone.

    Raises ``SpecError`` with every diagnostic of every file, ``PluginError`` when a kind is not installed (both with
    notes that show the lines at fault), ``NothingToRunError`` without specs, ``UsageError`` where a folder holds none,
    or where something else than paths is given.
    """
    from dpspec.engine.running import runner
    from dpspec.engine.running.run_options import RunOptions
    from dpspec.engine.storage.trial_store import Store
    from dpspec.language.diagnostics.render import render
    from dpspec.language.load import load_specs
    from dpspec.registry.loader import load_catalog

    catalog = load_catalog()
    loaded = load_specs(_paths(specs), catalog, overrides)
    try:
        if loaded.missing_plugins:
            raise PluginError("a plugin is missing, broken or too old", loaded.diagnostics)
        if not loaded.ok:
            raise SpecError(loaded.diagnostics)
        options = RunOptions(executor=executor, workers=workers, address=address, device=device)
        return runner.run(loaded.specs, catalog, store=Store(fspath(store)), options=options, train=train)
    except (SpecError, PluginError) as error:
        error.add_note(render(error.diagnostics, sources=loaded.sources))
        raise


def load(file: File) -> Result:
    """Read a result from a file in JSON, or from a report in HTML.

    Raises ``ResultError`` naming the file where it cannot be read or holds no result.
    """
    from dpspec.reporters.read_results import read_result

    return read_result(Path(file))


def _paths(specs: File | Iterable[File]) -> list[Path]:
    """The paths given; what else people try is refused by its type."""
    given = [specs] if isinstance(specs, str | bytes | PathLike | Mapping) or not isinstance(specs, Iterable) else specs
    paths = []
    for file in given:
        if not isinstance(file, str | PathLike) or isinstance(fspath(file), bytes):
            kind = type(file).__name__
            raise UsageError(f"specs are audited from files: give the path of one, or of a folder, not a {kind}")
        paths.append(Path(file))
    return paths
