"""Plugins of a project: Python files that ``pyproject.toml`` or the command line names, and their decorated functions.

A spec names no code. ``[tool.dpspec] plugins`` of the nearest ``pyproject.toml`` that has this table, upwards from the
spec's folder, and ``--plugin`` do, and the result states both with the digest of the code. The digest is part of the
keys of trials. It covers the file and all Python files of the modules in the project's folder that it imports.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from dpspec.contract import HOOK_API, Backend, Dataset, Loss, Model, ModelError, Reporter, hookimpl
from dpspec.contract.attacks import Canary, Score
from dpspec.contract.parts import PARTS, Part, located
from dpspec.data.function_data import FunctionData
from dpspec.data.source import CLASSES
from dpspec.data.source import schema as data_schema
from dpspec.errors import UsageError
from dpspec.text import plain, shortened

#: Prefix of the names under which files of projects are imported.
MODULE_PREFIX = "dpspec_project_"

#: The file with the table of a project, and where messages locate its list.
PYPROJECT, _TABLE = "pyproject.toml", "tool.dpspec.plugins"


#: An environment variable that ignores ``pyproject.toml`` if it is ``off``, for audits in a stranger's checkout.
SWITCH = "DPSPEC_PROJECT"


@dataclass(frozen=True, kw_only=True)
class ProjectFile:
    """A Python file of a project. It is pickled with its ``source``, so that workers execute the same code.

    ``name`` is its path in the project's folder ``root``, ``named_by`` the origin of its name, and ``digest`` the
    SHA-256 of its code, without the path of ``root``.
    """

    name: str
    root: str
    named_by: str
    source: bytes
    digest: str

    @property
    def module(self) -> str:
        """The name under which the file is imported."""
        identity = f"{self.root}/{self.name}/{self.digest}"
        return MODULE_PREFIX + hashlib.sha256(identity.encode()).hexdigest()[:16]

    @property
    def path(self) -> Path:
        return Path(self.root, self.name)

    def includes(self, filename: str) -> bool:
        """Whether a source file is part of the project's own code."""
        return _is_own(Path(self.root), Path(filename).resolve())


def project_files(specs: Iterable[Path], named: Sequence[Path] = ()) -> tuple[ProjectFile, ...]:
    """The files that configure a run.

    Args:
        specs: Specs, or folders of specs; the current folder without any.
        named: The files of ``--plugin``.

    Raises:
        UsageError: The configuration is invalid, a file is missing, or the specs belong to several projects.
    """
    folders = {(path if path.is_dir() else path.parent).resolve() for path in specs} or {Path.cwd()}
    configured = os.environ.get(SWITCH) != "off"
    tables = dict(filter(None, map(table_of, sorted(folders)))) if configured else {}
    listed = {root: names for root, names in tables.items() if names}
    if len(listed) > 1:
        roots = " and ".join(map(str, sorted(listed)))
        raise UsageError(f"the specs belong to projects with different plugins, {roots}: run them one by one")
    files = [_file(root, name, f"{PYPROJECT}: {_TABLE}") for root, names in listed.items() for name in names]
    for path in [file.resolve() for file in named]:
        table = table_of(path.parent) if configured else None
        candidates = [*tables, *([table[0]] if table is not None else []), Path.cwd()]
        root = next((root for root in candidates if path.is_relative_to(root)), path.parent)
        if path not in [file.path for file in files]:
            files.append(_file(root, path.relative_to(root).as_posix(), "--plugin"))
    return tuple(files)


def table_of(folder: Path) -> tuple[Path, tuple[str, ...]] | None:
    """The nearest folder with a table ``tool.dpspec``, and its list of plugins."""
    configuration = _configuration(folder)
    return None if configuration is None else (configuration[0], configuration[1]["plugins"])


def trusted_distributions(specs: Iterable[Path]) -> tuple[str, ...]:
    """The distributions that the projects of the specs sign off, ``trust`` in ``[tool.dpspec]``."""
    if os.environ.get(SWITCH) == "off":
        return ()
    folders = {(path if path.is_dir() else path.parent).resolve() for path in specs} or {Path.cwd()}
    configurations = filter(None, map(_configuration, sorted(folders)))
    return tuple(dict.fromkeys(name for _, table in configurations for name in table["trust"]))


#: The lists of strings in ``[tool.dpspec]``, each with the words for its content and an example.
_LISTS = {"plugins": ("Python files", "dp/parts.py"), "trust": ("distributions", "dpspec-demo")}


#: The word in UTF-8, or in UTF-16 and UTF-32 with a zero between letters, which are refused.
_MENTION = re.compile(b"\0*".join(bytes([letter]) for letter in b"dpspec"))


