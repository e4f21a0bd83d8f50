"""For notebooks and scripts: audit spec files, and read what an audit left behind, in one call each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from dpspec.errors import PluginError, SpecError

if TYPE_CHECKING:
    from dpspec.engine.result import Result

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
    notes that show the lines at fault), ``NothingToRunError`` without specs, ``UsageError`` where a folder holds none.
    """
    from dpspec.engine import runner
    from dpspec.engine.means import Means
    from dpspec.engine.store import Store
    from dpspec.registry.loader import load_catalog
    from dpspec.spec.load import load_specs
    from dpspec.spec.render import render

    catalog = load_catalog()
    files = [specs] if isinstance(specs, str | PathLike) else specs
    loaded = load_specs([Path(file) for file in files], catalog, overrides)
    try:
        if loaded.missing_plugins:
            raise PluginError("a plugin is missing, broken or too old", loaded.diagnostics)
        if not loaded.ok:
            raise SpecError(loaded.diagnostics)
        means = Means(executor=executor, workers=workers, address=address, device=device)
        return runner.run(loaded.specs, catalog, store=Store(fspath(store)), means=means, train=train)
    except (SpecError, PluginError) as error:
        error.add_note(render(error.diagnostics, sources=loaded.sources))
        raise


def load(file: File) -> Result:
    """Read a result from a file in JSON, or from a report in HTML.

    Raises ``ResultError`` naming the file where it cannot be read or holds no result.
    """
    from dpspec.cli.results import read_result

    return read_result(Path(file))
