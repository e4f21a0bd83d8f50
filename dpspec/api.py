"""Functions for notebooks and scripts: audit spec files, and read results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import dpspec.reporters  # noqa: F401 - it gives results their views
from dpspec.engine.declared_history import check_history as check_history
from dpspec.errors import ArgumentError, PluginError, SpecError
from dpspec.text import shortened

if TYPE_CHECKING:
    from dpspec.contract.catalog import Catalog
    from dpspec.contract.results import Result
    from dpspec.engine.calibration import Calibration
    from dpspec.language.load import Loaded

File = str | PathLike[str]

#: A spec: the path of a file or of a folder, or the content as a dictionary.
SpecLike = File | Mapping[str, Any]


def run(
    specs: SpecLike | Iterable[SpecLike],
    *,
    overrides: Sequence[str] = (),
    store: File = ".dpspec/store",
    device: str = "auto",
    train: bool = True,
    executor: str | None = None,
    workers: int | None = None,
    address: str | None = None,
    plugins: Sequence[File] = (),
    remedy_seconds: float | None = None,
) -> Result:
    """Audit specs like ``dpspec run``; the confidence is family-wise over the claims of all specs.

    Args:
        specs: Files, folders, or specs as dictionaries.
        overrides: ``path=value`` strings, as for ``--set``; each applies to every spec.
        store: Folder or URL of finished trials, which are not repeated.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        train: If False, train nothing and judge claims by bounds alone.
        executor: Where trials run: None for this process, or ``local``, ``ray``, ... (see ``dpspec plugins``).
        workers: Number of parallel trials.
        address: Address of the cluster.
        plugins: Python files with decorated functions, in addition to the list in ``pyproject.toml``.
        remedy_seconds: Maximum processor time of the search for values that prove failed claims; 0 for none.

    Returns:
        The result, as ``dpspec run`` shows it.

    Raises:
        SpecError: A spec is invalid. Like ``PluginError``, it carries all diagnostics, and notes with the lines.
        PluginError: A kind is not installed.
        NothingToRunError: There are no specs, or a folder contains none.
        UsageError: An argument is invalid.
    """
    from dpspec.engine.remedies import Search
    from dpspec.engine.running import runner
    from dpspec.engine.running.train import RunOptions
    from dpspec.engine.storage.trial_store import Store

    _check_arguments(overrides, store, device, workers)
    if remedy_seconds is not None and not remedy_seconds >= 0.0:
        raise ArgumentError(f"remedy_seconds must be at least 0, or None, not {remedy_seconds!r}")
    specs = _items(specs)
    catalog = project_catalog(specs, plugins)
    with _loaded(specs, catalog, overrides) as loaded:
        options = RunOptions(executor=executor, workers=workers, address=address, device=device)
        search = Search(catalog, remedy_seconds)
        return runner.run(
            loaded.specs, catalog, store=Store(fspath(store)), options=options, train=train, remedies=search
        )


def calibrate(
    specs: SpecLike | Iterable[SpecLike],
    vary: str,
    *,
    claims: Sequence[str] = (),
    overrides: Sequence[str] = (),
    precision: float = 1e-3,
    internal: bool = False,
    plugins: Sequence[File] = (),
) -> tuple[Calibration, ...]:
    """Find the minimum noise, the maximum steps, ... for which claims are proved, like ``dpspec calibrate``.

    Args:
        specs: Files, folders, or specs as dictionaries.
        vary: The number to vary, such as ``mechanism.noise_multiplier``.
        claims: Ids of the claims to prove; by default every claim with the expectation proved.
        overrides: ``path=value`` strings, as for ``--set``.
        precision: Maximum relative distance to the nearest failing value.
        internal: Allow data-dependent bounds to decide the value.
        plugins: As for :func:`run`.

    Returns:
        One calibration per spec and cell of a matrix. ``proved.value`` is the calibrated value, and ``proved`` None
        without such a value. ``as_json()`` has plain values.

    Raises:
        SpecError: A spec is invalid.
        PluginError: A kind is not installed.
        UsageError: An argument is invalid, or the value would depend on the data.
    """
    from dpspec.engine.calibration import calibrate_specs

    _check_arguments(overrides)
    if not 0.0 < precision < 1.0:
        raise ArgumentError(f"precision must be above 0 and below 1, not {precision!r}")
    specs = _items(specs)
    catalog = project_catalog(specs, plugins)
    with _loaded(specs, catalog, overrides) as loaded:
        return calibrate_specs(loaded.specs, catalog, vary=vary, claims=claims, relative=precision, internal=internal)


def _items(specs: SpecLike | Iterable[SpecLike]) -> list[Any]:
    single = isinstance(specs, str | bytes | PathLike | Mapping) or not isinstance(specs, Iterable)
    return [specs] if single else list(cast("Iterable[Any]", specs))


def project_catalog(specs: Sequence[SpecLike], plugins: Sequence[File]) -> Catalog:
    """The providers of installed plugins and of the project of the specs."""
    from dpspec.registry import loader
    from dpspec.registry.project import project_files, trusted_distributions

    if isinstance(plugins, str | bytes) or not all(isinstance(path, str | PathLike) for path in plugins):
        raise ArgumentError('plugins must be a list of Python files, such as ["dp/parts.py"]')
    paths = [Path(spec) for spec in specs if isinstance(spec, str | PathLike) and isinstance(fspath(spec), str)]
    loader.use_project(project_files(paths, [Path(path) for path in plugins]))
    catalog, trusted = loader.load_catalog(), trusted_distributions(paths)
    return loader.sign_off(catalog, trusted) if trusted else catalog


@contextmanager
def _loaded(specs: Sequence[SpecLike], catalog: Catalog, overrides: Sequence[str]) -> Iterator[Loaded]:
    """Valid specs. Errors of loading and of the body carry notes with the lines."""
    from dpspec.language.load import load_specs

    paths, documents = [], []
    for spec in specs:
        if isinstance(spec, Mapping):
            documents.append(spec)
        elif isinstance(spec, str | PathLike) and not isinstance(fspath(spec), bytes):
            paths.append(Path(spec))
        else:
            raise ArgumentError(
                f"specs must be paths of files or folders, or dictionaries, not a {type(spec).__name__}"
            )
    loaded = load_specs(paths, catalog, overrides, documents=documents)
    try:
        if not loaded.ok:
            if loaded.missing_plugins:
                raise PluginError("a plugin is missing, broken or too old", loaded.diagnostics)
            raise SpecError(loaded.diagnostics)
        yield loaded
    except (SpecError, PluginError) as error:
        from dpspec.language.diagnostics import render

        error.add_note(render(error.diagnostics, sources=loaded.sources))
        raise


def load(file: File) -> Result:
    """Read a result from a JSON file or an HTML report.

    Args:
        file: Path of the file.

    Returns:
        The result.

    Raises:
        ResultError: The file cannot be read, or contains no result.
    """
    from dpspec.reporters.read_results import read_result

    if not isinstance(file, str | PathLike):
        raise ArgumentError(f"file must be a path, not a {type(file).__name__}")
    return read_result(Path(file))


def _check_arguments(
    overrides: Sequence[str], store: File = ".", device: str = "auto", workers: int | None = None
) -> None:
    from dpspec.engine.running.train import DEVICE

    def invalid(rule: str, value: object) -> ArgumentError:
        return ArgumentError(f"{rule}, not {shortened(repr(value), 60)}")

    if isinstance(overrides, str | bytes | Mapping) or not all(isinstance(item, str) for item in overrides):
        raise invalid('overrides must be a list of strings, such as ["mechanism.noise_multiplier=1.5"]', overrides)
    if not isinstance(store, str | PathLike):
        raise invalid("store must be the path of a folder, or a URL", store)
    if not isinstance(device, str) or not DEVICE.fullmatch(device):
        raise invalid('device must be "auto", "cpu", "cuda" or "cuda:1"', device)
    if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 1):
        raise invalid("workers must be an integer of at least 1, or None", workers)