def _configuration(folder: Path) -> tuple[Path, dict[str, tuple[str, ...]]] | None:
    """The nearest folder with a table ``tool.dpspec``, and its lists."""
    for root in (folder, *folder.parents):
        path = root / PYPROJECT
        try:
            content = path.read_bytes()
            if _MENTION.search(content) is None:
                continue
            table = tomllib.loads(content.decode("utf-8")).get("tool", {}).get("dpspec")
        except OSError:
            continue
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{path}: not UTF-8, at byte {error.start}: TOML must be UTF-8 (without UTF-16's or another encoding's "
                "bytes): save the file again as UTF-8"
            ) from None
        except ValueError as error:
            raise UsageError(f"{path}: invalid TOML: {error}") from None
        if table is None:
            continue
        if not isinstance(table, dict) or set(table) - set(_LISTS):
            keys = " and ".join(f"{key}, a list of {items}" for key, (items, _) in _LISTS.items())
            raise UsageError(f"{path}: [tool.dpspec] has only the keys {keys}")
        lists = {}
        for key, (items, example) in _LISTS.items():
            names = table.get(key, [])
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise UsageError(f'{path}: [tool.dpspec] {key} must be a list of {items}, such as ["{example}"]')
            lists[key] = tuple(names)
        return root, lists
    return None


def _file(root: Path, name: str, setting: str) -> ProjectFile:
    pure, named_by = PurePosixPath(name), setting.partition(":")[0]
    if pure.is_absolute() or ".." in pure.parts or pure.suffix != ".py":
        raise UsageError(f"{setting}: {name!r} must be a Python file (.py) inside the project's folder {root}")
    actual = (root / name).resolve()
    if not actual.is_relative_to(root.resolve()):
        raise UsageError(f"{setting}: {name!r} is a link to {actual}, outside of the project's folder {root}: copy it")
    try:
        source = (root / name).read_bytes()
    except OSError as error:
        raise UsageError(f"{setting}: {root / name}: {(error.strerror or str(error)).lower()}") from None
    digest = _digest(root, name, source)
    return ProjectFile(name=pure.as_posix(), root=str(root), named_by=named_by, source=source, digest=digest)


#: The SHA-256 of each other file of a project when this process first imported it.
_IMPORTED: dict[Path, str] = {}


def _digest(root: Path, name: str, source: bytes) -> str:
    """The SHA-256 of a file, and of the Python files in ``root`` that it imports directly or indirectly.

    Raises:
        UsageError: This process has imported another version of an imported file, or modules of another project, which
            would be used in its place.
    """
    if str(root) not in sys.path:  # at the end, because installed modules have priority
        sys.path.append(str(root))
    if foreign_file := next((path for path in _IMPORTED if not path.is_relative_to(root)), None):
        raise UsageError(f"this process has imported {foreign_file} of another project: restart the process")
    contents, waiting = {root / name: source}, [source]
    while waiting:
        for path in sorted(_imported_files(root, waiting.pop())):
            if path not in contents:
                contents[path] = path.read_bytes()
                waiting.append(contents[path])
    whole = hashlib.sha256()
    for path, content in sorted(contents.items()):
        digest = hashlib.sha256(content).hexdigest()
        if path != root / name and _IMPORTED.setdefault(path, digest) != digest:
            raise UsageError(f"{path} was changed after this process imported it: restart the process")
        whole.update(f"{path.relative_to(root).as_posix()}\0{digest}\n".encode())
    return whole.hexdigest()


def _imported_files(root: Path, source: bytes) -> Iterator[Path]:
    """The Python files in ``root`` of the top-level packages that a source imports anywhere in it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # its import fails with the reason
        return
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    for name in names - set(sys.stdlib_module_names):
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is None:
            continue
        folders = spec.submodule_search_locations
        locations = [Path(f) for f in folders] if folders is not None else [Path(spec.origin)] if spec.origin else []
        yield from (file for path in locations for file in _sources(path) if _is_own(root, file) and file.is_file())


def _sources(location: Path) -> Iterator[Path]:
    """The resolved paths of a module's file, or of the Python files in a package."""
    resolved = location.resolve()
    if not resolved.is_dir():
        yield resolved
        return
    for folder, _, names in os.walk(resolved):  # resolves links alone: torch has 2,500 files
        for name in names:
            if name.endswith(".py"):
                path = Path(folder, name)
                yield path.resolve() if path.is_symlink() else path


def _is_own(root: Path, file: Path) -> bool:
    """Whether a resolved path is in the project, and not in a hidden folder or an installed package."""
    inside = file.relative_to(root).parts if file.is_relative_to(root) else (".",)
    return not any(part.startswith(".") or part == "site-packages" for part in inside)


