"""For notebooks and scripts: audit spec files, and read what an audit left behind, in one call each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from dpspec.errors import PluginError, SpecError, UsageError
from dpspec.text import shortened

if TYPE_CHECKING:
    from dpspec.engine.results.result import Result

File = str | PathLike[str]

#: How a device is named.
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


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
    or where an argument is none of its kind.
    """
    from dpspec.engine.running import runner
    from dpspec.engine.running.run_options import RunOptions
    from dpspec.engine.storage.trial_store import Store
    from dpspec.language.diagnostics.render import render
    from dpspec.language.load import load_specs
    from dpspec.registry.loader import load_catalog

    _require_fitting(overrides, store, device, workers)
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

    if not isinstance(file, str | PathLike):
        raise UsageError(f"a result is read from a file: give its path, not a {type(file).__name__}")
    return read_result(Path(file))


def _require_fitting(overrides: Sequence[str], store: File, device: str, workers: int | None) -> None:
    """Raise ``UsageError`` for what people try, naming the argument, what it takes and what was given."""
    if isinstance(overrides, str | bytes | Mapping) or not all(isinstance(one, str) for one in overrides):
        raise UsageError(
            f'overrides is a list of texts, as ["mechanism.noise_multiplier=1.5"], not {shortened(repr(overrides), 60)}'
        )
    if not isinstance(store, str | PathLike):
        raise UsageError(f"store is the path of a folder, or a URL, not {shortened(repr(store), 60)}")
    if not isinstance(device, str) or not DEVICE.fullmatch(device):
        raise UsageError(f'device is "auto", "cpu", "cuda" or "cuda:1", not {shortened(repr(device), 60)}')
    if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 1):
        raise UsageError(f"workers is a whole number from 1 on, or None, not {shortened(repr(workers), 60)}")


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