def load_file(file: ProjectFile) -> str:
    """Import a file, add the hooks of its decorated functions, and return the name of its module.

    Raises:
        UsageError: The file cannot be imported; the message has its line.
    """
    if file.module in sys.modules:
        return file.module
    if _digest(Path(file.root), file.name, file.source) != file.digest:
        raise UsageError(
            f"{file.name} imports other code here than in the process that started the run: copy the project again"
        )
    spec = importlib.util.spec_from_file_location(file.module, file.path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.module] = module
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to results
            exec(compile(file.source, str(file.path), "exec"), module.__dict__)  # noqa: S102 - trusted configuration
        _add_hooks(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a file may raise SystemExit
        del sys.modules[file.module]
        reason = shortened(" ".join(plain(located(error, str(file.path))).split()), 500)
        raise UsageError(f"{reason} (plugin named by {file.named_by})") from None
    return file.module


def _add_hooks(module: ModuleType) -> None:
    """Add hooks that yield the providers of decorated functions, then the providers of the module's own hooks."""
    functions = {id(value): value for value in vars(module).values() if inspect.isfunction(value)}.values()
    decorated = [part for function in functions for part in getattr(function, PARTS, ())]
    if not decorated and not hasattr(module, "DPSPEC_API"):
        raise ValueError("no function is decorated, for example with @dpspec.model, and DPSPEC_API is missing")
    module.__dict__.setdefault("DPSPEC_API", HOOK_API)
    offers: dict[str, list[Any]] = {}
    for number, part in enumerate(decorated):
        hook, type_, field, adapt = _FAMILIES[part.family]
        setattr(module, f"dpspec_part_{number}", adapt(part))
        code = f"{module.__name__}:dpspec_part_{number}"
        offers.setdefault(hook, []).append(_descriptor(part, type_, field, code))
    for hook, providers in offers.items():
        own_hook = getattr(module, hook, None)
        setattr(module, hook, hookimpl(_hook(providers, own_hook)))


def _hook(providers: Sequence[Any], own_hook: Callable[[], Iterable[Any]] | None) -> Callable[[], Iterable[Any]]:
    return lambda: (*providers, *(own_hook() if own_hook is not None else ()))


def _model(part: Part) -> Callable[..., Any]:
    return lambda *arguments: importlib.import_module("dpspec.training.function_model").FunctionModel(part, *arguments)


def _attack(part: Part) -> Callable[..., Any]:
    return lambda request: part.call(request.options, request)


def _loss(part: Part) -> Callable[..., Any]:
    def losses(outputs: Any, targets: Any, **options: Any) -> Any:
        try:
            return part.call(options, outputs, targets)
        except Exception as error:
            raise ModelError(f"{part.function.__name__}() fails at {part.located(error)}") from error

    return losses


def _backend(part: Part) -> Callable[..., Any]:
    class FunctionTrainer:
        def train(self, job: Any) -> None:
            part.call(job.options, job)

    return FunctionTrainer


#: The hook, the descriptor, its field for code, and the code of each family.
_FAMILIES: dict[str, tuple[str, type[Any], str, Callable[[Part], Any]]] = {
    "model": ("dpspec_models", Model, "factory", _model),
    "dataset": ("dpspec_datasets", Dataset, "source", lambda part: partial(FunctionData, part)),
    "loss": ("dpspec_losses", Loss, "function", _loss),
    "score": ("dpspec_attacks", Score, "score", _attack),
    "canary": ("dpspec_attacks", Canary, "make", _attack),
    "backend": ("dpspec_backends", Backend, "trainer", _backend),
    "reporter": ("dpspec_reporters", Reporter, "render", lambda part: part.function),
}


def _descriptor(part: Part, type_: type[Any], field: str, code: str) -> Any:
    if part.family == "reporter":
        return type_(format=part.kind, summary=part.summary, **part.settings, **{field: code})
    schema, settings = part.schema, part.settings
    if part.family == "dataset":
        schema, settings = _dataset_schema(part), {}
    return type_(kind=part.kind, summary=part.summary, schema=schema, **settings, **{field: code})


def _dataset_schema(part: Part) -> dict[str, Any]:
    """The keys of every dataset, ``classes``, and the function's own."""
    if taken := sorted({"classes", *data_schema()["properties"]} & set(part.readers)):
        raise ValueError(f"{part.function.__name__}(): every dataset has the key {taken[0]!r}: rename the parameter")
    if part.settings["target"] == "real":
        return data_schema(*part.schema.get("required", ()), **part.schema["properties"])
    default = part.settings["classes"]
    classes = CLASSES if default is None else {**CLASSES, "default": default}
    required = [*part.schema.get("required", ()), *(["classes"] if default is None else [])]
    return data_schema(*required, **part.schema["properties"], classes=classes)
